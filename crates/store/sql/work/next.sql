-- How long until an activity can be fetched, if nothing happens before: one that waits for its time, a lease that runs
-- out, a session that becomes free. What has become so within the last `$2` counts too: it came after the last look.
select min(n.at) - {now} as next, 1 = 0 as blocked
from (
    select min(w.due_at) as at from tenure.work w where w.due_at > {now} - $2
    union all
    select min(w.leased_until) from tenure.work w where w.due_at = 0 and w.leased_until > {now} - $2
    union all
    select min(s.leased_until)
    from tenure.work w
    join tenure.session s on s.id = w.session
    where w.session is not null and w.leased_until <= {now} and s.leased_until > {now} - $2
) n

-- Why a verb found nothing to change: where each message is now, and under which attempt.
select i.n, 'live' as place, m.attempts, m.leased_until
from unnest($1::bigint[], $2::bigint[]) as i (id, n) cross join lateral (select attempts, leased_until from tenure.message where id = i.id offset 0) m
union all
select i.n, 'moved', m.attempts, m.leased_until
from unnest($1::bigint[], $2::bigint[]) as i (id, n) cross join lateral (select attempts, leased_until from tenure.message where origin_id = i.id offset 0) m
union all
select i.n, 'scheduled', s.attempts, 0
from unnest($1::bigint[], $2::bigint[]) as i (id, n) cross join lateral (select attempts from tenure.scheduled where id = i.id offset 0) s
union all
select i.n, a.outcome, a.attempts, 0
from unnest($1::bigint[], $2::bigint[]) as i (id, n) join tenure.archive a on a.id = i.id and a.position = i.id
union all
select i.n, a.outcome, a.attempts, 0
from unnest($1::bigint[], $2::bigint[]) as i (id, n) join tenure.archive a on a.position = i.id and a.position <> a.id

-- One batch of finished messages that are older than `$3`, or than the queue's retention: completed and dead messages each by
-- their own. Without a retention they stay: a queue that keeps no completed messages has only those that were archived
-- explicitly. The shorter retention is stated once more as a bound for the index.
delete from tenure.archive
where id in (
    select a.id
    from tenure.archive a
    join tenure.queue q on q.id = a.queue
    where a.queue = $2
      and a.queue > 0
      and a.finished_at <= {now} - coalesce($3, case when a.outcome = 'completed' then q.retain_completed_us else q.retain_dead_us end)
      and a.finished_at <= {now} - coalesce($3, (
          select coalesce(case when s.retain_completed_us <= s.retain_dead_us then s.retain_completed_us end, s.retain_dead_us, s.retain_completed_us)
          from tenure.queue s
          where s.id = $2
      ))
    order by a.finished_at, a.id
    limit $4
)

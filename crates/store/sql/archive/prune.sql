-- One batch of what has outlived the queue's retention: completed and dead messages each by their own age.
delete from tenure.archive
where id in (
    select a.id
    from tenure.archive a
    join tenure.queue q on q.id = a.queue
    where a.queue = $2
      and a.queue > 0
      and a.finished_at <= {now} - coalesce($3, case when a.outcome = 'completed' then coalesce(q.retain_completed_us, 0) else q.retain_dead_us end)
    order by a.finished_at, a.id
    limit $4
)

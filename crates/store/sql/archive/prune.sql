-- One batch of finished messages of one outcome (`$4`) that are older than `$3`, or than the queue's retention for it. Without a
-- retention they stay: a queue that keeps no completed messages has those that were archived explicitly, and those that completed
-- while it still had a retention, which cannot be told apart. Messages of another outcome, which may stay for ever, are not walked.
delete from tenure.archive
where id in (
    select a.id
    from tenure.archive a
    where a.queue = $2
      and a.queue > 0
      and a.outcome = $4
      and a.finished_at <= {now} - coalesce($3, (
          select case when $4 = 'completed' then q.retain_completed_us else q.retain_dead_us end
          from tenure.queue q
          where q.id = $2
      ))
    order by a.finished_at, a.id
    limit $5
)

-- What would be lost, or left without its queue: live messages, and workers heard of lately.
select
    (select count(*) from (
        select 1 from tenure.message m join tenure.lane l on l.id = m.lane where l.queue = $2 limit 1001
    ) x) as live,
    (select count(*) from (
        select 1 from tenure.scheduled s join tenure.lane l on l.id = s.lane where l.queue = $2 limit 1001
    ) x) as scheduled,
    (select count(*) from tenure.worker where queue = $2 and status <> 'stopped' and heartbeat_at > {now} - $3) as workers

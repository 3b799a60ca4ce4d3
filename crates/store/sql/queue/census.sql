-- Everything that can be counted without walking a queue; `$2`: how long a worker may be silent and still count as alive.
select
    (select count(*) from tenure.queue) as queues,
    (select count(*) from tenure.worker) as workers,
    (select count(*) from tenure.worker where status <> 'stopped' and heartbeat_at > {now} - $2) as active,
    (select count(*) from tenure.archive) as archived,
    (select count(*) from tenure.archive where outcome <> 'completed') as dead,
    (select max(version) from tenure.migration) as version

select
    (select count(*) from tenure.archive where queue = $1 and outcome <> 'completed') as dead,
    (select count(*) from tenure.archive where queue = $1 and queue > 0) as total

-- What a process must know from time to time: when the next scheduled message is due, how long leases last here, and
-- whether expired ones go to the tail.
select
    (select min(due_at) from tenure.scheduled where lane = $2 and lane > 0) as due_at,
    (select lease_us from tenure.lane where id = $2) as lease_us,
    (select tail_on_expiry from tenure.lane where id = $2) as tail,
    {now} as now

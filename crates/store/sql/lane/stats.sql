select
    (select count(*) from tenure.message where lane = $2 and lane > 0 and leased_until <= {now}) as ready,
    (select count(*) from tenure.message where lane = $2 and lane > 0 and leased_until > {now}) as leased,
    (select count(*) from tenure.scheduled where lane = $2 and lane > 0) as scheduled,
    (select min(created_at) from tenure.message where lane = $2 and lane > 0 and leased_until <= {now}) as oldest,
    (select cast(avg({now} - created_at) as bigint) from tenure.message where lane = $2 and lane > 0) as age,
    (select cast(avg(leased_until - {now}) as bigint) from tenure.message where lane = $2 and lane > 0 and leased_until > {now}) as lease_left,
    {now} as now

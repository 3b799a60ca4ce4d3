-- Why a verb found nothing to change: where each message is now, and under which attempt.
select $2 as n, 'live' as place, attempts, leased_until from tenure.message where id = $1
union all
select $2, 'moved', attempts, leased_until from tenure.message where origin_id = $1
union all
select $2, 'scheduled', attempts, 0 from tenure.scheduled where id = $1
union all
select $2, outcome, attempts, 0 from tenure.archive where id = $1 and position = $1
union all
select $2, outcome, attempts, 0 from tenure.archive where position = $1 and position <> id

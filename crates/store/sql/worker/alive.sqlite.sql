-- No arrays: one worker at a time.
select $2 as n from tenure.worker where id = $1 and status <> 'stopped'

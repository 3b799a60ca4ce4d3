update tenure.queue
set paused_at  = case when $3 then coalesce(paused_at, {now}) end,
    updated_at = {now}
where name = $2
returning id

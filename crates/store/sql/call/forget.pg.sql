-- Calls of processes that ended: no call is repeated for longer than a minute.
delete from tenure.call where called_at < (date_part('epoch', clock_timestamp()) * 1000000)::bigint - 3600000000

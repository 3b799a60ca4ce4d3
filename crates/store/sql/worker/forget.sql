-- Incarnations of a name that stopped before: they hold nothing.
delete from tenure.worker where name = $1 and status = 'stopped'

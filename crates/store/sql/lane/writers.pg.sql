-- Transactions that may store a message in a lane that has just been deleted, or lease one or a key for a worker that has just
-- been stopped: a statement locks the tables that it writes before it takes its snapshot, so one that still sees the lane, or
-- the worker as ready, is among these. The functions of migration 10 lock them before
-- they read the lane.
select distinct l.virtualtransaction as writer
from pg_locks l
where l.locktype = 'relation'
  and l.granted
  and l.relation in ('tenure.message'::regclass, 'tenure.scheduled'::regclass, 'tenure.key_lease'::regclass)
  and l.database = (select oid from pg_database where datname = current_database())
  and l.mode not in ('AccessShareLock', 'ShareUpdateExclusiveLock')

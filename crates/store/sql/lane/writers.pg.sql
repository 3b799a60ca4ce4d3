-- Transactions that may store a message in a lane that has just been deleted: a statement locks the tables that it writes
-- before it takes its snapshot, so one that still sees the lane is among these. The functions of migration 10 lock them before
-- they read the lane.
select distinct l.virtualtransaction as writer
from pg_locks l
where l.locktype = 'relation'
  and l.granted
  and l.relation in ('tenure.message'::regclass, 'tenure.scheduled'::regclass)
  and l.database = (select oid from pg_database where datname = current_database())
  and l.mode not in ('AccessShareLock', 'ShareUpdateExclusiveLock')

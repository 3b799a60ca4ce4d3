-- In a transaction of the caller's that has stored messages in these lanes: tells other processes about them ($3, on channel $2) when
-- it commits. Above READ COMMITTED its snapshot may be older than the deletion of the queue, and still have the lanes: locking one
-- that is gone fails with a serialization failure. Under READ COMMITTED no lane is read.
with held as (
    select l.id
    from tenure.lane l
    where current_setting('transaction_isolation') <> 'read committed'
      and l.id = any ($1::bigint[])
    for key share
)
select pg_notify($2, $3)::text as told, (select count(*) from held) as held

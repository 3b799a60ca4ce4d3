-- What a process must know to raise its floor: the lowest live position at or above the floor, and which transactions may
-- still commit a position below it (docs/adr/0014). A scheduled message that keeps its place will be live there again.
-- `$3`: the transaction number that a candidate waits for. While an older transaction runs, `writers` is the oldest one
-- that holds a lock on the messages: only such a transaction can have drawn positions. Locks are read after the
-- statement's snapshot was taken, so what they say holds for the next look, not for this one.
-- `$4`: whether a candidate is wanted. Its number is a transaction number of our own: every transaction that has drawn a
-- position by now has a lower one, which is not true of the snapshot's upper end.
with seen as materialized (
    select txid_snapshot_xmin(txid_current_snapshot()) as running, txid_snapshot_xmax(txid_current_snapshot()) as next
)
select
    (select min(id) from (
        select min(id) as id from tenure.message where lane = $1 and lane > 0 and id >= $2
        union all
        select min(id) from tenure.scheduled where lane = $1 and id >= $2 and keep_place
    ) live) as floor,
    s.running,
    case when s.running < $3::bigint then (
        select coalesce(min(w.xid), 9223372036854775807)
        from (
            -- `transactionid` has 32 bits: its distance from the snapshot's upper end gives it its epoch.
            select min(s.next - 2147483648 + (l.transactionid::text::bigint - (s.next & 4294967295) + 6442450944) % 4294967296)
                       filter (where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock') as xid
            from pg_locks l
            where l.granted
            group by l.virtualtransaction
            having bool_or(
                l.locktype = 'relation'
                and l.relation = 'tenure.message'::regclass
                and l.database = (select oid from pg_database where datname = current_database())
                and l.mode <> 'AccessShareLock'
            )
        ) w
    ) end as writers,
    case when $4 then txid_current() end as started
from seen s

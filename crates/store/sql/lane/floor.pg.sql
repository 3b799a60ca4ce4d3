-- The lowest live id at or above a known floor, and the transactions that were running when we looked. An id below the
-- answer may still be in an uncommitted transaction: the floor may rise only when all of those have finished. A
-- scheduled message that keeps its place will live there again.
select
    (select min(id) from (
        select min(id) as id from tenure.message where lane = $1 and lane > 0 and id >= $2
        union all
        select min(id) from tenure.scheduled where lane = $1 and id >= $2 and keep_place
    ) live) as floor,
    txid_snapshot_xmin(txid_current_snapshot()) as running,
    txid_snapshot_xmax(txid_current_snapshot()) as started

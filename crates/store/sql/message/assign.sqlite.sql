-- Messages that this transaction has just leased, on the terms of another claim.
update tenure.message
set leased_until = leased_at + coalesce($2, (select l.lease_us from tenure.lane l where l.id = lane)),
    worker       = $3
where id = $1
returning leased_until

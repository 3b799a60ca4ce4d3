-- Ids for messages that go to the tail in an order of their own. Drawn in the transaction that uses them, and after its
-- number, as `enqueue` explains.
with tx as materialized (select txid_current() as id)
select nextval('tenure.message_id') as id
from tx
cross join generate_series(1, $1::bigint)
where tx.id > 0

-- Ids for messages that go to the tail in an order of their own. Drawn in the transaction that uses them, after its
-- number, as `enqueue` explains, and under a lock on the messages, as `lane/floor` wants: `for update` takes it before
-- the statement runs, although it finds no row.
with tx as materialized (select txid_current() as id),
     lock as materialized (select 1 from tenure.message where false for update)
select nextval('tenure.message_id') as id
from tx
cross join generate_series(1, $1::bigint)
where tx.id > 0
  and not exists (select 1 from lock)

-- Keeps lanes from being deleted until the transaction ends. Above READ COMMITTED a lane that was deleted after the transaction's
-- snapshot was taken is still found, and locking it fails with a serialization failure.
select id
from tenure.lane
where id = any ($1::bigint[])
for key share

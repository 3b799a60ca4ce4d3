-- Ends a key's lease: where it was, and how far its messages go.
delete from tenure.key_lease where token = $1 returning lane, key, last

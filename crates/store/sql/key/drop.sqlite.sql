-- Ends a key's lease: where it was, and how far its messages go. No reply is lost here, so no call is recorded.
delete from tenure.key_lease where token = $2 returning lane, key, last

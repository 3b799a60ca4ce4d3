-- A message that is leased together with its key carries the token of the key's lease: its own `leased_until` then only says
-- that it was handed out, and the key's row says until when. So extending a key writes one row, whatever its length.
-- No table of calls: a reply of SQLite's cannot be lost on the way.
alter table tenure.message add column token integer;
alter table tenure.key_lease add column last integer;
alter table tenure.key_lease add column before integer;
create index tenure.key_lease_until on tenure.key_lease (lane, leased_until);

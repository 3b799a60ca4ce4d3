-- A message that is leased together with its key carries the token of the key's lease: its own `leased_until` then only says
-- that it was handed out, and the key's row says until when. So extending a key writes one row, whatever its length.
alter table tenure.message add column token bigint;

-- The last position that the holder was given, and that of the holder before, whose messages go back to their places.
alter table tenure.key_lease add column last bigint;
alter table tenure.key_lease add column before bigint;
create index key_lease_until on tenure.key_lease (lane, leased_until) where lane > 0;

-- What a call of verbs did, written by the call itself, for its repeat after a lost connection. `done` has the places of the
-- items that were done, null when all were. A closed call was not carried out and never will be: a late first attempt
-- violates the key and is rolled back.
create table tenure.call (
    token     bigint primary key,
    closed    boolean not null default false,
    done      bigint[],
    called_at bigint not null default (date_part('epoch', clock_timestamp()) * 1000000)::bigint
);

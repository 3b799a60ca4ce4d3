-- Ends a key's lease: where it was, and how far its messages go. `$1`: the token under which the call is recorded.
with done as (
    delete from tenure.key_lease where token = $2 returning lane, key, last
),
call as (
    insert into tenure.call (token) select $1::bigint from done where $1::bigint is not null
)
select lane, key, last from done

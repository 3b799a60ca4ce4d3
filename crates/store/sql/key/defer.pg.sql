-- A key that is given back rests: no claim gets it until the delay has passed, and it has no holder. `$2`: the token under which
-- the call is recorded.
with done as (
    update tenure.key_lease
    set token        = coalesce($5, nextval('tenure.message_id')),
        worker       = null,
        leased_until = {now} + $4
    where token = $3
    returning lane, key, last
),
call as (
    insert into tenure.call (token) select $2::bigint from done where $2::bigint is not null
)
select lane, key, last from done

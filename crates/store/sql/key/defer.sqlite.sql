-- A key that is given back rests: no claim gets it until the delay has passed, and it has no holder. No reply is lost here, so no
-- call is recorded.
update tenure.key_lease
set token        = $5,
    worker       = null,
    leased_until = {now} + $4
where token = $3
returning lane, key, last

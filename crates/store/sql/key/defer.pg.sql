-- A key that is given back rests: no claim gets it until the delay has passed, and it has no holder.
update tenure.key_lease
set token        = coalesce($4, nextval('tenure.message_id')),
    worker       = null,
    leased_until = {now} + $3
where token = $2
returning lane, key, last

-- An abandoned key rests: nobody holds it, and nobody gets it, until the delay has passed.
update tenure.key_lease
set token        = coalesce($4, nextval('tenure.message_id')),
    worker       = null,
    leased_until = {now} + $3
where token = $2
returning lane, key

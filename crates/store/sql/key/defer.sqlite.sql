-- An abandoned key rests: nobody holds it, and nobody gets it, until the delay has passed.
update tenure.key_lease
set token        = $4,
    worker       = null,
    leased_until = {now} + $3
where token = $2
returning lane, key

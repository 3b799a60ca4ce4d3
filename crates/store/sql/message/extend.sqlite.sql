-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again. A message with a key is leased with its key, and is not extended here.
update tenure.message
set leased_until = max(leased_until, {now}) + $7
where {held $2} and token is null
returning $8 as n, leased_until, lane, leased_until - {now} as remaining

-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again.
update tenure.message
set leased_until = max(leased_until, {now}) + $7
where {held $2}
returning $8 as n, leased_until, lane, leased_until - {now} as remaining

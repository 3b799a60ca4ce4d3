-- One row a key, however many messages it has.
update tenure.key_lease
set leased_until = max(leased_until, {now}) + $2
where token = $3
returning $4 as n, leased_until

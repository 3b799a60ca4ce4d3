update tenure.key_lease
set leased_until = max(leased_until, {now}) + $3
where token = $2
returning lane, key, leased_until

-- From whichever is later, now or the deadline: an extension never shortens a lease, and one that had just run out
-- but was not taken yet starts again.
update tenure.message
set leased_until = max(leased_until, {now}) + $6
where id = $2
  and leased_until > 0
  and ($3 is null or attempts = $3)
  and ($4 is null or worker = $4)
  and ($5 is null or lane = $5)
returning $7 as n, leased_until, lane, leased_until - {now} as remaining

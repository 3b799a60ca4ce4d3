-- Once for every owner.
update tenure.session
set leased_until = {now} + $2
where owner = $4
  and leased_until > {now}
  and active_at > {now} - $3
returning id

-- Back to its place, at once. `uncount` takes the attempt back when nobody ever received the message.
update tenure.message m
set leased_until = 0,
    worker       = null,
    attempts     = m.attempts - i.uncount
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::bigint[]) as i (id, attempt, worker, uncount, n)
where m.id = i.id
  and m.leased_until > 0
  and (i.attempt is null or m.attempts = i.attempt)
  and (i.worker is null or m.worker = i.worker)
returning i.n, m.id, m.lane

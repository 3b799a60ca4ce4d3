delete from tenure.message m
using unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as i (id, attempt, worker, n)
where m.id = i.id
  and m.leased_until > 0
  and (i.attempt is null or m.attempts = i.attempt)
  and (i.worker is null or m.worker = i.worker)
returning i.n

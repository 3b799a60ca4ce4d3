-- The messages of a key up to a position, under the key's lease. They carry its token, which is their fence, and its
-- moment: the length of the lease can be read from them. `$9` skips messages that have run out of attempts or time.
update tenure.message
set leased_until = $4,
    attempts     = attempts + 1,
    worker       = $5,
    token        = $6,
    leased_at    = $8
where lane = $2
  and key = $3
  and id <= $7
  and leased_until = 0
  and (
      not $9
      or ((expire_at is null or expire_at >= {now})
          and coalesce(attempts < coalesce(max_attempts, (select l.max_attempts from tenure.lane l where l.id = $2)), true))
  )
returning
    id, lane, leased_until, created_at, expire_at, origin_id, attempts, max_attempts,
    buried_id, buried_from, reason, source_id, key, kind, encoding, reference, producer, payload, leased_at,
    attempts > coalesce(max_attempts, (select l.max_attempts from tenure.lane l where l.id = $2)) as exhausted,
    expire_at < {now} as expired,
    true as keep

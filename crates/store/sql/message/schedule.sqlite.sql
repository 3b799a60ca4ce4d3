insert into tenure.scheduled (
    id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer, payload
)
values {rows from $3} ($3, $4, coalesce($13, $1 + $14), 0, $1, $5, 0, $6, $7, $8, $9, $10, $11, $12)

-- One complete act: find the first free messages from the cursor on, lock them, lease them, return them.
-- Claims of different workers and with leases of different lengths share it. `$5` and `$6` are the lease and the worker of each
-- message (0: the queue's lease, no worker), in the order in which messages are dealt; `slot` is the message's place in them. `$7`
-- names each worker once. A worker that is suspended, stopped or unknown leases nothing: its places are left out, and `granted`
-- says how many remain. Only then are the arrays taken apart, which took a tenth of the rate of 64 single claims.
-- The rows are located by ctid, so the plan is right whatever the statistics say. A message that has run out of attempts
-- or time is leased too, marked doomed, and buried by the caller under its fence; `$4` skips such messages instead, while
-- this process buries a backlog of them beside its claims (docs/adr/0002).
with clock as materialized (select {now} as now),
     lane as materialized (
         select c.now, l.lease_us, l.max_attempts, l.keep_completed as keep,
                case when l.paused then -1 when l.tail_on_expiry then 0 else c.now end as horizon
         from clock c
         cross join tenure.lane l
         where l.id = $2
     ),
     unready as materialized (
         select array_agg(u.worker) as workers
         from unnest($7::bigint[]) as u (worker)
         -- Not `exists`, which reads all workers once to look each up: 70 of them, and more while statistics are old.
         where (select w.status from tenure.worker w where w.id = u.worker) is distinct from 'ready'
     ),
     granted as materialized (
         select $5::bigint[] as lease, $6::bigint[] as worker, null::bigint[] as slot
         from unready
         where workers is null
         union all
         select array_agg(s.lease order by s.n), array_agg(s.worker order by s.n), array_agg(s.n order by s.n)
         from unnest($5::bigint[], $6::bigint[]) with ordinality as s (lease, worker, n)
         cross join unready
         where s.worker <> all (workers)
         having (select workers from unready) is not null
     )
update tenure.message m
set leased_until = (select now from lane) + coalesce(nullif(((select lease from granted))[p.n], 0), (select lease_us from lane)),
    attempts     = m.attempts + 1,
    worker       = nullif(((select worker from granted))[p.n], 0),
    leased_at    = (select now from lane)
from unnest(array(
    select ctid
    from tenure.message
    where lane = $2
      and lane > 0
      and id >= $3
      and leased_until <= (select horizon from lane)
      and key is null
      and (
          not $4
          or ((expire_at is null or expire_at >= (select now from lane))
              and coalesce(attempts < coalesce(max_attempts, (select max_attempts from lane)), true))
      )
    order by id
    limit (select coalesce(cardinality(lease), 0) from granted)
    for update skip locked
)) with ordinality as p (tid, n)
where m.ctid = p.tid
returning
    m.id, m.lane, m.leased_until, m.created_at, m.expire_at, m.origin_id, m.attempts, m.max_attempts,
    m.buried_id, m.buried_from, m.reason, m.source_id, m.key, m.kind, m.encoding, m.reference, m.producer, m.payload, m.leased_at,
    m.attempts > coalesce(m.max_attempts, (select max_attempts from lane)) as exhausted,
    m.expire_at < (select now from lane) as expired,
    (select keep from lane) as keep,
    coalesce(((select slot from granted))[p.n], p.n) as slot, (select cardinality(lease) from granted)::bigint as granted

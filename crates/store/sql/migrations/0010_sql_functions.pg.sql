-- `tenure.enqueue` for payloads of type text, json, jsonb and bytea. With bytea alone, a driver's text went through the parser
-- of bytea literals: a backslash was taken for an escape, and the payload was stored damaged or refused. A literal or a
-- parameter without a type is now text, which PostgreSQL prefers among strings; bytes need a type: `$1::bytea`.
-- The lane is chosen among those that exist, whatever number of partitions the queue was asked for.
-- `tenure.complete` takes an attempt of any integer type, and the worker and the token of the key's lease, which are the rest
-- of the library's fence.

drop function tenure.enqueue(
    text, bytea, text, interval, timestamptz, text, integer, interval, text, text, text, boolean
);

-- Returns the message's id; for a dedupe key that is taken, the id of the message that took it. `due` is `at` under its
-- older name. Arguments are checked as the library checks its own.
create function tenure.enqueue(
    queue text, payload bytea, key text default null, delay interval default null, due timestamptz default null,
    dedupe_key text default null, max_attempts bigint default null, expire interval default null,
    kind text default null, encoding text default null, reference text default null, announce boolean default true,
    at timestamptz default null
) returns bigint
language plpgsql as $body$
#variable_conflict use_column
declare
    now_us constant bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    century_us constant bigint := 3153600000000000;
    delay_us bigint;
    due_us bigint;
    expire_us bigint;
    target bigint;
    window_us bigint;
    last bigint;
    place bigint;
    lane bigint;
    lane_expire_us bigint;
    message bigint;
begin
    if num_nonnulls(
        enqueue.delay, enqueue.due, enqueue.at, enqueue.expire, enqueue.max_attempts, enqueue.key, enqueue.dedupe_key
    ) > 0 then
        delay_us := (date_part('epoch', enqueue.delay) * 1000000)::bigint;
        expire_us := (date_part('epoch', enqueue.expire) * 1000000)::bigint;
        if num_nonnulls(enqueue.delay, enqueue.due, enqueue.at) > 1
            or delay_us < 0 or expire_us <= 0 or enqueue.max_attempts not between 1 and 2147483647
            or enqueue.key = '' or octet_length(enqueue.key) > 1024
            or enqueue.dedupe_key = '' or octet_length(enqueue.dedupe_key) > 1024
            or delay_us > century_us or expire_us > century_us
        then
            raise exception using errcode = 'invalid_parameter_value', message = case
                when num_nonnulls(enqueue.delay, enqueue.due, enqueue.at) > 1
                    then 'more than one of delay, at and due is given: choose one'
                when delay_us < 0 then 'the delay is negative: give a positive duration'
                when expire_us <= 0 then 'the expiry is not positive: give a positive duration'
                when delay_us > century_us then 'the delay is longer than 100 years'
                when expire_us > century_us then 'the expiry is longer than 100 years'
                when enqueue.max_attempts not between 1 and 2147483647 then 'max_attempts is not between 1 and 2147483647'
                when enqueue.key = '' or octet_length(enqueue.key) > 1024 then 'the key does not have between 1 and 1024 bytes'
                else 'the dedupe key does not have between 1 and 1024 bytes'
            end;
        end if;
        due_us := coalesce(
            (date_part('epoch', coalesce(enqueue.at, enqueue.due)) * 1000000)::bigint, now_us + nullif(delay_us, 0)
        );
    end if;
    if greatest(octet_length(enqueue.kind), octet_length(enqueue.encoding), octet_length(enqueue.reference)) > 65536 then
        raise exception 'the kind, the encoding or the reference has more than 65536 bytes'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Before the lane is read: a deletion of the queue waits for the transactions that hold these locks, and takes what they
    -- stored with it. Before the id is drawn too: see message/enqueue for the number and lane/floor for the lock.
    perform txid_current();
    if due_us is null then
        lock table tenure.message in row exclusive mode;
    else
        lock table tenure.scheduled in row exclusive mode;
    end if;
    -- The last lane says how many there are: partitions are counted from 0.
    select q.id, q.dedupe_us, (select max(l.partition) from tenure.lane l where l.queue = q.id)
    into target, window_us, last
    from tenure.queue q
    where q.name = enqueue.queue;
    -- In a variable: in the statement it would be drawn anew for every lane.
    place := case
        when last = 0 then 0
        when enqueue.key is null then floor(random() * (last + 1))
        else tenure.key_partition(enqueue.key, last + 1)
    end;
    select l.id, l.expire_us into lane, lane_expire_us from tenure.lane l where l.queue = target and l.partition = place;
    if lane is null then
        raise exception 'there is no queue named ''%'': create it first', enqueue.queue using errcode = 'no_data_found';
    end if;
    -- Above READ COMMITTED the snapshot may be older than the deletion of the queue, and still have its lanes: locking one
    -- that is gone fails with a serialization failure.
    if current_setting('transaction_isolation') <> 'read committed' then
        perform 1 from tenure.lane l where l.id = lane for key share;
    end if;
    if enqueue.dedupe_key is not null then
        insert into tenure.dedupe as d (queue, key, id, until)
        values (target, enqueue.dedupe_key, 0, now_us + window_us)
        on conflict (queue, key) do update
        set id = 0, until = excluded.until
        where d.until <= now_us
          and not exists (select 1 from tenure.message m where m.id = d.id)
          and not exists (select 1 from tenure.message m where m.origin_id = d.id)
          and not exists (select 1 from tenure.scheduled s where s.id = d.id)
          and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id);
        if not found then
            return (select d.id from tenure.dedupe d where d.queue = target and d.key = enqueue.dedupe_key);
        end if;
    end if;
    message := nextval('tenure.message_id');
    expire_us := coalesce(due_us, now_us) + coalesce(expire_us, lane_expire_us);
    if due_us is null then
        insert into tenure.message (
            id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
        )
        values (
            message, lane, 0, now_us, expire_us, 0, enqueue.max_attempts, enqueue.key, enqueue.kind, enqueue.encoding,
            enqueue.reference, enqueue.payload
        );
    else
        insert into tenure.scheduled (
            id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference,
            payload
        )
        values (
            message, lane, due_us, false, now_us, expire_us, 0, enqueue.max_attempts, enqueue.key, enqueue.kind,
            enqueue.encoding, enqueue.reference, enqueue.payload
        );
    end if;
    if enqueue.dedupe_key is not null then
        update tenure.dedupe d set id = message where d.queue = target and d.key = enqueue.dedupe_key;
    end if;
    if enqueue.announce then
        -- The greatest position means "look everywhere, also at what is due".
        perform pg_notify(
            ('tenure:' || n.nspname)::name::text,
            '0 ' || lane || ':' || case when due_us is null then message else 9223372036854775807 end
        )
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where c.oid = 'tenure.message'::regclass;
    end if;
    return message;
end
$body$;

-- Text is stored as UTF-8, character by character as it was given. In the language SQL, so that the planner puts the call of
-- the function above in the place of these: they cost nothing.
create function tenure.enqueue(
    queue text, payload text, key text default null, delay interval default null, due timestamptz default null,
    dedupe_key text default null, max_attempts bigint default null, expire interval default null,
    kind text default null, encoding text default null, reference text default null, announce boolean default true,
    at timestamptz default null
) returns bigint
language sql as $body$
    select tenure.enqueue(
        queue, convert_to(payload, 'UTF8'), key, delay, due, dedupe_key, max_attempts, expire, kind,
        coalesce(encoding, 'text'), reference, announce, at
    )
$body$;

-- The text of a json value, spaces and order included.
create function tenure.enqueue(
    queue text, payload json, key text default null, delay interval default null, due timestamptz default null,
    dedupe_key text default null, max_attempts bigint default null, expire interval default null,
    kind text default null, encoding text default null, reference text default null, announce boolean default true,
    at timestamptz default null
) returns bigint
language sql as $body$
    select tenure.enqueue(
        queue, convert_to(payload::text, 'UTF8'), key, delay, due, dedupe_key, max_attempts, expire, kind,
        coalesce(encoding, 'json'), reference, announce, at
    )
$body$;

-- The text form that PostgreSQL gives a jsonb value.
create function tenure.enqueue(
    queue text, payload jsonb, key text default null, delay interval default null, due timestamptz default null,
    dedupe_key text default null, max_attempts bigint default null, expire interval default null,
    kind text default null, encoding text default null, reference text default null, announce boolean default true,
    at timestamptz default null
) returns bigint
language sql as $body$
    select tenure.enqueue(
        queue, convert_to(payload::text, 'UTF8'), key, delay, due, dedupe_key, max_attempts, expire, kind,
        coalesce(encoding, 'json'), reference, announce, at
    )
$body$;

-- Many messages in one call, for the library in transactions of other drivers: all or none, one row each, in their order. Those
-- without a key go together into one lane. An array that is null stands for nulls.
-- For a duplicate the row has the message that its dedupe key was taken by, wherever it is (`found`), or its id and the time
-- at which the key was taken. The `leased_until` of an archived message is the time of its end.
create function tenure.enqueue_batch(
    queue text, payloads bytea[], keys text[], delays_us bigint[], dues_us bigint[], dedupe_keys text[],
    max_attempts bigint[], expires_us bigint[], kinds text[], encodings text[], refs text[], producer bigint
) returns table (
    id bigint, duplicate boolean, found boolean, created_at bigint, due_at bigint, expire_at bigint, leased_until bigint,
    leased_at bigint, attempts integer, own_max_attempts integer, worker bigint, own_producer bigint, key text, kind text,
    encoding text, reference text, payload bytea, queue_id bigint
)
language plpgsql as $body$
#variable_conflict use_column
declare
    now_us constant bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    target bigint;
    window_us bigint;
    lanes bigint[];
    expiries bigint[];
    places bigint[];
    won bigint[];
    ids bigint[];
begin
    -- Before the lanes are read, and before an id is drawn: see `enqueue`.
    perform txid_current();
    lock table tenure.message, tenure.scheduled in row exclusive mode;
    select q.id, q.dedupe_us, array_agg(l.id order by l.partition), array_agg(l.expire_us order by l.partition)
    into target, window_us, lanes, expiries
    from tenure.queue q
    join tenure.lane l on l.queue = q.id
    where q.name = enqueue_batch.queue
    group by q.id;
    if not found then
        raise exception 'there is no queue named ''%'': create it first', enqueue_batch.queue using errcode = 'no_data_found';
    end if;
    -- Above READ COMMITTED the snapshot may be older than the deletion of the queue, and still have its lanes: locking one
    -- that is gone fails with a serialization failure.
    if current_setting('transaction_isolation') <> 'read committed' then
        perform 1 from tenure.lane l where l.id = any (lanes) for key share;
    end if;
    places := array[floor(random() * cardinality(lanes))];
    select array_agg(1 + case when i.key is null then places[1] else tenure.key_partition(i.key, cardinality(lanes)) end order by i.n)
    into places
    from unnest(enqueue_batch.payloads, enqueue_batch.keys) with ordinality as i (payload, key, n);
    if enqueue_batch.dedupe_keys is not null then
        with wanted as (
            select i.key, min(i.n) as n
            from unnest(enqueue_batch.dedupe_keys) with ordinality as i (key, n)
            where i.key is not null
            group by i.key
        ),
        taken as (
            insert into tenure.dedupe as d (queue, key, id, until)
            select target, w.key, 0, now_us + window_us
            from wanted w
            order by w.key
            on conflict (queue, key) do update
            set id = 0, until = excluded.until
            where d.until <= now_us
              and not exists (select 1 from tenure.message m where m.id = d.id)
              and not exists (select 1 from tenure.message m where m.origin_id = d.id)
              and not exists (select 1 from tenure.scheduled s where s.id = d.id)
              and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id)
            returning d.key
        )
        select array_agg(w.n) into won from taken t join wanted w on w.key = t.key;
    end if;
    select array_agg(
        case when i.dedupe is null or i.n = any (won) then nextval('tenure.message_id') end order by i.n
    )
    into ids
    from unnest(enqueue_batch.payloads, enqueue_batch.dedupe_keys) with ordinality as i (payload, dedupe, n);
    insert into tenure.message (
        id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer, payload
    )
    select i.id, lanes[i.place], 0, now_us, now_us + coalesce(i.expire_us, expiries[i.place]), 0, i.max_attempts, i.key, i.kind,
           i.encoding, i.reference, enqueue_batch.producer, i.payload
    from unnest(
        ids, places, enqueue_batch.payloads, enqueue_batch.keys, enqueue_batch.delays_us, enqueue_batch.dues_us,
        enqueue_batch.max_attempts, enqueue_batch.expires_us, enqueue_batch.kinds, enqueue_batch.encodings, enqueue_batch.refs
    ) as i (id, place, payload, key, delay_us, due_us, max_attempts, expire_us, kind, encoding, reference)
    where i.id is not null and i.delay_us is null and i.due_us is null;
    insert into tenure.scheduled (
        id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, producer,
        payload
    )
    select i.id, lanes[i.place], coalesce(i.due_us, now_us + i.delay_us), false, now_us,
           coalesce(i.due_us, now_us + i.delay_us) + coalesce(i.expire_us, expiries[i.place]), 0, i.max_attempts, i.key,
           i.kind, i.encoding, i.reference, enqueue_batch.producer, i.payload
    from unnest(
        ids, places, enqueue_batch.payloads, enqueue_batch.keys, enqueue_batch.delays_us, enqueue_batch.dues_us,
        enqueue_batch.max_attempts, enqueue_batch.expires_us, enqueue_batch.kinds, enqueue_batch.encodings, enqueue_batch.refs
    ) as i (id, place, payload, key, delay_us, due_us, max_attempts, expire_us, kind, encoding, reference)
    where i.id is not null and (i.delay_us is not null or i.due_us is not null);
    update tenure.dedupe d
    set id = i.id
    from unnest(ids, enqueue_batch.dedupe_keys) as i (id, key)
    where i.id is not null and d.queue = target and d.key = i.key;
    perform pg_notify(('tenure:' || n.nspname)::name::text, '0 ' || r.lane || ':' || r.position)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    cross join (
        select lanes[i.place] as lane,
               min(case when i.delay_us is null and i.due_us is null then i.id else 9223372036854775807 end) as position
        from unnest(ids, places, enqueue_batch.delays_us, enqueue_batch.dues_us) as i (id, place, delay_us, due_us)
        where i.id is not null
        group by i.place
    ) r
    where c.oid = 'tenure.message'::regclass;
    return query
    select coalesce(i.id, d.id), i.id is null, m.leased_until is not null,
           case when i.id is null then coalesce(m.created_at, d.until - window_us) else now_us end,
           case when i.id is null then m.due_at else coalesce(i.due_us, now_us + i.delay_us) end,
           case when i.id is null then m.expire_at
               else coalesce(i.due_us, now_us + coalesce(i.delay_us, 0)) + coalesce(i.expire_us, expiries[i.place]) end,
           m.leased_until, m.leased_at, m.attempts, m.max_attempts, m.worker, m.producer, m.key, m.kind, m.encoding,
           m.reference, m.payload, target
    from unnest(
        ids, places, enqueue_batch.dedupe_keys, enqueue_batch.delays_us, enqueue_batch.dues_us, enqueue_batch.expires_us
    ) with ordinality as i (id, place, dedupe, delay_us, due_us, expire_us, n)
    left join lateral (
        select d.id, d.until from tenure.dedupe d where i.id is null and d.queue = target and d.key = i.dedupe offset 0
    ) d on true
    left join lateral (
        select m.created_at, null::bigint as due_at, m.expire_at,
               case when m.token is null then m.leased_until else coalesce(
                   (select k.leased_until from tenure.key_lease k where k.token = m.token), m.leased_until
               ) end as leased_until,
               m.leased_at, m.attempts, m.max_attempts, m.worker, m.producer, m.key, m.kind, m.encoding, m.reference, m.payload
        from tenure.message m
        where m.id = d.id and m.origin_id is null
        union all
        select m.created_at, null::bigint, m.expire_at,
               case when m.token is null then m.leased_until else coalesce(
                   (select k.leased_until from tenure.key_lease k where k.token = m.token), m.leased_until
               ) end,
               m.leased_at, m.attempts, m.max_attempts, m.worker, m.producer, m.key, m.kind, m.encoding, m.reference, m.payload
        from tenure.message m
        where m.origin_id = d.id
        union all
        select s.created_at, s.due_at, s.expire_at, 0, null, s.attempts, s.max_attempts, null, s.producer, s.key, s.kind,
               s.encoding, s.reference, s.payload
        from tenure.scheduled s
        where s.id = d.id and s.origin_id is null
        union all
        select s.created_at, s.due_at, s.expire_at, 0, null, s.attempts, s.max_attempts, null, s.producer, s.key, s.kind,
               s.encoding, s.reference, s.payload
        from tenure.scheduled s
        where s.origin_id = d.id
        union all
        select a.created_at, null, a.expire_at, a.finished_at, a.leased_at, a.attempts, a.max_attempts, a.worker, a.producer,
               a.key, a.kind, a.encoding, a.reference, a.payload
        from tenure.archive a
        where a.id = d.id
        limit 1
    ) m on true
    order by i.n;
end
$body$;

drop function tenure.complete(bigint, integer);

-- Whether the lease was still held: a message's id and the attempt under which it was leased; if they are given, also the worker
-- that holds it and the token of its key's lease.
create function tenure.complete(id bigint, attempt bigint, worker bigint default null, token bigint default null)
returns boolean
language plpgsql as $body$
#variable_conflict use_column
declare
    done boolean;
begin
    with gone as (
        delete from tenure.message m
        where m.id = complete.id and m.leased_until > 0 and m.attempts = complete.attempt
          and (complete.worker is null or m.worker = complete.worker)
          and (complete.token is null or m.token = complete.token)
        returning m.*
    ),
    kept as (
        insert into tenure.archive (
            id, position, queue, lane, outcome, reason, worker, leased_at, attempts, max_attempts, created_at,
            finished_at, expire_at, key, kind, encoding, reference, producer, payload
        )
        select coalesce(g.origin_id, g.id), g.id, l.queue, g.lane, 'completed', null, g.worker, g.leased_at, g.attempts,
               g.max_attempts, g.created_at, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, g.expire_at,
               g.key, g.kind, g.encoding, g.reference, g.producer, g.payload
        from gone g
        join tenure.lane l on l.id = g.lane
        where l.keep_completed
    )
    select count(*) = 1 into done from gone;
    return done;
end
$body$;

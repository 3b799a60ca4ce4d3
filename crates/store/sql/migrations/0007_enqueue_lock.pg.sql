-- `tenure.enqueue` as before, except that it holds its lock on the messages before it draws an id. The floor of a process
-- passes transactions that hold no such lock (docs/adr/0014); without it, an id that was drawn and not yet inserted could
-- be passed, and its message would never be delivered.

-- Returns the message's id; for a dedupe key that is taken, the id of the message that took it.
create or replace function tenure.enqueue(
    queue text, payload bytea, key text default null, delay interval default null, due timestamptz default null,
    dedupe_key text default null, max_attempts integer default null, expire interval default null,
    kind text default null, encoding text default null, reference text default null, announce boolean default true
) returns bigint
language plpgsql as $body$
#variable_conflict use_column
declare
    now_us constant bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    due_us bigint := coalesce(
        (date_part('epoch', enqueue.due) * 1000000)::bigint,
        now_us + (date_part('epoch', enqueue.delay) * 1000000)::bigint
    );
    expire_us bigint := (date_part('epoch', enqueue.expire) * 1000000)::bigint;
    target tenure.queue%rowtype;
    lane tenure.lane%rowtype;
    place bigint;
    message bigint;
begin
    select q.* into target from tenure.queue q where q.name = enqueue.queue;
    if not found then
        raise exception 'there is no queue named ''%'': create it first', enqueue.queue using errcode = 'no_data_found';
    end if;
    -- In a variable: in the WHERE clause it would be drawn anew for every lane.
    place := case
        when target.partitions = 1 then 0
        when enqueue.key is null then floor(random() * target.partitions)
        else tenure.key_partition(enqueue.key, target.partitions)
    end;
    select l.* into lane from tenure.lane l where l.queue = target.id and l.partition = place;
    if enqueue.dedupe_key is not null then
        insert into tenure.dedupe as d (queue, key, id, until)
        values (target.id, enqueue.dedupe_key, 0, now_us + target.dedupe_us)
        on conflict (queue, key) do update
        set id = 0, until = excluded.until
        where d.until <= now_us
          and not exists (select 1 from tenure.message m where m.id = d.id)
          and not exists (select 1 from tenure.message m where m.origin_id = d.id)
          and not exists (select 1 from tenure.scheduled s where s.id = d.id)
          and not exists (select 1 from tenure.scheduled s where s.origin_id = d.id);
        if not found then
            return (select d.id from tenure.dedupe d where d.queue = target.id and d.key = enqueue.dedupe_key);
        end if;
    end if;
    -- Both before the id is drawn: see message/enqueue for the number and lane/floor for the lock.
    perform txid_current();
    if due_us is null then
        lock table tenure.message in row exclusive mode;
    end if;
    message := nextval('tenure.message_id');
    expire_us := coalesce(due_us, now_us) + coalesce(expire_us, lane.expire_us);
    if due_us is null then
        insert into tenure.message (
            id, lane, leased_until, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference, payload
        )
        values (
            message, lane.id, 0, now_us, expire_us, 0, enqueue.max_attempts, enqueue.key, enqueue.kind, enqueue.encoding,
            enqueue.reference, enqueue.payload
        );
    else
        insert into tenure.scheduled (
            id, lane, due_at, keep_place, created_at, expire_at, attempts, max_attempts, key, kind, encoding, reference,
            payload
        )
        values (
            message, lane.id, due_us, false, now_us, expire_us, 0, enqueue.max_attempts, enqueue.key, enqueue.kind,
            enqueue.encoding, enqueue.reference, enqueue.payload
        );
    end if;
    if enqueue.dedupe_key is not null then
        update tenure.dedupe d set id = message where d.queue = target.id and d.key = enqueue.dedupe_key;
    end if;
    if enqueue.announce then
        -- The greatest position means "look everywhere, also at what is due".
        perform pg_notify(
            ('tenure:' || n.nspname)::name::text,
            '0 ' || lane.id || ':' || case when due_us is null then message else 9223372036854775807 end
        )
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where c.oid = 'tenure.message'::regclass;
    end if;
    return message;
end
$body$;

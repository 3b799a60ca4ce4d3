-- The story of a message: it is inserted into `message` (or `scheduled`, until it is due), leased in place by
-- pushing `leased_until` into the future, and deleted when it is finished; `archive` keeps what must be remembered.
-- Times are microseconds since 1970, durations microseconds. Ids of messages come from one sequence.

create table tenure.queue (
    id                  integer primary key autoincrement,
    name                text not null unique,
    namespace           text not null,
    partitions          integer not null,
    lease_us            integer not null,
    expire_us           integer,
    max_attempts        integer,
    dead_queue          integer,
    retain_completed_us integer,
    retain_dead_us      integer,
    tail_on_expiry      integer not null,
    dedupe_us           integer not null,
    reference           text not null,
    paused_at           integer,
    created_at          integer not null,
    updated_at          integer not null
);
create index tenure.queue_namespace on tenure.queue (namespace, name);

-- The hot path reads one row: a lane carries a copy of its queue's settings, written by `lane/configure` alone.
create table tenure.lane (
    id             integer primary key autoincrement,
    queue          integer not null,
    partition      integer not null,
    lease_us       integer,
    expire_us      integer,
    max_attempts   integer,
    dead_lane      integer,
    keep_completed integer,
    tail_on_expiry integer,
    paused         integer,
    unique (queue, partition)
);

-- SQLite has no sequences. A row id alone would be handed out again after the newest message is deleted, and with it
-- a fence that an old holder still has; AUTOINCREMENT costs a write per row. One counter, moved once per batch.
create table tenure.message_id (
    value integer not null
);
insert into tenure.message_id (value) values (0);

create table tenure.message (
    id           integer primary key,
    lane         integer not null,
    leased_until integer not null,
    created_at   integer not null,
    expire_at    integer,
    origin_id    integer,
    worker       integer,
    leased_at    integer,
    attempts     integer not null,
    max_attempts integer,
    buried_id    integer,
    buried_from  text,
    reason       text,
    source_id    text,
    key          text,
    kind         text,
    encoding     text,
    reference    text,
    producer     integer,
    payload      blob not null
);
-- The row id, which is the message's, is every index's last column: naming it would store it twice.
create index tenure.message_lane on tenure.message (lane);
create index tenure.message_key on tenure.message (lane, key, id) where key is not null;
create index tenure.message_origin on tenure.message (origin_id) where origin_id is not null;
create unique index tenure.message_source on tenure.message (lane, source_id) where source_id is not null;

create table tenure.scheduled (
    id           integer primary key,
    lane         integer not null,
    due_at       integer not null,
    keep_place   integer not null,
    created_at   integer not null,
    expire_at    integer,
    origin_id    integer,
    attempts     integer not null,
    max_attempts integer,
    buried_id    integer,
    buried_from  text,
    reason       text,
    source_id    text,
    key          text,
    kind         text,
    encoding     text,
    reference    text,
    producer     integer,
    payload      blob not null
);
create index tenure.scheduled_due on tenure.scheduled (lane, due_at, id);
create index tenure.scheduled_lane on tenure.scheduled (lane, id);
create index tenure.scheduled_place on tenure.scheduled (lane, id) where keep_place;
create index tenure.scheduled_origin on tenure.scheduled (origin_id) where origin_id is not null;

create table tenure.key_lease (
    lane         integer not null,
    key          text not null,
    token        integer not null unique,
    worker       integer,
    leased_until integer not null,
    primary key (lane, key)
);

create table tenure.dedupe (
    queue integer not null,
    key   text not null,
    id    integer not null,
    until integer not null,
    primary key (queue, key)
);
create index tenure.dedupe_until on tenure.dedupe (until);

create table tenure.archive (
    id           integer primary key,
    position     integer not null,
    queue        integer not null,
    lane         integer not null,
    outcome      text not null,
    reason       text,
    worker       integer,
    leased_at    integer,
    attempts     integer not null,
    max_attempts integer,
    created_at   integer not null,
    finished_at  integer not null,
    expire_at    integer,
    key          text,
    kind         text,
    encoding     text,
    reference    text,
    producer     integer,
    payload      blob not null
);
create index tenure.archive_finished on tenure.archive (queue, finished_at, id);
create index tenure.archive_dead on tenure.archive (queue, id) where outcome <> 'completed';
create index tenure.archive_position on tenure.archive (position) where position <> id;

create table tenure.worker (
    id           integer primary key autoincrement,
    name         text not null,
    queue        integer,
    status       text not null,
    started_at   integer not null,
    heartbeat_at integer not null,
    stopped_at   integer
);
create unique index tenure.worker_name on tenure.worker (name) where status <> 'stopped';
create index tenure.worker_queue on tenure.worker (queue);

create table tenure.event (
    stream     text not null,
    execution  integer not null,
    id         integer not null,
    created_at integer not null,
    data       blob not null,
    primary key (stream, execution, id)
);

CREATE TABLE tenure_api_key (
    id           text not null primary key,
    user_id      text not null,
    scope        text not null,
    name         text not null,
    prefix       text not null,
    hash         text not null unique,
    expires_at   integer,
    last_used_at integer,
    created_at   integer not null
)
CREATE TABLE tenure_archive (
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
)
CREATE TABLE tenure_dedupe (
    queue integer not null,
    key   text not null,
    id    integer not null,
    until integer not null,
    primary key (queue, key)
)
CREATE TABLE tenure_event (
    stream     text not null,
    execution  integer not null,
    id         integer not null,
    created_at integer not null,
    data       blob not null,
    primary key (stream, execution, id)
)
CREATE TABLE tenure_execution (
    instance     text not null,
    id           integer not null,
    status       text not null,
    output       text,
    pinned       integer,
    events       integer not null,
    started_at   integer not null,
    completed_at integer,
    primary key (instance, id)
)
CREATE TABLE tenure_history (
    instance  text not null,
    execution integer not null,
    id        integer not null,
    data      text not null,
    primary key (instance, execution, id)
)
CREATE TABLE tenure_housekeeping (
    id     integer primary key,
    holder integer not null,
    until  integer not null
)
CREATE TABLE tenure_identity (
    id      integer primary key,
    version integer not null
)
CREATE TABLE tenure_inbox (
    id         integer primary key autoincrement,
    instance   text not null,
    visible_at integer not null,
    attempts   integer not null,
    token      integer not null,
    nonce      integer,
    item       text not null
, stray_looks integer not null default 0)
CREATE TABLE tenure_instance (
    id             text not null primary key,
    born           integer not null,
    name           text,
    version        text,
    parent         text,
    execution      integer not null,
    pinned         integer,
    custom_status  text,
    custom_version integer not null,
    turns          integer not null,
    token          integer not null,
    leased_until   integer not null,
    acked          integer not null,
    created_at     integer not null,
    updated_at     integer not null
)
CREATE TABLE tenure_key_lease (
    lane         integer not null,
    key          text not null,
    token        integer not null unique,
    worker       integer,
    leased_until integer not null, last integer, before integer,
    primary key (lane, key)
)
CREATE TABLE tenure_kv (
    instance   text not null,
    key        text not null,
    value      text,
    updated_at integer not null,
    drafted    integer not null,
    draft      text,
    draft_at   integer not null,
    primary key (instance, key)
)
CREATE TABLE tenure_lane (
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
)
CREATE TABLE tenure_message (
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
, token integer)
CREATE TABLE tenure_message_id (
    value integer not null
)
CREATE TABLE tenure_migration (version bigint primary key, name text not null, breaking bigint not null, applied_at bigint not null)
CREATE TABLE tenure_namespace (
    name        text not null primary key,
    description text not null,
    key_tag     text not null,
    created_at  integer not null
)
CREATE TABLE tenure_queue (
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
, placement text not null default '', requested integer)
CREATE TABLE tenure_role (
    id          text not null primary key,
    namespace   text not null,
    name        text not null,
    permissions text not null,
    created_at  integer not null,
    unique (namespace, name)
)
CREATE TABLE tenure_role_binding (
    id         text not null primary key,
    namespace  text not null,
    user_id    text not null,
    role_id    text not null,
    created_at integer not null,
    unique (namespace, user_id, role_id)
)
CREATE TABLE tenure_scheduled (
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
)
CREATE TABLE tenure_session (
    id           text not null primary key,
    owner        text not null,
    leased_until integer not null,
    active_at    integer not null
)
CREATE TABLE tenure_users (
    id          text not null primary key,
    username    text not null unique,
    external_id text not null,
    email       text not null,
    created_at  integer not null,
    updated_at  integer not null
)
CREATE TABLE tenure_work (
    id           integer primary key autoincrement,
    due_at       integer not null,
    leased_until integer not null,
    token        integer not null,
    attempts     integer not null,
    nonce        integer,
    instance     text,
    execution    integer,
    activity     integer,
    session      text,
    tag          text,
    item         text not null
)
CREATE TABLE tenure_worker (
    id           integer primary key autoincrement,
    name         text not null,
    queue        integer,
    status       text not null,
    started_at   integer not null,
    heartbeat_at integer not null,
    stopped_at   integer
)
CREATE INDEX tenure_api_key_user on tenure_api_key (user_id)
CREATE INDEX tenure_archive_dead on tenure_archive (queue, id) where outcome <> 'completed'
CREATE INDEX tenure_archive_outcome on tenure_archive (queue, outcome, finished_at, id)
CREATE INDEX tenure_archive_position on tenure_archive (position) where position <> id
CREATE INDEX tenure_dedupe_until on tenure_dedupe (until)
CREATE INDEX tenure_inbox_instance on tenure_inbox (instance, visible_at, id)
CREATE INDEX tenure_inbox_nonce on tenure_inbox (nonce) where nonce is not null
CREATE INDEX tenure_inbox_visible on tenure_inbox (visible_at, id)
CREATE INDEX tenure_instance_parent on tenure_instance (parent) where parent is not null
CREATE INDEX tenure_instance_token on tenure_instance (token) where token <> 0
CREATE INDEX tenure_key_lease_until on tenure_key_lease (lane, leased_until)
CREATE INDEX tenure_message_key on tenure_message (lane, key, id) where key is not null
CREATE INDEX tenure_message_lane on tenure_message (lane)
CREATE INDEX tenure_message_origin on tenure_message (origin_id) where origin_id is not null
CREATE UNIQUE INDEX tenure_message_source on tenure_message (lane, source_id) where source_id is not null
CREATE INDEX tenure_queue_namespace on tenure_queue (namespace, name)
CREATE INDEX tenure_role_binding_namespace on tenure_role_binding (namespace, id)
CREATE INDEX tenure_role_binding_role on tenure_role_binding (role_id)
CREATE INDEX tenure_role_binding_user on tenure_role_binding (user_id, namespace)
CREATE INDEX tenure_role_namespace on tenure_role (namespace, id)
CREATE INDEX tenure_scheduled_due on tenure_scheduled (lane, due_at, id)
CREATE INDEX tenure_scheduled_lane on tenure_scheduled (lane, id)
CREATE INDEX tenure_scheduled_origin on tenure_scheduled (origin_id) where origin_id is not null
CREATE INDEX tenure_scheduled_place on tenure_scheduled (lane, id) where keep_place
CREATE INDEX tenure_session_owner on tenure_session (owner)
CREATE INDEX tenure_work_due on tenure_work (due_at, id)
CREATE INDEX tenure_work_instance on tenure_work (instance)
CREATE INDEX tenure_work_session on tenure_work (session) where session is not null
CREATE INDEX tenure_work_token on tenure_work (token) where token <> 0
CREATE UNIQUE INDEX tenure_worker_name on tenure_worker (name) where status <> 'stopped'
CREATE INDEX tenure_worker_queue on tenure_worker (queue)
CREATE INDEX tenure_worker_stopped on tenure_worker (name) where status = 'stopped'

-- As for PostgreSQL; see there for the story.

create table tenure.instance (
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
);
create index tenure.instance_parent on tenure.instance (parent) where parent is not null;
-- The steps of a fetch find the instance they leased by the token.
create index tenure.instance_token on tenure.instance (token) where token <> 0;

create table tenure.execution (
    instance     text not null,
    id           integer not null,
    status       text not null,
    output       text,
    pinned       integer,
    events       integer not null,
    started_at   integer not null,
    completed_at integer,
    primary key (instance, id)
);

create table tenure.history (
    instance  text not null,
    execution integer not null,
    id        integer not null,
    data      text not null,
    primary key (instance, execution, id)
);

create table tenure.inbox (
    id         integer primary key autoincrement,
    instance   text not null,
    visible_at integer not null,
    attempts   integer not null,
    token      integer not null,
    nonce      integer,
    item       text not null
);
create index tenure.inbox_instance on tenure.inbox (instance, visible_at, id);
create index tenure.inbox_visible on tenure.inbox (visible_at, id);
create index tenure.inbox_nonce on tenure.inbox (nonce) where nonce is not null;

create table tenure.work (
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
);
create index tenure.work_due on tenure.work (due_at, id);
-- As for instances: the steps of a fetch find what they leased.
create index tenure.work_token on tenure.work (token) where token <> 0;
create index tenure.work_instance on tenure.work (instance);
create index tenure.work_session on tenure.work (session) where session is not null;

create table tenure.session (
    id           text not null primary key,
    owner        text not null,
    leased_until integer not null,
    active_at    integer not null
);
create index tenure.session_owner on tenure.session (owner);

create table tenure.kv (
    instance   text not null,
    key        text not null,
    value      text,
    updated_at integer not null,
    drafted    integer not null,
    draft      text,
    draft_at   integer not null,
    primary key (instance, key)
);

-- As for PostgreSQL; see there for the story.

create table tenure.namespace (
    name        text not null primary key,
    description text not null,
    key_tag     text not null,
    created_at  integer not null
);

create table tenure.users (
    id          text not null primary key,
    username    text not null unique,
    external_id text not null,
    email       text not null,
    created_at  integer not null,
    updated_at  integer not null
);

create table tenure.api_key (
    id           text not null primary key,
    user_id      text not null,
    scope        text not null,
    name         text not null,
    prefix       text not null,
    hash         text not null unique,
    expires_at   integer,
    last_used_at integer,
    created_at   integer not null
);
create index tenure.api_key_user on tenure.api_key (user_id);

create table tenure.role (
    id          text not null primary key,
    namespace   text not null,
    name        text not null,
    permissions text not null,
    created_at  integer not null,
    unique (namespace, name)
);
create index tenure.role_namespace on tenure.role (namespace, id);

create table tenure.role_binding (
    id         text not null primary key,
    namespace  text not null,
    user_id    text not null,
    role_id    text not null,
    created_at integer not null,
    unique (namespace, user_id, role_id)
);
create index tenure.role_binding_namespace on tenure.role_binding (namespace, id);
create index tenure.role_binding_user on tenure.role_binding (user_id, namespace);
create index tenure.role_binding_role on tenure.role_binding (role_id);

create table tenure.identity (
    id      integer primary key,
    version integer not null
);

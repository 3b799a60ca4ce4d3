-- Who may do what: a user has keys, a role has permissions, and a binding gives a user a role in a namespace. Ids are
-- texts that the caller chooses, and sort bytewise. There are no foreign keys: every change first raises the version in
-- `identity`, and the lock on that one row is what keeps a key or a binding from outliving what it refers to.

create table tenure.namespace (
    name        text collate "C" primary key,
    description text not null,
    key_tag     text not null,
    created_at  bigint not null
);

create table tenure.users (
    id          text collate "C" primary key,
    username    text collate "C" not null unique,
    external_id text not null,
    email       text not null,
    created_at  bigint not null,
    updated_at  bigint not null
);

-- The key itself is nowhere: only its hash.
create table tenure.api_key (
    id           text collate "C" primary key,
    user_id      text collate "C" not null,
    scope        text collate "C" not null,
    name         text not null,
    prefix       text not null,
    hash         text collate "C" not null unique,
    expires_at   bigint,
    last_used_at bigint,
    created_at   bigint not null
);
create index api_key_user on tenure.api_key (user_id);

-- Permissions are names with commas between them; no name is empty, so the empty text is the empty list.
create table tenure.role (
    id          text collate "C" primary key,
    namespace   text collate "C" not null,
    name        text collate "C" not null,
    permissions text not null,
    created_at  bigint not null,
    unique (namespace, name)
);
create index role_namespace on tenure.role (namespace, id);

create table tenure.role_binding (
    id         text collate "C" primary key,
    namespace  text collate "C" not null,
    user_id    text collate "C" not null,
    role_id    text collate "C" not null,
    created_at bigint not null,
    unique (namespace, user_id, role_id)
);
create index role_binding_namespace on tenure.role_binding (namespace, id);
create index role_binding_user on tenure.role_binding (user_id, namespace);
create index role_binding_role on tenure.role_binding (role_id);

-- One row, made by the first change.
create table tenure.identity (
    id      bigint primary key,
    version bigint not null
);

//! Who may do what: namespaces, users, their keys, roles and bindings.

use super::Micros;

/// A namespace: queues and roles belong to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// The tag that keys made for it carry; may be empty.
    pub key_tag: String,
    /// When it was created.
    pub created_at: Micros,
}

/// Somebody who can have keys and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its identity, chosen by whoever created it.
    pub id: String,
    /// Its name, which no other user has.
    pub username: String,
    /// What another system calls it; may be empty.
    pub external_id: String,
    /// Where to write to; may be empty.
    pub email: String,
    /// When it was created.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
}

/// A user to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewUser {
    /// Its identity.
    pub id: String,
    /// Its name, which no other user may have.
    pub username: String,
    /// What another system calls it; may be empty.
    pub external_id: String,
    /// Where to write to; may be empty.
    pub email: String,
}

/// What the store knows of a key: never the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its identity, chosen by whoever created it.
    pub id: String,
    /// Whose key it is.
    pub user_id: String,
    /// The only namespace it is good for; empty: wherever its user may go.
    pub scope: String,
    /// What people call it; may be empty.
    pub name: String,
    /// The beginning of the key, by which people recognise it.
    pub prefix: String,
    /// The hash of the key, by which it is found.
    pub hash: String,
    /// From when on it opens nothing; none: never.
    pub expires_at: Option<Micros>,
    /// When it was last used; none: never.
    pub last_used_at: Option<Micros>,
    /// When it was created.
    pub created_at: Micros,
    /// Whether it had expired by the database's clock when it was read.
    pub expired: bool,
}

/// A key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewApiKey {
    /// Its identity.
    pub id: String,
    /// Whose key it is.
    pub user_id: String,
    /// The only namespace it is good for; empty: wherever its user may go.
    pub scope: String,
    /// What people call it; may be empty.
    pub name: String,
    /// The beginning of the key, by which people recognise it.
    pub prefix: String,
    /// The hash of the key, which no other key may have.
    pub hash: String,
    /// From when on it opens nothing; none: never. It may lie in the past.
    pub expires_at: Option<Micros>,
}

/// A named set of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its identity, chosen by whoever created it.
    pub id: String,
    /// Where it belongs.
    pub namespace: String,
    /// Its name, which no other role of that namespace has.
    pub name: String,
    /// What it allows, in the order given. The kernel does not know what they mean.
    pub permissions: Vec<String>,
    /// When it was created.
    pub created_at: Micros,
}

/// Gives a user a role in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleBinding {
    /// Its identity, chosen by whoever created it.
    pub id: String,
    /// Where it holds.
    pub namespace: String,
    /// Whom it is for.
    pub user_id: String,
    /// What it gives.
    pub role_id: String,
    /// When it was created.
    pub created_at: Micros,
}

/// What became of the wish to remove something that others may hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Done,
    /// It was not there.
    Missing,
    /// It is still there, because of these.
    InUse(Use),
}

/// What keeps something from being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Role bindings.
    Bindings,
    /// Roles.
    Roles,
    /// Queues.
    Queues,
}

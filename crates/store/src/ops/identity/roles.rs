//! Roles, the bindings that give them to users, and the permissions that come of it.
//!
//! A role's permissions are one text with commas between the names. No name is empty or has a comma, so what is read is
//! what was written, also where it was nothing.

use std::collections::BTreeSet;

use super::{check_loose, check_name, count, find, no_user, taken};
use crate::db::Conn;
use crate::error::{Error, Kind, Result, invalid};
use crate::sql::*;
use crate::store::Store;
use crate::types::{Removal, Role, RoleBinding, Use};
use crate::value::{Fields, Value};

impl Store {
    /// Creates a role. A name that is taken in its namespace (or an id) is `AlreadyExists`, and changes nothing.
    pub async fn role_create(&self, id: &str, namespace: &str, name: &str, permissions: &[String]) -> Result<Role> {
        let role = new_role(id, namespace, name, permissions)?;
        let clock = self.clock().value();
        let created = self.identity_change(move |conn| Box::pin(async move { insert_role(conn, clock, role).await }));
        created.await.map_err(|error| role_taken(error, id, namespace, name))
    }

    /// Creates a role; one of that name in that namespace keeps its id and gets these permissions. The role as it is.
    pub async fn role_ensure(&self, id: &str, namespace: &str, name: &str, permissions: &[String]) -> Result<Role> {
        let role = new_role(id, namespace, name, permissions)?;
        let clock = self.clock().value();
        let ensured = self.identity_change(move |conn| {
            Box::pin(async move {
                let key = [role.namespace.as_str(), role.name.as_str()].map(Value::from);
                let Some(found) = find(conn, ROLE_GET, &key, self::role).await? else {
                    return insert_role(conn, clock, role).await;
                };
                let [namespace, name] = key;
                conn.execute(ROLE_UPDATE, &[namespace, name, Value::Text(joined(&role.permissions))]).await?;
                Ok(Role { permissions: role.permissions, ..found })
            })
        });
        ensured.await.map_err(|error| role_taken(error, id, namespace, name))
    }

    /// The role of that name in a namespace.
    pub async fn role_get(&self, namespace: &str, name: &str) -> Result<Option<Role>> {
        check_role_name(namespace, name)?;
        Ok(self.identity_rows(ROLE_GET, vec![namespace.into(), name.into()], role).await?.into_iter().next())
    }

    /// Roles of a namespace by id, from the first one at or after `pivot`.
    pub async fn role_list(&self, namespace: &str, pivot: &str, limit: usize) -> Result<Vec<Role>> {
        check_loose("the namespace", namespace)?;
        check_loose("the pivot", pivot)?;
        self.identity_rows(ROLE_LIST, vec![namespace.into(), pivot.into(), count(limit)], role).await
    }

    /// Replaces a role's permissions. Whether there is such a role.
    pub async fn role_update(&self, namespace: &str, name: &str, permissions: &[String]) -> Result<bool> {
        check_role_name(namespace, name)?;
        check_permissions(permissions)?;
        let params = vec![namespace.into(), name.into(), Value::Text(joined(permissions))];
        self.identity_execute(ROLE_UPDATE, params).await
    }

    /// Deletes a role that no binding gives to anybody.
    pub async fn role_delete(&self, namespace: &str, name: &str) -> Result<Removal> {
        check_role_name(namespace, name)?;
        let key = [namespace, name].map(Value::from);
        self.identity_change(move |conn| {
            Box::pin(async move {
                let Some(found) = find(conn, ROLE_GET, &key, role).await? else { return Ok(Removal::Missing) };
                let id = [Value::Text(found.id)];
                if find(conn, ROLE_BOUND, &id, |row| row.bool()).await?.unwrap_or(false) {
                    return Ok(Removal::InUse(Use::Bindings));
                }
                conn.execute(ROLE_DELETE, &id).await?;
                Ok(Removal::Done)
            })
        })
        .await
    }

    /// Gives a user a role in a namespace. `NotFound` when there is no such user or role, `AlreadyExists` when the user
    /// has the role there already.
    pub async fn binding_create(&self, id: &str, namespace: &str, user_id: &str, role_id: &str) -> Result<RoleBinding> {
        let mut binding = new_binding(id, namespace, user_id, role_id)?;
        let clock = self.clock().value();
        let created = self.identity_change(move |conn| {
            Box::pin(async move {
                check_parties(conn, &binding).await?;
                let rows = conn.query(ROLE_BINDING_CREATE, &binding_params(clock, &binding)).await?;
                binding.created_at = rows[0].fields(ROLE_BINDING_CREATE.name).int()?;
                Ok(binding)
            })
        });
        created.await.map_err(|error| {
            let message = format!(
                "user '{user_id}' has the role '{role_id}' in namespace '{namespace}' already (or id '{id}' is taken)"
            );
            taken(error, message)
        })
    }

    /// Gives a user a role in a namespace, if it does not have it there. `NotFound` when there is no such user or role.
    pub async fn binding_ensure(&self, id: &str, namespace: &str, user_id: &str, role_id: &str) -> Result<()> {
        let binding = new_binding(id, namespace, user_id, role_id)?;
        let clock = self.clock().value();
        let ensured = self.identity_change(move |conn| {
            Box::pin(async move {
                check_parties(conn, &binding).await?;
                conn.execute(ROLE_BINDING_ENSURE, &binding_params(clock, &binding)).await.map(drop)
            })
        });
        ensured.await.map_err(|error| taken(error, format!("a role binding with the id '{id}' already exists")))
    }

    /// Bindings of a namespace by id, from the first one at or after `pivot`, of one user or of all.
    pub async fn binding_list(
        &self,
        namespace: &str,
        user: Option<&str>,
        pivot: &str,
        limit: usize,
    ) -> Result<Vec<RoleBinding>> {
        check_loose("the namespace", namespace)?;
        check_loose("the user's id", user.unwrap_or_default())?;
        check_loose("the pivot", pivot)?;
        let params = vec![namespace.into(), pivot.into(), user.into(), count(limit)];
        self.identity_rows(ROLE_BINDING_LIST, params, binding).await
    }

    /// Takes a role from a user in a namespace. Whether the user had it there: of any number of callers who do this at
    /// once, one.
    pub async fn binding_delete(&self, namespace: &str, user_id: &str, role_id: &str) -> Result<bool> {
        check_loose("the namespace", namespace)?;
        check_loose("the user's id", user_id)?;
        check_loose("the role's id", role_id)?;
        self.identity_execute(ROLE_BINDING_DELETE, vec![namespace.into(), user_id.into(), role_id.into()]).await
    }

    /// What a user may do in a namespace: every permission of every role that it has there, once each, sorted.
    pub async fn permissions(&self, user_id: &str, namespace: &str) -> Result<Vec<String>> {
        check_loose("the user's id", user_id)?;
        check_loose("the namespace", namespace)?;
        let params = vec![user_id.into(), namespace.into()];
        let lists = self.identity_rows(ROLE_BINDING_PERMISSIONS, params, |row| row.text()).await?;
        let union: BTreeSet<String> = lists.iter().flat_map(|list| split(list)).collect();
        Ok(union.into_iter().collect())
    }
}

fn new_role(id: &str, namespace: &str, name: &str, permissions: &[String]) -> Result<Role> {
    check_name("the role's id", id)?;
    check_name("the namespace", namespace)?;
    check_name("the role's name", name)?;
    check_permissions(permissions)?;
    let (id, namespace, name) = (id.to_owned(), namespace.to_owned(), name.to_owned());
    Ok(Role { id, namespace, name, permissions: permissions.to_vec(), created_at: 0 })
}

fn new_binding(id: &str, namespace: &str, user_id: &str, role_id: &str) -> Result<RoleBinding> {
    check_name("the binding's id", id)?;
    check_name("the namespace", namespace)?;
    check_name("the user's id", user_id)?;
    check_name("the role's id", role_id)?;
    let (id, namespace, user_id) = (id.to_owned(), namespace.to_owned(), user_id.to_owned());
    Ok(RoleBinding { id, namespace, user_id, role_id: role_id.to_owned(), created_at: 0 })
}

fn check_role_name(namespace: &str, name: &str) -> Result<()> {
    check_loose("the namespace", namespace)?;
    check_loose("the role's name", name)
}

fn check_permissions(permissions: &[String]) -> Result<()> {
    for permission in permissions {
        check_name("a permission", permission)?;
        if permission.contains(',') {
            return Err(invalid(format!("the permission '{permission}' has a comma in it: give two permissions")));
        }
    }
    check_loose("the list of permissions", &joined(permissions))
}

fn joined(permissions: &[String]) -> String {
    permissions.join(",")
}

fn split(permissions: &str) -> impl Iterator<Item = String> {
    permissions.split(',').filter(|permission| !permission.is_empty()).map(str::to_owned)
}

async fn insert_role(conn: &mut Conn<'_>, clock: Value, mut role: Role) -> Result<Role> {
    let texts = [&role.id, &role.namespace, &role.name, &joined(&role.permissions)];
    let texts = texts.map(|text| Value::from(text.as_str()));
    let params: Vec<Value> = std::iter::once(clock).chain(texts).collect();
    let rows = conn.query(ROLE_CREATE, &params).await?;
    role.created_at = rows[0].fields(ROLE_CREATE.name).int()?;
    Ok(role)
}

fn role_taken(error: Error, id: &str, namespace: &str, name: &str) -> Error {
    let message =
        format!("a role named '{name}' already exists in namespace '{namespace}' (or the id '{id}' is taken)");
    taken(error, message)
}

fn binding_params(clock: Value, binding: &RoleBinding) -> Vec<Value> {
    let texts = [&binding.id, &binding.namespace, &binding.user_id, &binding.role_id];
    std::iter::once(clock).chain(texts.map(|text| Value::from(text.as_str()))).collect()
}

/// A binding of nobody, or of nothing, could never be taken away again: it is found by the role's name.
async fn check_parties(conn: &mut Conn<'_>, binding: &RoleBinding) -> Result<()> {
    let params = [binding.user_id.as_str(), binding.role_id.as_str()].map(Value::from);
    let found = find(conn, ROLE_BINDING_PARTIES, &params, |row| Ok((row.bool()?, row.bool()?))).await?;
    match found.unwrap_or_default() {
        (false, _) => Err(no_user(&binding.user_id)),
        (_, false) => {
            let message = format!("there is no role with the id '{}': create it first", binding.role_id);
            Err(Error::new(Kind::NotFound, message))
        }
        _ => Ok(()),
    }
}

fn role(row: &mut Fields<'_>) -> Result<Role> {
    let (id, namespace, name, permissions) = (row.text()?, row.text()?, row.text()?, row.text()?);
    Ok(Role { id, namespace, name, permissions: split(&permissions).collect(), created_at: row.int()? })
}

fn binding(row: &mut Fields<'_>) -> Result<RoleBinding> {
    let (id, namespace, user_id, role_id) = (row.text()?, row.text()?, row.text()?, row.text()?);
    Ok(RoleBinding { id, namespace, user_id, role_id, created_at: row.int()? })
}

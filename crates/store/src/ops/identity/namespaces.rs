//! Namespaces: created, changed, listed by name, deleted when nothing belongs to them any more.

use super::{check_loose, check_name, count, find, taken};
use crate::error::Result;
use crate::sql::*;
use crate::store::Store;
use crate::types::{Namespace, Removal, Use};
use crate::value::{Fields, Value};

impl Store {
    /// Creates a namespace. A name that is taken is `AlreadyExists`, and changes nothing.
    pub async fn namespace_create(&self, name: &str, description: &str, key_tag: &str) -> Result<Namespace> {
        check(name, description, key_tag)?;
        let (name, description, key_tag) = (name.to_owned(), description.to_owned(), key_tag.to_owned());
        let message = format!("a namespace named '{name}' already exists");
        let clock = self.clock().value();
        let created = self.identity_change(move |conn| {
            Box::pin(async move {
                let params = [clock, name.as_str().into(), description.as_str().into(), key_tag.as_str().into()];
                let rows = conn.query(NAMESPACE_CREATE, &params).await?;
                let created_at = rows[0].fields(NAMESPACE_CREATE.name).int()?;
                Ok(Namespace { name, description, key_tag, created_at })
            })
        });
        created.await.map_err(|error| taken(error, message))
    }

    /// Creates a namespace without description and tag, if there is none of that name.
    pub async fn namespace_ensure(&self, name: &str) -> Result<()> {
        check_name("the namespace's name", name)?;
        self.identity_execute(NAMESPACE_ENSURE, vec![self.clock().value(), name.into()]).await.map(drop)
    }

    /// The namespace of that name.
    pub async fn namespace_get(&self, name: &str) -> Result<Option<Namespace>> {
        check_loose("the namespace's name", name)?;
        let found = self.identity_rows(NAMESPACE_GET, vec![name.into()], namespace).await?;
        Ok(found.into_iter().next())
    }

    /// Replaces description and tag. Whether there is such a namespace.
    pub async fn namespace_update(&self, name: &str, description: &str, key_tag: &str) -> Result<bool> {
        check_loose("the namespace's name", name)?;
        check_loose("the description", description)?;
        check_loose("the key tag", key_tag)?;
        self.identity_execute(NAMESPACE_UPDATE, vec![name.into(), description.into(), key_tag.into()]).await
    }

    /// Namespaces by name, from the first one at or after `pivot`.
    pub async fn namespace_list(&self, pivot: &str, limit: usize) -> Result<Vec<Namespace>> {
        check_loose("the pivot", pivot)?;
        self.identity_rows(NAMESPACE_LIST, vec![pivot.into(), count(limit)], namespace).await
    }

    /// Deletes a namespace that has neither bindings nor roles nor queues; the answer names the first of these that is
    /// in the way. A queue that is created at this very moment may still be left without it.
    pub async fn namespace_delete(&self, name: &str) -> Result<Removal> {
        check_loose("the namespace's name", name)?;
        let params = [Value::from(name)];
        self.identity_change(move |conn| {
            Box::pin(async move {
                let uses = find(conn, NAMESPACE_USES, &params, removal).await?;
                let removal = uses.unwrap_or(Removal::Missing);
                if removal == Removal::Done {
                    conn.execute(NAMESPACE_DELETE, &params).await?;
                }
                Ok(removal)
            })
        })
        .await
    }
}

fn check(name: &str, description: &str, key_tag: &str) -> Result<()> {
    check_name("the namespace's name", name)?;
    check_loose("the description", description)?;
    check_loose("the key tag", key_tag)
}

fn namespace(row: &mut Fields<'_>) -> Result<Namespace> {
    let (name, description, key_tag, created_at) = (row.text()?, row.text()?, row.text()?, row.int()?);
    Ok(Namespace { name, description, key_tag, created_at })
}

/// What will become of a namespace that is to be deleted.
fn removal(row: &mut Fields<'_>) -> Result<Removal> {
    let (there, bindings, roles, queues) = (row.bool()?, row.bool()?, row.bool()?, row.bool()?);
    Ok(match (there, bindings, roles, queues) {
        (false, ..) => Removal::Missing,
        (_, true, ..) => Removal::InUse(Use::Bindings),
        (_, _, true, _) => Removal::InUse(Use::Roles),
        (.., true) => Removal::InUse(Use::Queues),
        _ => Removal::Done,
    })
}

//! Users and their keys. A user who goes takes keys and bindings along.

use super::{check_loose, check_name, count, find, no_user, taken};
use crate::db::Conn;
use crate::error::Result;
use crate::sql::*;
use crate::store::Store;
use crate::types::{ApiKey, NewApiKey, NewUser, User};
use crate::value::{Fields, Value};

impl Store {
    /// Creates a user. A username (or an id) that is taken is `AlreadyExists`, and changes nothing.
    pub async fn user_create(&self, user: NewUser) -> Result<User> {
        check_user(&user)?;
        let message = format!("the username '{}' is already taken (or the id '{}' is)", user.username, user.id);
        let clock = self.clock().value();
        let created = self.identity_change(move |conn| Box::pin(async move { insert_user(conn, clock, user).await }));
        created.await.map_err(|error| taken(error, message))
    }

    /// Creates a user if there is none of that id; one that is there stays as it is. `AlreadyExists` when another user
    /// has the username.
    pub async fn user_ensure(&self, user: NewUser) -> Result<()> {
        check_user(&user)?;
        let message = format!(
            "the username '{}' belongs to a user whose id is not '{}': delete that user first",
            user.username, user.id
        );
        let clock = self.clock().value();
        let ensured = self.identity_change(move |conn| {
            Box::pin(async move {
                if find(conn, USERS_GET, &[user.id.as_str().into()], self::user).await?.is_none() {
                    insert_user(conn, clock, user).await?;
                }
                Ok(())
            })
        });
        ensured.await.map_err(|error| taken(error, message))
    }

    /// The user of that id.
    pub async fn user_get(&self, id: &str) -> Result<Option<User>> {
        check_loose("the user's id", id)?;
        Ok(self.identity_rows(USERS_GET, vec![id.into()], user).await?.into_iter().next())
    }

    /// Users by id, from the first one at or after `pivot`.
    pub async fn user_list(&self, pivot: &str, limit: usize) -> Result<Vec<User>> {
        check_loose("the pivot", pivot)?;
        self.identity_rows(USERS_LIST, vec![pivot.into(), count(limit)], user).await
    }

    /// Deletes a user with every key and every binding it has. Whether there was one.
    pub async fn user_delete(&self, id: &str) -> Result<bool> {
        check_loose("the user's id", id)?;
        let params = [Value::from(id)];
        self.identity_change(move |conn| {
            Box::pin(async move {
                let found = conn.execute(USERS_DELETE, &params).await? > 0;
                conn.execute(USERS_DELETE_BINDINGS, &params).await?;
                conn.execute(USERS_DELETE_KEYS, &params).await?;
                Ok(found)
            })
        })
        .await
    }

    /// Creates a key of a user. `NotFound` when there is no such user, `AlreadyExists` when id or hash are taken.
    pub async fn api_key_create(&self, key: NewApiKey) -> Result<ApiKey> {
        check_name("the key's id", &key.id)?;
        check_name("the key's hash", &key.hash)?;
        check_name("the user's id", &key.user_id)?;
        check_loose("the scope", &key.scope)?;
        check_loose("the key's name", &key.name)?;
        check_loose("the key's prefix", &key.prefix)?;
        let message = format!("an API key with the id '{}' or the same hash already exists", key.id);
        let clock = self.clock().value();
        let created = self.identity_change(move |conn| Box::pin(async move { insert_key(conn, clock, key).await }));
        created.await.map_err(|error| taken(error, message))
    }

    /// The key of that hash; none when there is none, or its user is gone.
    pub async fn api_key_by_hash(&self, hash: &str) -> Result<Option<ApiKey>> {
        check_loose("the key's hash", hash)?;
        let params = vec![self.clock().value(), hash.into()];
        Ok(self.identity_rows(API_KEY_BY_HASH, params, api_key).await?.into_iter().next())
    }

    /// Keys by id, from the first one at or after `pivot`, of one user or of all.
    pub async fn api_key_list(&self, user: Option<&str>, pivot: &str, limit: usize) -> Result<Vec<ApiKey>> {
        check_loose("the user's id", user.unwrap_or_default())?;
        check_loose("the pivot", pivot)?;
        let params = vec![self.clock().value(), pivot.into(), user.into(), count(limit)];
        self.identity_rows(API_KEY_LIST, params, api_key).await
    }

    /// Deletes a key. Whether there was one.
    pub async fn api_key_delete(&self, id: &str) -> Result<bool> {
        check_loose("the key's id", id)?;
        self.identity_execute(API_KEY_DELETE, vec![id.into()]).await
    }

    /// Remembers that a key was used now. This is no change of identities: it raises no version and waits for nobody.
    pub async fn api_key_used(&self, id: &str) -> Result<()> {
        check_loose("the key's id", id)?;
        let params = [self.clock().value(), id.into()];
        self.db().write(move |conn| Box::pin(async move { conn.execute(API_KEY_USED, &params).await.map(drop) })).await
    }
}

fn check_user(user: &NewUser) -> Result<()> {
    check_name("the user's id", &user.id)?;
    check_name("the username", &user.username)?;
    check_loose("the external id", &user.external_id)?;
    check_loose("the email address", &user.email)
}

async fn insert_user(conn: &mut Conn<'_>, clock: Value, user: NewUser) -> Result<User> {
    let NewUser { id, username, external_id, email } = user;
    let texts = [&id, &username, &external_id, &email].map(|text| Value::from(text.as_str()));
    let params: Vec<Value> = std::iter::once(clock).chain(texts).collect();
    let rows = conn.query(USERS_CREATE, &params).await?;
    let mut row = rows[0].fields(USERS_CREATE.name);
    let (created_at, updated_at) = (row.int()?, row.int()?);
    Ok(User { id, username, external_id, email, created_at, updated_at })
}

async fn insert_key(conn: &mut Conn<'_>, clock: Value, key: NewApiKey) -> Result<ApiKey> {
    let NewApiKey { id, user_id, scope, name, prefix, hash, expires_at } = key;
    if find(conn, USERS_GET, &[user_id.as_str().into()], user).await?.is_none() {
        return Err(no_user(&user_id));
    }
    let texts = [&id, &user_id, &scope, &name, &prefix, &hash].map(|text| Value::from(text.as_str()));
    let params: Vec<Value> = std::iter::once(clock).chain(texts).chain([Value::from(expires_at)]).collect();
    let rows = conn.query(API_KEY_CREATE, &params).await?;
    let created_at = rows[0].fields(API_KEY_CREATE.name).int()?;
    let expired = expires_at.is_some_and(|end| end <= created_at);
    Ok(ApiKey { id, user_id, scope, name, prefix, hash, expires_at, last_used_at: None, created_at, expired })
}

fn user(row: &mut Fields<'_>) -> Result<User> {
    Ok(User {
        id: row.text()?,
        username: row.text()?,
        external_id: row.text()?,
        email: row.text()?,
        created_at: row.int()?,
        updated_at: row.int()?,
    })
}

fn api_key(row: &mut Fields<'_>) -> Result<ApiKey> {
    Ok(ApiKey {
        id: row.text()?,
        user_id: row.text()?,
        scope: row.text()?,
        name: row.text()?,
        prefix: row.text()?,
        hash: row.text()?,
        expires_at: row.int_or_null()?,
        last_used_at: row.int_or_null()?,
        created_at: row.int()?,
        expired: row.bool()?,
    })
}

//! `/v1/apikeys.*`: keys of users. Rights over them are rights in `_system`.
//!
//! Invariant: a key is told once, to whoever made it; what is stored and listed does not contain it.

use tenure_store::{Kind, Micros, NewApiKey, Store};

use super::namespaces::check_limit;
use super::users::{self, check_given, check_length};
use crate::auth::SYSTEM;
use crate::auth::key::{DEFAULT_TAG, check_tag, generate};
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::{
    ApiKeyCreateRequest, ApiKeyCreateResponse, ApiKeyMetadata, ApiKeysDeleteRequest, ApiKeysListRequest,
    ApiKeysListResponse, Reply, Timestamp, ksuid,
};

const MAX_NAME: usize = 128;

pub(crate) async fn create(call: &Call<'_>, request: ApiKeyCreateRequest) -> Answer<ApiKeyCreateResponse> {
    check(&request)?;
    call.authorize(SYSTEM).await?;
    let home = call.home().await?;
    if home.user_get(&request.user_id).await?.is_none() {
        return Err(users::missing(&request.user_id));
    }
    let key = generate(&tag(&home, &request).await?)?;
    let stored = NewApiKey {
        id: ksuid::random(),
        user_id: request.user_id.clone(),
        scope: request.namespace_scope,
        name: request.name,
        prefix: key.prefix.clone(),
        hash: key.hash,
        expires_at: request.expires_at.as_ref().and_then(end),
    };
    let created = home.api_key_create(stored).await.map_err(|error| match error.kind() {
        // Deleted since we looked.
        Kind::NotFound => users::missing(&request.user_id),
        _ => Fault::from(error),
    })?;
    call.service.auth.forget();
    Ok(ApiKeyCreateResponse { id: created.id, key: key.text, prefix: key.prefix })
}

/// Keys of one user, or of all.
pub(crate) async fn list(call: &Call<'_>, request: ApiKeysListRequest) -> Answer<ApiKeysListResponse> {
    let limit = check_limit(request.limit)?;
    call.authorize(SYSTEM).await?;
    let user = Some(request.user_id.as_str()).filter(|user| !user.is_empty());
    let keys = call.home().await?.api_key_list(user, &request.pivot, limit).await?;
    let items = keys.into_iter().map(|key| ApiKeyMetadata {
        id: key.id,
        user_id: key.user_id,
        namespace_scope: key.scope,
        name: key.name,
        prefix: key.prefix,
        expires_at: key.expires_at.map(Timestamp::from_micros),
        last_used_at: key.last_used_at.map(Timestamp::from_micros),
        created_at: Some(Timestamp::from_micros(key.created_at)),
    });
    Ok(ApiKeysListResponse { items: items.collect() })
}

/// Revokes a key: at once in this process, in others within seconds.
pub(crate) async fn delete(call: &Call<'_>, request: ApiKeysDeleteRequest) -> Answer<Reply> {
    call.authorize(SYSTEM).await?;
    if !call.home().await?.api_key_delete(&request.id).await? {
        return Err(Fault::unauthorized("api key does not exist"));
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

fn check(request: &ApiKeyCreateRequest) -> Answer<()> {
    check_given("user_id", &request.user_id)?;
    check_length("name", &request.name, MAX_NAME)?;
    check_tag("key_tag", &request.key_tag)
}

/// The tag of the request, else that of the namespace that the key is scoped to, which need not exist yet.
async fn tag(home: &Store, request: &ApiKeyCreateRequest) -> Answer<String> {
    if !request.key_tag.is_empty() {
        return Ok(request.key_tag.clone());
    }
    let namespace = match request.namespace_scope.as_str() {
        "" => None,
        scope => home.namespace_get(scope).await?,
    };
    let tag = namespace.map(|namespace| namespace.key_tag).filter(|tag| !tag.is_empty());
    Ok(tag.unwrap_or_else(|| DEFAULT_TAG.to_owned()))
}

/// When a key ends. Clients written in Go send the year 1 when they mean never.
fn end(at: &Timestamp) -> Option<Micros> {
    (*at != Timestamp::YEAR_ONE).then(|| at.to_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_key_is_made_of_is_checked_in_order() {
        let says = |user: &str, name: usize, tag: &str| {
            let request = ApiKeyCreateRequest {
                user_id: user.to_owned(),
                name: "n".repeat(name),
                key_tag: tag.to_owned(),
                ..ApiKeyCreateRequest::default()
            };
            check(&request).err().map(|fault| format!("{} {}", fault.code, fault.message))
        };
        let text = |text: &str| Some(format!("400 {text}"));
        assert_eq!(says("", 129, "NO"), text("user_id is invalid; cannot be empty"));
        assert_eq!(says("ann", 129, "NO"), text("name is invalid; cannot be greater than '128' characters"));
        assert_eq!(says("ann", 128, "NO"), text("key_tag is invalid; must be lowercase alphanumeric only"));
        let long = text("key_tag is invalid; cannot be greater than 16 characters");
        assert_eq!(says("ann", 0, "0123456789abcdef0"), long);
        assert_eq!(says("ann", 0, ""), None);
    }

    #[test]
    fn a_key_that_ends_in_the_year_one_never_ends_and_any_other_past_is_taken_at_its_word() {
        assert_eq!(end(&Timestamp::YEAR_ONE), None);
        assert_eq!(end(&Timestamp { seconds: 1, nanos: 500_000_000 }), Some(1_500_000));
    }
}

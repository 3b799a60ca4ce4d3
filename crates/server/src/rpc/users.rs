//! `/v1/users.*`: who owns keys and is bound to roles. Rights over users are rights in `_system`.

use tenure_store::{Kind, NewUser};

use super::namespaces::check_limit;
use crate::auth::SYSTEM;
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::{
    Reply, Timestamp, User, UserCreateRequest, UserCreateResponse, UsersDeleteRequest, UsersListRequest,
    UsersListResponse, ksuid,
};

const MAX_USERNAME: usize = 128;
const MAX_EMAIL: usize = 256;
const MAX_EXTERNAL_ID: usize = 256;

pub(crate) async fn create(call: &Call<'_>, request: UserCreateRequest) -> Answer<UserCreateResponse> {
    check(&request)?;
    call.authorize(SYSTEM).await?;
    let UserCreateRequest { username, email, external_id } = request;
    let taken = format!("username is already taken; '{username}' is already taken");
    let created = call.home().await?.user_create(NewUser { id: ksuid::random(), username, external_id, email }).await;
    let user = created.map_err(|error| match error.kind() {
        Kind::AlreadyExists => Fault::bad(taken),
        _ => Fault::from(error),
    })?;
    call.service.auth.forget();
    Ok(UserCreateResponse { id: user.id })
}

pub(crate) async fn list(call: &Call<'_>, request: UsersListRequest) -> Answer<UsersListResponse> {
    let limit = check_limit(request.limit)?;
    call.authorize(SYSTEM).await?;
    let users = call.home().await?.user_list(&request.pivot, limit).await?;
    let items = users.into_iter().map(|user| User {
        id: user.id,
        username: user.username,
        external_id: user.external_id,
        email: user.email,
        created_at: Some(Timestamp::from_micros(user.created_at)),
        updated_at: Some(Timestamp::from_micros(user.updated_at)),
    });
    Ok(UsersListResponse { items: items.collect() })
}

/// Deletes a user with all their bindings and keys.
pub(crate) async fn delete(call: &Call<'_>, request: UsersDeleteRequest) -> Answer<Reply> {
    call.authorize(SYSTEM).await?;
    if !call.home().await?.user_delete(&request.id).await? {
        return Err(missing(&request.id));
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

fn check(request: &UserCreateRequest) -> Answer<()> {
    check_length("username", &request.username, MAX_USERNAME)?;
    check_given("username", &request.username)?;
    check_length("email", &request.email, MAX_EMAIL)?;
    check_length("external_id", &request.external_id, MAX_EXTERNAL_ID)
}

/// Refuses more than `most` bytes in the field of that name on the wire.
pub(super) fn check_length(field: &str, text: &str, most: usize) -> Answer<()> {
    if text.len() > most {
        return Err(Fault::bad(format!("{field} is invalid; cannot be greater than '{most}' characters")));
    }
    Ok(())
}

/// Refuses a blank in the field of that name on the wire.
pub(super) fn check_given(field: &str, text: &str) -> Answer<()> {
    if text.trim().is_empty() {
        return Err(Fault::bad(format!("{field} is invalid; cannot be empty")));
    }
    Ok(())
}

/// There is no user with that id.
pub(super) fn missing(id: &str) -> Fault {
    Fault::failed(format!("user does not exist; '{id}' was not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(username: &str, email: usize, external_id: usize) -> Option<String> {
        let (email, external_id) = ("e".repeat(email), "x".repeat(external_id));
        let request = UserCreateRequest { username: username.to_owned(), email, external_id };
        check(&request).err().map(|fault| format!("{} {}", fault.code, fault.message))
    }

    #[test]
    fn what_a_user_is_made_of_has_limits_that_are_checked_in_order() {
        let text = |text: &str| Some(format!("400 {text}"));
        let long = " ".repeat(129);
        assert_eq!(says(&long, 999, 999), text("username is invalid; cannot be greater than '128' characters"));
        assert_eq!(says("", 999, 999), text("username is invalid; cannot be empty"));
        assert_eq!(says("ann", 257, 257), text("email is invalid; cannot be greater than '256' characters"));
        assert_eq!(says("ann", 256, 257), text("external_id is invalid; cannot be greater than '256' characters"));
        assert_eq!(says(&"a".repeat(128), 256, 256), None);
    }
}

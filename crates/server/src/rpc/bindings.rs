//! `/v1/rolebindings.*`: who has which role, in the namespace of the role. Rights over bindings are rights there.

use tenure_store::Kind;

use super::namespaces::check_limit;
use super::roles::{self, check_no_colon};
use super::users::{self, check_given};
use crate::auth::or_system;
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::{
    Reply, RoleBinding, RoleBindingCreateRequest, RoleBindingCreateResponse, RoleBindingDeleteRequest,
    RoleBindingsListRequest, RoleBindingsListResponse, Timestamp, ksuid,
};

pub(crate) async fn create(call: &Call<'_>, request: RoleBindingCreateRequest) -> Answer<RoleBindingCreateResponse> {
    let RoleBindingCreateRequest { namespace, role_name, user_id } = &request;
    check(&request)?;
    call.authorize(namespace).await?;
    let home = call.home().await?;
    let Some(role) = home.role_get(namespace, role_name).await? else {
        return Err(roles::missing(namespace, role_name));
    };
    if home.user_get(user_id).await?.is_none() {
        return Err(users::missing(user_id));
    }
    let created = home.binding_create(&ksuid::random(), namespace, user_id, &role.id).await;
    let binding = created.map_err(|error| match error.kind() {
        Kind::AlreadyExists => {
            let binding = format!("binding for user '{user_id}' to role '{}' in namespace '{namespace}'", role.id);
            Fault::bad(format!("role binding already exists; {binding} already exists"))
        }
        // The user or the role was deleted since we looked: the next try tells which.
        Kind::NotFound => Fault::retry("internal error, try your request again"),
        _ => Fault::from(error),
    })?;
    call.service.auth.forget();
    Ok(RoleBindingCreateResponse { id: binding.id })
}

/// Bindings of one user, or of all.
pub(crate) async fn list(call: &Call<'_>, request: RoleBindingsListRequest) -> Answer<RoleBindingsListResponse> {
    let limit = check_limit(request.limit)?;
    let namespace = or_system(&request.namespace);
    call.authorize(namespace).await?;
    let user = Some(request.user_id_filter.as_str()).filter(|user| !user.is_empty());
    let bindings = call.home().await?.binding_list(namespace, user, &request.pivot, limit).await?;
    let items = bindings.into_iter().map(|binding| RoleBinding {
        id: binding.id,
        namespace: binding.namespace,
        user_id: binding.user_id,
        role_id: binding.role_id,
        created_at: Some(Timestamp::from_micros(binding.created_at)),
    });
    Ok(RoleBindingsListResponse { items: items.collect() })
}

pub(crate) async fn delete(call: &Call<'_>, request: RoleBindingDeleteRequest) -> Answer<Reply> {
    let RoleBindingDeleteRequest { namespace, role_name, user_id } = &request;
    let namespace = or_system(namespace);
    call.authorize(namespace).await?;
    let home = call.home().await?;
    let Some(role) = home.role_get(namespace, role_name).await? else {
        return Err(roles::missing(namespace, role_name));
    };
    if !home.binding_delete(namespace, user_id, &role.id).await? {
        let binding = format!("'{namespace}:{user_id}:{}'", role.id);
        return Err(Fault::failed(format!("role binding does not exist; {binding} was not found")));
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

fn check(request: &RoleBindingCreateRequest) -> Answer<()> {
    check_given("namespace", &request.namespace)?;
    check_given("role_name", &request.role_name)?;
    check_given("user_id", &request.user_id)?;
    check_no_colon("user_id", &request.user_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_binding_is_made_of_is_checked_in_order() {
        let says = |namespace: &str, role: &str, user: &str| {
            let (namespace, role_name, user_id) = (namespace.to_owned(), role.to_owned(), user.to_owned());
            let answer = check(&RoleBindingCreateRequest { namespace, role_name, user_id });
            answer.err().map(|fault| format!("{} {}", fault.code, fault.message))
        };
        let text = |text: &str| Some(format!("400 {text}"));
        assert_eq!(says("", "", ""), text("namespace is invalid; cannot be empty"));
        assert_eq!(says("mail", "", ""), text("role_name is invalid; cannot be empty"));
        assert_eq!(says("mail", "reader", ""), text("user_id is invalid; cannot be empty"));
        assert_eq!(says("mail", "reader", "a:b"), text("user_id is invalid; 'a:b' cannot contain ':' character"));
        assert_eq!(says("mail", "reader", "ann"), None);
    }
}

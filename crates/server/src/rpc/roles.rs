//! `/v1/roles.*`: named sets of permissions in a namespace. Rights over a role are rights in its namespace.

use tenure_store::{Kind, Removal};

use super::namespaces::{self, check_limit};
use super::users::{check_given, check_length};
use crate::auth::{Permission, is_standard_role, or_system};
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::{
    Reply, Role, RoleCreateRequest, RoleCreateResponse, RoleUpdateRequest, RolesDeleteRequest, RolesListRequest,
    RolesListResponse, Timestamp, ksuid,
};

const MAX_NAME: usize = 128;

pub(crate) async fn create(call: &Call<'_>, request: RoleCreateRequest) -> Answer<RoleCreateResponse> {
    let RoleCreateRequest { namespace, name, permissions } = &request;
    check(namespace, name, permissions)?;
    // Before anything is looked up: who may not ask is not told which namespaces there are.
    call.authorize(namespace).await?;
    check_not_standard(name)?;
    let home = call.home().await?;
    if home.namespace_get(namespace).await?.is_none() {
        return Err(namespaces::missing(namespace));
    }
    let created = home.role_create(&ksuid::random(), namespace, name, permissions).await;
    let role = created.map_err(|error| match error.kind() {
        Kind::AlreadyExists => Fault::bad(format!("role already exists; '{namespace}:{name}' already exists")),
        _ => Fault::from(error),
    })?;
    call.service.auth.forget();
    Ok(RoleCreateResponse { id: role.id })
}

pub(crate) async fn list(call: &Call<'_>, request: RolesListRequest) -> Answer<RolesListResponse> {
    let limit = check_limit(request.limit)?;
    let namespace = or_system(&request.namespace);
    call.authorize(namespace).await?;
    let roles = call.home().await?.role_list(namespace, &request.pivot, limit).await?;
    let items = roles.into_iter().map(|role| Role {
        id: role.id,
        namespace: role.namespace,
        name: role.name,
        permissions: role.permissions,
        created_at: Some(Timestamp::from_micros(role.created_at)),
    });
    Ok(RolesListResponse { items: items.collect() })
}

/// Replaces the permissions.
pub(crate) async fn update(call: &Call<'_>, request: RoleUpdateRequest) -> Answer<Reply> {
    let RoleUpdateRequest { namespace, name, permissions } = &request;
    check(namespace, name, permissions)?;
    call.authorize(namespace).await?;
    let home = call.home().await?;
    if home.role_get(namespace, name).await?.is_none() {
        return Err(missing(namespace, name));
    }
    check_not_standard(name)?;
    if !home.role_update(namespace, name, permissions).await? {
        return Err(missing(namespace, name));
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

pub(crate) async fn delete(call: &Call<'_>, request: RolesDeleteRequest) -> Answer<Reply> {
    let (namespace, name) = (or_system(&request.namespace), &request.name);
    call.authorize(namespace).await?;
    let home = call.home().await?;
    if home.role_get(namespace, name).await?.is_none() {
        return Err(missing(namespace, name));
    }
    check_not_standard(name)?;
    match home.role_delete(namespace, name).await? {
        Removal::Done => {}
        Removal::Missing => return Err(missing(namespace, name)),
        Removal::InUse(_) => {
            let text = format!("role has active bindings; '{name}' has active bindings, delete bindings first");
            return Err(Fault::bad(text));
        }
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

fn check(namespace: &str, name: &str, permissions: &[String]) -> Answer<()> {
    check_given("namespace", namespace)?;
    check_given("name", name)?;
    check_length("name", name, MAX_NAME)?;
    check_no_colon("name", name)?;
    match permissions.iter().find(|permission| Permission::parse(permission).is_none()) {
        Some(unknown) => Err(Fault::bad(format!("permission is invalid; '{unknown}' is not a recognized permission"))),
        None => Ok(()),
    }
}

/// Refuses a colon in the field of that name on the wire.
pub(super) fn check_no_colon(field: &str, text: &str) -> Answer<()> {
    if text.contains(':') {
        return Err(Fault::bad(format!("{field} is invalid; '{text}' cannot contain ':' character")));
    }
    Ok(())
}

fn check_not_standard(name: &str) -> Answer<()> {
    if is_standard_role(name) {
        let text = format!("cannot modify or delete standard role; '{name}' is a standard role");
        return Err(Fault::bad(text));
    }
    Ok(())
}

/// There is no role of that name in the namespace.
pub(super) fn missing(namespace: &str, name: &str) -> Fault {
    Fault::failed(format!("role does not exist; '{namespace}:{name}' was not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(answer: Answer<()>) -> Option<String> {
        answer.err().map(|fault| format!("{} {}", fault.code, fault.message))
    }

    #[test]
    fn what_a_role_is_made_of_is_checked_in_order() {
        let bad = ["queue.fly".to_owned()];
        let text = |text: &str| Some(format!("400 {text}"));
        let long = ":".repeat(129);
        assert_eq!(says(check("", "", &bad)), text("namespace is invalid; cannot be empty"));
        assert_eq!(says(check("mail", "", &bad)), text("name is invalid; cannot be empty"));
        assert_eq!(says(check("mail", &long, &bad)), text("name is invalid; cannot be greater than '128' characters"));
        assert_eq!(says(check("mail", "a:b", &bad)), text("name is invalid; 'a:b' cannot contain ':' character"));
        let unknown = "permission is invalid; 'queue.fly' is not a recognized permission";
        assert_eq!(says(check("mail", "reader", &bad)), text(unknown));
        assert_eq!(says(check("mail", "reader", &["queue.list".to_owned()])), None);
        assert_eq!(says(check("mail", "nobody", &[])), None);
    }

    #[test]
    fn standard_roles_are_nobodys_to_change() {
        let text = "400 cannot modify or delete standard role; 'Admin' is a standard role";
        assert_eq!(says(check_not_standard("Admin")), Some(text.to_owned()));
        assert_eq!(says(check_not_standard("admin")), None);
    }
}

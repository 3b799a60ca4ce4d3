//! `/v1/namespaces.*`: namespaces hold queues, roles and bindings. Rights over them are rights in `_system`.

use tenure_store::{Kind, Removal, Use};

use crate::auth::{SYSTEM, key};
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::{
    NamespaceInfo, NamespacesDeleteRequest, NamespacesListRequest, NamespacesListResponse, Reply, Timestamp,
};

const MAX_NAME: usize = 256;
/// How many entries a list has when no limit is given.
const DEFAULT_LIMIT: usize = 1000;

pub(crate) async fn create(call: &Call<'_>, request: NamespaceInfo) -> Answer<Reply> {
    check(&request)?;
    call.authorize(SYSTEM).await?;
    check_not_reserved(&request.name)?;
    let name = &request.name;
    let created = call.home().await?.namespace_create(name, &request.description, &request.api_key_tag).await;
    created.map_err(|error| match error.kind() {
        Kind::AlreadyExists => Fault::bad(format!("namespace already exists; '{name}' already exists")),
        _ => Fault::from(error),
    })?;
    call.service.auth.forget();
    Ok(Reply::ok())
}

/// Replaces the description and the tag; what is left out is cleared.
pub(crate) async fn update(call: &Call<'_>, request: NamespaceInfo) -> Answer<Reply> {
    check(&request)?;
    call.authorize(SYSTEM).await?;
    check_not_reserved(&request.name)?;
    let home = call.home().await?;
    if !home.namespace_update(&request.name, &request.description, &request.api_key_tag).await? {
        return Err(missing(&request.name));
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

pub(crate) async fn list(call: &Call<'_>, request: NamespacesListRequest) -> Answer<NamespacesListResponse> {
    let limit = check_limit(request.limit)?;
    call.authorize(SYSTEM).await?;
    let namespaces = call.home().await?.namespace_list(&request.pivot, limit).await?;
    let items = namespaces.into_iter().map(|namespace| NamespaceInfo {
        name: namespace.name,
        description: namespace.description,
        created_at: Some(Timestamp::from_micros(namespace.created_at)),
        api_key_tag: namespace.key_tag,
    });
    Ok(NamespacesListResponse { items: items.collect() })
}

pub(crate) async fn delete(call: &Call<'_>, request: NamespacesDeleteRequest) -> Answer<Reply> {
    let name = &request.name;
    check_name(name)?;
    call.authorize(SYSTEM).await?;
    check_not_reserved(name)?;
    let in_use = |what: &str| Fault::bad(format!("namespace has {what}; '{name}' has {what}, delete {what} first"));
    match call.home().await?.namespace_delete(name).await? {
        Removal::Done => {}
        Removal::Missing => return Err(missing(name)),
        Removal::InUse(Use::Bindings) => return Err(in_use("role bindings")),
        Removal::InUse(Use::Roles) => return Err(in_use("roles")),
        Removal::InUse(Use::Queues) => return Err(in_use("queues")),
    }
    call.service.auth.forget();
    Ok(Reply::ok())
}

fn check(namespace: &NamespaceInfo) -> Answer<()> {
    check_name(&namespace.name)?;
    key::check_tag("api_key_tag", &namespace.api_key_tag)
}

/// Refuses what cannot be the name of a namespace, whether or not there is one.
pub(crate) fn check_name(name: &str) -> Answer<()> {
    let reason = if name.len() > MAX_NAME {
        format!("cannot be greater than '{MAX_NAME}' characters")
    } else if name.trim().is_empty() {
        "cannot be empty".to_owned()
    } else if name.contains(char::is_whitespace) {
        format!("'{name}' cannot contain whitespace")
    } else if let Some(found) = ['~', ':'].into_iter().find(|no| name.contains(*no)) {
        format!("'{name}' cannot contain '{found}' character")
    } else {
        return Ok(());
    };
    Err(Fault::bad(format!("namespace name is invalid; {reason}")))
}

/// Callers must have been authorised before they are told.
fn check_not_reserved(name: &str) -> Answer<()> {
    if name.starts_with('_') {
        let text = format!("namespace name is reserved; '{name}' names starting with '_' are reserved");
        return Err(Fault::bad(text));
    }
    Ok(())
}

/// The length of a list: 1000 unless the request says otherwise.
pub(crate) fn check_limit(limit: i32) -> Answer<usize> {
    match usize::try_from(limit) {
        Ok(0) => Ok(DEFAULT_LIMIT),
        Ok(limit) => Ok(limit),
        Err(_) => Err(Fault::bad("limit is invalid; limit cannot be negative")),
    }
}

/// There is no namespace of that name.
pub(crate) fn missing(name: &str) -> Fault {
    Fault::failed(format!("namespace does not exist; '{name}' was not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(answer: Answer<()>) -> Option<(u16, String)> {
        answer.err().map(|fault| (fault.code, fault.message))
    }

    #[test]
    fn a_name_that_breaks_several_rules_is_refused_for_the_first_of_them() {
        let long = " ~:".repeat(86);
        for (name, reason) in [
            (long.as_str(), "cannot be greater than '256' characters"),
            ("", "cannot be empty"),
            (" \u{2003}\t", "cannot be empty"),
            ("a b~:", "'a b~:' cannot contain whitespace"),
            (":a~", "':a~' cannot contain '~' character"),
            ("a:", "'a:' cannot contain ':' character"),
        ] {
            assert_eq!(says(check_name(name)), Some((400, format!("namespace name is invalid; {reason}"))));
        }
        assert_eq!(says(check_name(&"é".repeat(128))), None);
        assert_eq!(says(check_name("_system")), None);
    }

    #[test]
    fn names_that_begin_with_an_underscore_are_ours() {
        let text = "namespace name is reserved; '_mail' names starting with '_' are reserved";
        assert_eq!(says(check_not_reserved("_mail")), Some((400, text.to_owned())));
        assert_eq!(says(check_not_reserved("mail_")), None);
    }

    #[test]
    fn the_name_is_looked_at_before_the_tag() {
        let namespace = |name: &str, tag: &str| NamespaceInfo {
            name: name.to_owned(),
            api_key_tag: tag.to_owned(),
            ..NamespaceInfo::default()
        };
        let name = "namespace name is invalid; cannot be empty";
        assert_eq!(says(check(&namespace("", "NO"))), Some((400, name.to_owned())));
        let tag = "api_key_tag is invalid; must be lowercase alphanumeric only";
        assert_eq!(says(check(&namespace("mail", "NO"))), Some((400, tag.to_owned())));
        assert_eq!(says(check(&namespace("mail", "prod1"))), None);
    }

    #[test]
    fn a_list_has_a_thousand_entries_unless_told_otherwise() {
        assert_eq!(check_limit(0).ok(), Some(1000));
        assert_eq!(check_limit(1).ok(), Some(1));
        assert_eq!(check_limit(i32::MAX).ok(), Some(i32::MAX as usize));
        let negative = (400, "limit is invalid; limit cannot be negative".to_owned());
        assert_eq!(says(check_limit(-1).map(drop)), Some(negative));
    }
}

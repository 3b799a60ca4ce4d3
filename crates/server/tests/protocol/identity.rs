//! Namespaces, users, API keys, roles and bindings: every message in the order of the checks, where everybody may do
//! everything. What callers may not do is told in `access`.

use serde_json::{Value, json};

use crate::support::api::{Api, Ladder};
use crate::support::queue::{list, settings};
use crate::support::text::{SECOND, nanos, now, text};
use crate::support::{Backend, Place, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "identity", &["--test-hooks"])
}

fn name(value: &Value) -> String {
    text(value, "name")
}

async fn namespace(api: &Api, tag: &str) -> String {
    let name = unique("space");
    api.done("namespaces.create", &json!({ "name": name, "api_key_tag": tag })).await;
    name
}

/// The user's id.
async fn user(api: &Api) -> String {
    text(&api.ok("users.create", &json!({ "username": unique("user") })).await, "id")
}

/// The role's id and name.
async fn role(api: &Api, namespace: &str) -> (String, String) {
    let name = unique("role");
    let request = json!({ "namespace": namespace, "name": name, "permissions": ["queue.list"] });
    (text(&api.ok("roles.create", &request).await, "id"), name)
}

fn missing_namespace(name: &str) -> String {
    format!("namespace does not exist; '{name}' was not found")
}

/// What holds for names of namespaces, wherever they are given one.
async fn namespace_steps(ladder: &mut Ladder<'_>) {
    let too_long = "namespace name is invalid; cannot be greater than '256' characters";
    ladder.step("name", "n".repeat(257), too_long).await;
    ladder.step("name", "", "namespace name is invalid; cannot be empty").await;
    ladder.step("name", " \u{a0}", "namespace name is invalid; cannot be empty").await;
    ladder.step("name", "a b~:", "namespace name is invalid; 'a b~:' cannot contain whitespace").await;
    ladder.step("name", "a~:", "namespace name is invalid; 'a~:' cannot contain '~' character").await;
    ladder.step("name", "a:", "namespace name is invalid; 'a:' cannot contain ':' character").await;
}

pub(crate) async fn namespaces_are_created_and_changed_in_the_order_of_the_checks(backend: Backend) {
    let api = &api(backend);
    let (taken, fresh) = (namespace(api, "").await, unique("space"));
    for rpc in ["namespaces.create", "namespaces.update"] {
        let mut ladder = Ladder::new(api, rpc, json!({ "api_key_tag": "T".repeat(17) }));
        namespace_steps(&mut ladder).await;
        let message = "api_key_tag is invalid; cannot be greater than 16 characters";
        ladder.step("name", "_mine", message).await;
        for tag in ["Live", "a-b", "ü"] {
            let message = "api_key_tag is invalid; must be lowercase alphanumeric only";
            ladder.step("api_key_tag", tag, message).await;
        }
        let message = "namespace name is reserved; '_mine' names starting with '_' are reserved";
        ladder.step("api_key_tag", "t".repeat(16), message).await;
        if rpc == "namespaces.create" {
            let message = format!("namespace already exists; '{taken}' already exists");
            ladder.step("name", taken.as_str(), &message).await;
            ladder.end("name", fresh.as_str()).await;
        } else {
            let missing = unique("missing");
            let message = missing_namespace(&missing);
            ladder.step_with("name", missing, 453, &message).await;
            ladder.end("name", taken.as_str()).await;
        }
    }
}

pub(crate) async fn an_update_replaces_what_is_said_about_a_namespace(backend: Backend) {
    let api = &api(backend);
    let name = unique("space");
    let request = json!({ "name": name, "description": "old ü", "api_key_tag": "tag1" });
    api.done("namespaces.create", &request).await;
    let shown = async || list(&api.ok("namespaces.list", &json!({ "pivot": name, "limit": 1 })).await).remove(0);
    let before = shown().await;
    assert_eq!((&before["description"], &before["api_key_tag"]), (&json!("old ü"), &json!("tag1")));
    assert!((nanos(&before["created_at"]) - now()).abs() < 600 * SECOND);
    api.done("namespaces.update", &json!({ "name": name, "description": "new" })).await;
    assert_eq!(shown().await, json!({ "name": name, "description": "new", "created_at": before["created_at"] }));
    api.done("namespaces.update", &json!({ "name": name })).await;
    assert_eq!(shown().await, json!({ "name": name, "created_at": before["created_at"] }));
}

pub(crate) async fn namespaces_are_listed_by_name_from_the_pivot(backend: Backend) {
    let api = &api(backend);
    let prefix = unique("list");
    for letter in ["c", "a", "b"] {
        api.done("namespaces.create", &json!({ "name": format!("{prefix}-{letter}") })).await;
    }
    let listed = async |pivot: &str, limit: i64| {
        let answer = api.ok("namespaces.list", &json!({ "pivot": pivot, "limit": limit })).await;
        list(&answer).iter().map(name).collect::<Vec<_>>()
    };
    let [a, b, c] = ["a", "b", "c"].map(|letter| format!("{prefix}-{letter}"));
    assert_eq!(listed(&a, 2).await, [a.as_str(), b.as_str()]);
    assert_eq!(listed(&format!("{prefix}-bb"), 1).await, [c.as_str()]);
    assert!(listed("\u{10FFFF}", 0).await.is_empty());
    assert!(listed("", 0).await.contains(&"_system".to_owned()), "it is always there");
}

pub(crate) async fn a_namespace_is_deleted_when_nothing_is_left_in_it(backend: Backend) {
    let api = &api(backend);
    let (space, user) = (namespace(api, "").await, user(api).await);
    let (_, role) = role(api, &space).await;
    let queue = unique("queue");
    api.done("queues.create", &settings(&queue, &json!({ "namespace": space }))).await;
    let binding = json!({ "namespace": space, "role_name": role, "user_id": user });
    api.ok("rolebindings.create", &binding).await;

    let delete = json!({ "name": space });
    let message = format!("namespace has role bindings; '{space}' has role bindings, delete role bindings first");
    api.bad("namespaces.delete", &delete, &message).await;
    api.done("rolebindings.delete", &binding).await;
    let message = format!("namespace has roles; '{space}' has roles, delete roles first");
    api.bad("namespaces.delete", &delete, &message).await;
    api.done("roles.delete", &json!({ "namespace": space, "name": role })).await;
    let message = format!("namespace has queues; '{space}' has queues, delete queues first");
    api.bad("namespaces.delete", &delete, &message).await;
    api.done("queues.delete", &json!({ "queue_name": queue })).await;
    api.done("namespaces.delete", &delete).await;

    api.refused("namespaces.delete", &delete, 453, &missing_namespace(&space)).await;
    let message = "namespace name is reserved; '_system' names starting with '_' are reserved";
    api.bad("namespaces.delete", &json!({ "name": "_system" }), message).await;
}

pub(crate) async fn users_are_created_in_the_order_of_the_checks(backend: Backend) {
    let api = &api(backend);
    let username = unique("user");
    let request = json!({ "email": "e".repeat(257), "external_id": "x".repeat(257) });
    let mut ladder = Ladder::new(api, "users.create", request);
    let message = "username is invalid; cannot be greater than '128' characters";
    ladder.step("username", "u".repeat(129), message).await;
    ladder.step("username", " ", "username is invalid; cannot be empty").await;
    let message = "email is invalid; cannot be greater than '256' characters";
    ladder.step("username", username.as_str(), message).await;
    let message = "external_id is invalid; cannot be greater than '256' characters";
    ladder.step("email", "e".repeat(256), message).await;
    let id = text(&ladder.end("external_id", "x".repeat(256)).await, "id");
    assert_eq!(id.len(), 27, "{id}");
    let message = format!("username is already taken; '{username}' is already taken");
    api.bad("users.create", &json!({ "username": username }), &message).await;

    let found = list(&api.ok("users.list", &json!({ "pivot": id, "limit": 1 })).await).remove(0);
    assert_eq!((text(&found, "id"), text(&found, "username")), (id.clone(), username));
    assert_eq!((text(&found, "email").len(), text(&found, "external_id").len()), (256, 256));
    assert!(nanos(&found["created_at"]) == nanos(&found["updated_at"]), "{found}");
    api.done("users.delete", &json!({ "id": id })).await;
    let message = format!("user does not exist; '{id}' was not found");
    api.refused("users.delete", &json!({ "id": id }), 453, &message).await;
}

pub(crate) async fn without_authentication_there_are_only_the_users_that_were_created(backend: Backend) {
    let place = Place::new(backend);
    let server = place.start(&[]);
    let api = &server.api();
    assert_eq!(api.ok("users.list", &json!({})).await, json!({}));
    assert_eq!(api.ok("roles.list", &json!({})).await, json!({}));
    let spaces = list(&api.ok("namespaces.list", &json!({})).await);
    assert_eq!(spaces.iter().map(name).collect::<Vec<_>>(), ["_system"]);
    let mut ids = vec![user(api).await, user(api).await, user(api).await];
    ids.sort_unstable();
    let listed = async |request: Value| {
        let users = list(&api.ok("users.list", &request).await);
        users.iter().map(|user| text(user, "id")).collect::<Vec<_>>()
    };
    assert_eq!(listed(json!({})).await, ids, "in the order of their ids");
    assert_eq!(listed(json!({ "pivot": ids[1] })).await, ids[1..], "from the pivot on");
    assert_eq!(listed(json!({ "limit": 2 })).await, ids[..2]);
    assert!(listed(json!({ "pivot": "zzz" })).await.is_empty());
}

pub(crate) async fn keys_are_created_in_the_order_of_the_checks(backend: Backend) {
    let api = &api(backend);
    let (owner, missing) = (user(api).await, unique("missing"));
    let request = json!({ "name": "n".repeat(129), "key_tag": "T".repeat(17) });
    let mut ladder = Ladder::new(api, "apikeys.create", request);
    ladder.step("user_id", "", "user_id is invalid; cannot be empty").await;
    let message = "name is invalid; cannot be greater than '128' characters";
    ladder.step("user_id", missing.as_str(), message).await;
    ladder.step("name", "n".repeat(128), "key_tag is invalid; cannot be greater than 16 characters").await;
    ladder.step("key_tag", "T", "key_tag is invalid; must be lowercase alphanumeric only").await;
    let message = format!("user does not exist; '{missing}' was not found");
    ladder.step_with("key_tag", "t", 453, &message).await;
    let created = ladder.end("user_id", owner.as_str()).await;
    assert!(text(&created, "key").starts_with("qtr-t-"), "{created}");
    let id = text(&created, "id");
    api.done("apikeys.delete", &json!({ "id": id })).await;
    api.refused("apikeys.delete", &json!({ "id": id }), 401, "api key does not exist").await;
}

pub(crate) async fn a_key_is_shown_once_and_carries_a_tag(backend: Backend) {
    let api = &api(backend);
    let (owner, tagged, plain) = (user(api).await, namespace(api, "prod7").await, namespace(api, "").await);
    for (mut request, tag) in [
        (json!({}), "live"),
        (json!({ "namespace_scope": plain }), "live"),
        (json!({ "namespace_scope": tagged }), "prod7"),
        (json!({ "namespace_scope": tagged, "key_tag": "mine" }), "mine"),
        (json!({ "namespace_scope": unique("missing") }), "live"),
        (json!({ "expires_at": "2001-01-01T00:00:00Z", "name": "old" }), "live"),
    ] {
        request["user_id"] = owner.clone().into();
        let created = api.ok("apikeys.create", &request).await;
        let (key, prefix) = (text(&created, "key"), text(&created, "prefix"));
        let secret = key.strip_prefix(&format!("qtr-{tag}-")).unwrap_or_else(|| panic!("{key} is not tagged {tag}"));
        assert!(secret.len() == 43 && secret.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{key}");
        assert_eq!(prefix, format!("qtr-{tag}-{}", &secret[..8]));
        let answer = api.ok("apikeys.list", &json!({ "user_id": owner })).await;
        assert!(!answer.to_string().contains(&secret[8..]), "the key is told once");
        let listed = list(&answer);
        let shown = listed.iter().find(|key| key["id"] == created["id"]).unwrap();
        assert_eq!((text(shown, "user_id"), text(shown, "prefix")), (owner.clone(), prefix));
        for field in ["namespace_scope", "name"] {
            assert_eq!(text(shown, field), text(&request, field), "{shown}");
        }
        assert_eq!(shown.get("expires_at"), request.get("expires_at"), "{shown}");
        assert_eq!(shown.get("last_used_at"), None, "{shown}");
    }
    let ids = async |request: &Value| {
        let keys = list(&api.ok("apikeys.list", request).await);
        keys.iter().map(|key| text(key, "id")).collect::<Vec<_>>()
    };
    let all = ids(&json!({ "user_id": owner })).await;
    assert!(all.len() == 6 && all.is_sorted(), "{all:?}");
    assert_eq!(ids(&json!({ "user_id": owner, "pivot": all[2], "limit": 3 })).await, all[2..5]);
    let everybody = ids(&json!({})).await;
    assert!(all.iter().all(|id| everybody.contains(id)));
}

pub(crate) async fn roles_are_created_in_the_order_of_the_checks(backend: Backend) {
    let api = &api(backend);
    let (space, missing, fresh) = (namespace(api, "").await, unique("missing"), unique("role"));
    let mut ladder = Ladder::new(api, "roles.create", json!({ "permissions": ["queue.list", "queue.fly"] }));
    ladder.step("namespace", "", "namespace is invalid; cannot be empty").await;
    ladder.step("namespace", missing.as_str(), "name is invalid; cannot be empty").await;
    let message = "name is invalid; cannot be greater than '128' characters";
    ladder.step("name", ":".repeat(129), message).await;
    ladder.step("name", "a:b", "name is invalid; 'a:b' cannot contain ':' character").await;
    let message = "permission is invalid; 'queue.fly' is not a recognized permission";
    ladder.step("name", "Admin", message).await;
    for standard in ["Admin", "NamespaceOwner", "PublicViewer"] {
        ladder.request["permissions"] = json!(["queue.list", "system.health"]);
        let message = format!("cannot modify or delete standard role; '{standard}' is a standard role");
        ladder.step("name", standard, &message).await;
    }
    ladder.step_with("name", fresh.as_str(), 453, &missing_namespace(&missing)).await;
    let created = ladder.end("namespace", space.as_str()).await;
    let request = json!({ "namespace": space, "name": fresh });
    let message = format!("role already exists; '{space}:{fresh}' already exists");
    api.bad("roles.create", &request, &message).await;

    let roles = list(&api.ok("roles.list", &json!({ "namespace": space })).await);
    assert_eq!(roles.len(), 1);
    assert_eq!((&roles[0]["id"], &roles[0]["name"]), (&created["id"], &json!(fresh)));
    assert_eq!(roles[0]["permissions"], json!(["queue.list", "system.health"]));
    assert_eq!(roles[0]["namespace"], space.as_str());
}

pub(crate) async fn roles_are_changed_and_deleted_unless_they_are_standard(backend: Backend) {
    let api = &api(backend);
    let space = namespace(api, "").await;
    let (id, role) = role(api, &space).await;
    let request = json!({ "namespace": space, "name": role, "permissions": ["queue.fly"] });
    let message = "permission is invalid; 'queue.fly' is not a recognized permission";
    api.bad("roles.update", &request, message).await;
    let request = json!({ "namespace": space, "name": role, "permissions": ["queue.produce", "queue.lease"] });
    api.done("roles.update", &request).await;
    let shown = list(&api.ok("roles.list", &json!({ "namespace": space, "pivot": id })).await).remove(0);
    assert_eq!((text(&shown, "id"), &shown["permissions"]), (id, &json!(["queue.produce", "queue.lease"])));

    let missing = json!({ "namespace": space, "name": "missing", "permissions": [] });
    let message = format!("role does not exist; '{space}:missing' was not found");
    api.refused("roles.update", &missing, 453, &message).await;
    let missing = json!({ "namespace": space, "name": "missing" });
    api.refused("roles.delete", &missing, 453, &message).await;
    api.ok("test/roles.add", &json!({ "namespace": space, "name": "Admin", "permissions": ["queue.list"] })).await;
    let message = "cannot modify or delete standard role; 'Admin' is a standard role";
    api.bad("roles.update", &json!({ "namespace": space, "name": "Admin" }), message).await;
    api.bad("roles.delete", &json!({ "namespace": space, "name": "Admin" }), message).await;
    api.done("roles.delete", &json!({ "namespace": space, "name": role })).await;
    // Where nothing is said, `_system` is meant.
    let message = "role does not exist; '_system:missing' was not found";
    api.refused("roles.delete", &json!({ "name": "missing" }), 453, message).await;
}

pub(crate) async fn bindings_are_created_in_the_order_of_the_checks(backend: Backend) {
    let api = &api(backend);
    let (space, user) = (namespace(api, "").await, user(api).await);
    let (role_id, role) = role(api, &space).await;
    let mut ladder = Ladder::new(api, "rolebindings.create", json!({ "user_id": "" }));
    ladder.step("namespace", " ", "namespace is invalid; cannot be empty").await;
    ladder.step("namespace", space.as_str(), "role_name is invalid; cannot be empty").await;
    ladder.step("role_name", "missing", "user_id is invalid; cannot be empty").await;
    ladder.step("user_id", "a:b", "user_id is invalid; 'a:b' cannot contain ':' character").await;
    let message = format!("role does not exist; '{space}:missing' was not found");
    ladder.step_with("user_id", "nobody", 453, &message).await;
    ladder.step_with("role_name", role.as_str(), 453, "user does not exist; 'nobody' was not found").await;
    let id = text(&ladder.end("user_id", user.as_str()).await, "id");

    let request = json!({ "namespace": space, "role_name": role, "user_id": user });
    let binding = format!("binding for user '{user}' to role '{role_id}' in namespace '{space}'");
    let message = format!("role binding already exists; {binding} already exists");
    api.bad("rolebindings.create", &request, &message).await;
    let listed = list(&api.ok("rolebindings.list", &json!({ "namespace": space, "user_id_filter": user })).await);
    assert_eq!(listed.len(), 1);
    for (field, value) in [("id", &id), ("namespace", &space), ("user_id", &user), ("role_id", &role_id)] {
        assert_eq!(listed[0][field], value.as_str());
    }
    let message = format!("role has active bindings; '{role}' has active bindings, delete bindings first");
    api.bad("roles.delete", &json!({ "namespace": space, "name": role }), &message).await;
}

pub(crate) async fn a_binding_is_deleted_by_at_least_one_of_two(backend: Backend) {
    let api = &api(backend);
    let (space, user) = (namespace(api, "").await, user(api).await);
    let (role_id, role) = role(api, &space).await;
    let request = json!({ "namespace": space, "role_name": role, "user_id": user });
    let message = format!("role binding does not exist; '{space}:{user}:{role_id}' was not found");
    api.refused("rolebindings.delete", &request, 453, &message).await;
    api.ok("rolebindings.create", &request).await;
    let delete = || api.call("rolebindings.delete", &request);
    let (first, second) = tokio::join!(delete(), delete());
    assert!(first.0 == 200 || second.0 == 200, "{first:?} {second:?}");
    api.refused("rolebindings.delete", &request, 453, &message).await;
    let missing = json!({ "namespace": space, "role_name": "missing", "user_id": user });
    let message = format!("role does not exist; '{space}:missing' was not found");
    api.refused("rolebindings.delete", &missing, 453, &message).await;
}

pub(crate) async fn a_deleted_user_takes_keys_and_bindings_along(backend: Backend) {
    let api = &api(backend);
    let (space, user) = (namespace(api, "").await, user(api).await);
    let (_, role) = role(api, &space).await;
    api.ok("rolebindings.create", &json!({ "namespace": space, "role_name": role, "user_id": user })).await;
    api.ok("apikeys.create", &json!({ "user_id": user })).await;
    api.done("users.delete", &json!({ "id": user })).await;
    assert_eq!(api.ok("apikeys.list", &json!({ "user_id": user })).await, json!({}));
    assert_eq!(api.ok("rolebindings.list", &json!({ "namespace": space })).await, json!({}));
    api.done("roles.delete", &json!({ "namespace": space, "name": role })).await;
}

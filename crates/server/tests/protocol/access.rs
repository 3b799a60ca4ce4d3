//! Who may do what: keys, roles and bindings where they count, and the open door of a new server.

use serde_json::{Value, json};

use crate::support::api::{Api, refusal};
use crate::support::gate::Gate;
use crate::support::queue::{list, settings};
use crate::support::text::{SECOND, now, text, time};
use crate::support::{Backend, Place, eventually, shared, unique};

/// Its door is open: without a key everything can be prepared.
fn api(backend: Backend) -> Api {
    shared(backend, "access", &["--auth"])
}

const PERMISSIONS: [&str; 29] = [
    "namespace.create",
    "namespace.delete",
    "namespace.list",
    "namespace.update",
    "queue.create",
    "queue.delete",
    "queue.update",
    "queue.list",
    "queue.produce",
    "queue.lease",
    "queue.complete",
    "queue.retry",
    "queue.stats",
    "queue.clear",
    "user.create",
    "user.delete",
    "user.list",
    "apikey.create",
    "apikey.delete",
    "apikey.list",
    "role.create",
    "role.update",
    "role.delete",
    "role.list",
    "rolebinding.create",
    "rolebinding.delete",
    "rolebinding.list",
    "system.health",
    "system.metrics",
];

/// A well-formed key that nobody has.
fn foreign_key() -> String {
    format!("qtr-live-{}", "0".repeat(43))
}

async fn namespace(api: &Api) -> String {
    let name = unique("space");
    api.done("namespaces.create", &json!({ "name": name })).await;
    name
}

async fn queue_in(api: &Api, namespace: &str) -> String {
    api.queue(&json!({ "namespace": namespace })).await
}

/// A user's id, and the server as that user sees it.
async fn person(api: &Api, more: &Value) -> (String, Api) {
    let id = text(&api.ok("users.create", &json!({ "username": unique("user") })).await, "id");
    let mut request = more.clone();
    request["user_id"] = id.clone().into();
    let created = api.ok("apikeys.create", &request).await;
    (id, api.with_key(&text(&created, "key")))
}

/// Gives a user a role of its own; the role's name.
async fn grant(api: &Api, user: &str, namespace: &str, permissions: &[&str]) -> String {
    let role = unique("role");
    let request = json!({ "namespace": namespace, "name": role, "permissions": permissions });
    api.ok("roles.create", &request).await;
    bind(api, user, namespace, &role).await;
    role
}

async fn bind(api: &Api, user: &str, namespace: &str, role: &str) {
    let request = json!({ "namespace": namespace, "role_name": role, "user_id": user });
    api.ok("rolebindings.create", &request).await;
}

async fn is_allowed(api: &Api, rpc: &str, body: &Value) -> bool {
    let (status, answer) = api.call(rpc, body).await;
    assert!(status != 403 || answer == refusal(403, "access denied"), "{answer}");
    status != 403
}

pub(crate) async fn a_key_that_does_not_open_says_why(backend: Backend) {
    let api = &api(backend);
    let list = json!({});
    for key in ["nonsense", "qtr-live-short", "qtr-live", "QTR-live-x", &foreign_key()[1..], "qtr-TAG-x"] {
        api.with_key(key).refused("queues.list", &list, 401, "api key is invalid").await;
    }
    for key in [foreign_key(), foreign_key()] {
        api.with_key(&key).refused("queues.list", &list, 401, "api key does not exist").await;
        // Before the path is looked at.
        api.with_key(&key).refused("nothing", &list, 401, "api key does not exist").await;
    }
    let (_, expired) = person(api, &json!({ "expires_at": "2001-01-01T00:00:00Z" })).await;
    for _ in 0..2 {
        expired.refused("queues.list", &list, 401, "api key has expired").await;
    }
    let (user, orphan) = person(api, &json!({})).await;
    grant(api, &user, "_system", &["queue.list"]).await;
    orphan.ok("queues.list", &list).await;
    api.done("users.delete", &json!({ "id": user })).await;
    orphan.refused("queues.list", &list, 401, "api key does not exist").await;
}

pub(crate) async fn a_key_ends_at_its_time_and_when_it_is_deleted(backend: Backend) {
    let api = &api(backend);
    let request = json!({});
    let (user, mortal) = person(api, &json!({ "expires_at": time(now() + 5 * SECOND) })).await;
    grant(api, &user, "_system", &["queue.list"]).await;
    // Remembered now, and its end is honoured all the same.
    mortal.ok("queues.list", &request).await;
    let (status, answer) = eventually("the key ends", async || {
        let answer = mortal.call("queues.list", &request).await;
        (answer.0 != 200).then_some(answer)
    })
    .await;
    assert_eq!((status, answer), (401, refusal(401, "api key has expired")));

    let (user, revoked) = person(api, &json!({})).await;
    grant(api, &user, "_system", &["queue.list"]).await;
    revoked.ok("queues.list", &request).await;
    let keys = api.ok("apikeys.list", &json!({ "user_id": user })).await;
    api.done("apikeys.delete", &json!({ "id": keys["items"][0]["id"] })).await;
    revoked.refused("queues.list", &request, 401, "api key does not exist").await;
}

pub(crate) async fn a_used_key_says_when(backend: Backend) {
    let api = &api(backend);
    let (user, person) = person(api, &json!({})).await;
    let used = async || {
        let keys = list(&api.ok("apikeys.list", &json!({ "user_id": user })).await);
        keys[0].get("last_used_at").cloned()
    };
    assert_eq!(used().await, None);
    person.refused("queues.list", &json!({}), 403, "access denied").await;
    eventually("the use is noted", used).await;
}

/// What each RPC needs, and a request that gets as far as being asked for it.
fn needs(queue: &str) -> Vec<(&'static str, &'static str, Value)> {
    let named = json!({ "queue_name": queue });
    let role = json!({ "namespace": "_system", "name": unique("role") });
    let missing_role = json!({ "namespace": "_system", "name": "missing" });
    let binding = json!({ "namespace": "_system", "role_name": "missing", "user_id": "nobody" });
    vec![
        ("queue.produce", "queue.produce", named.clone()),
        ("queue.lease", "queue.lease", named.clone()),
        ("queue.complete", "queue.complete", named.clone()),
        ("queue.retry", "queue.retry", named.clone()),
        ("queue.clear", "queue.clear", named.clone()),
        ("queue.reload", "queue.update", named.clone()),
        ("queues.update", "queue.update", named.clone()),
        ("queue.stats", "queue.stats", named.clone()),
        ("queues.info", "queue.stats", named.clone()),
        ("storage/items.list", "queue.stats", named.clone()),
        ("storage/scheduled.list", "queue.stats", named.clone()),
        ("storage/items.import", "queue.produce", named.clone()),
        ("storage/items.delete", "queue.clear", named.clone()),
        ("queues.create", "queue.create", settings(&unique("queue"), &json!({}))),
        ("queues.list", "queue.list", json!({})),
        ("queues.delete", "queue.delete", named),
        ("namespaces.create", "namespace.create", json!({ "name": unique("space") })),
        ("namespaces.update", "namespace.update", json!({ "name": "missing" })),
        ("namespaces.list", "namespace.list", json!({})),
        ("namespaces.delete", "namespace.delete", json!({ "name": "missing" })),
        ("users.create", "user.create", json!({ "username": unique("user") })),
        ("users.list", "user.list", json!({})),
        ("users.delete", "user.delete", json!({ "id": "nobody" })),
        ("apikeys.create", "apikey.create", json!({ "user_id": "nobody" })),
        ("apikeys.list", "apikey.list", json!({})),
        ("apikeys.delete", "apikey.delete", json!({ "id": "nothing" })),
        ("roles.create", "role.create", role),
        ("roles.list", "role.list", json!({})),
        ("roles.update", "role.update", missing_role.clone()),
        ("roles.delete", "role.delete", missing_role),
        ("rolebindings.create", "rolebinding.create", binding.clone()),
        ("rolebindings.list", "rolebinding.list", json!({})),
        ("rolebindings.delete", "rolebinding.delete", binding),
    ]
}

pub(crate) async fn every_rpc_needs_its_permission_and_no_other(backend: Backend) {
    let api = &api(backend);
    let queue = api.plain_queue().await;
    let (user, person) = person(api, &json!({})).await;
    let role = grant(api, &user, "_system", &[]).await;
    let permit = async |permissions: Vec<&str>| {
        let request = json!({ "namespace": "_system", "name": role, "permissions": permissions });
        api.done("roles.update", &request).await;
    };
    for (rpc, permission, body) in needs(&queue) {
        permit(PERMISSIONS.into_iter().filter(|other| *other != permission).collect()).await;
        assert!(!is_allowed(&person, rpc, &body).await, "{rpc} was allowed without {permission}");
        permit(vec![permission]).await;
        assert!(is_allowed(&person, rpc, &body).await, "{rpc} was not allowed with {permission}");
    }
}

pub(crate) async fn a_role_counts_in_its_namespace_and_one_of_the_system_everywhere(backend: Backend) {
    let api = &api(backend);
    let (here, there) = (namespace(api).await, namespace(api).await);
    let (queue_here, queue_there) = (queue_in(api, &here).await, queue_in(api, &there).await);
    let (user, person) = person(api, &json!({})).await;
    let stats = async |queue: &str| is_allowed(&person, "queue.stats", &json!({ "queue_name": queue })).await;
    assert_eq!((stats(&queue_here).await, stats(&queue_there).await), (false, false));
    grant(api, &user, &here, &["queue.stats", "role.create"]).await;
    assert_eq!((stats(&queue_here).await, stats(&queue_there).await), (true, false));
    assert!(!is_allowed(&person, "queues.list", &json!({ "namespace": here })).await);
    // Whether a namespace exists is told only to those who may know.
    let role = json!({ "namespace": unique("missing"), "name": "mine" });
    assert!(!is_allowed(&person, "roles.create", &role).await);
    assert!(is_allowed(&person, "roles.create", &json!({ "namespace": here, "name": "mine" })).await);
    let role = grant(api, &user, "_system", &["queue.stats"]).await;
    assert_eq!((stats(&queue_here).await, stats(&queue_there).await), (true, true));
    let binding = json!({ "namespace": "_system", "role_name": role, "user_id": user });
    api.done("rolebindings.delete", &binding).await;
    assert_eq!((stats(&queue_here).await, stats(&queue_there).await), (true, false), "at once");
}

pub(crate) async fn a_scoped_key_counts_in_its_namespace_and_in_the_system(backend: Backend) {
    let api = &api(backend);
    let (here, there) = (namespace(api).await, namespace(api).await);
    let (queue_here, queue_there) = (queue_in(api, &here).await, queue_in(api, &there).await);
    let (user, person) = person(api, &json!({ "namespace_scope": here })).await;
    bind(api, &user, "_system", "Admin").await;
    assert!(is_allowed(&person, "queue.stats", &json!({ "queue_name": queue_here })).await);
    assert!(!is_allowed(&person, "queue.stats", &json!({ "queue_name": queue_there })).await);
    assert!(!is_allowed(&person, "queues.list", &json!({ "namespace": there })).await);
    assert!(is_allowed(&person, "queues.list", &json!({})).await);
    assert!(is_allowed(&person, "users.list", &json!({})).await);
}

pub(crate) async fn standard_roles_permit_what_their_names_say(backend: Backend) {
    let api = &api(backend);
    let roles = list(&api.ok("roles.list", &json!({})).await);
    let of = |wanted: &[&str]| -> Vec<&str> {
        PERMISSIONS.into_iter().filter(|name| wanted.iter().any(|family| name.starts_with(family))).collect()
    };
    for (name, mut expected) in [
        ("Admin", of(&[""])),
        ("NamespaceOwner", of(&["queue.", "role.", "rolebinding.", "system."])),
        ("PublicViewer", of(&["system."])),
    ] {
        let role = roles.iter().find(|role| role["name"] == name).unwrap_or_else(|| panic!("there is no {name}"));
        let mut found: Vec<&str> = role["permissions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
        let message = format!("cannot modify or delete standard role; '{name}' is a standard role");
        let request = json!({ "namespace": "_system", "name": name });
        api.bad("roles.update", &request, &message).await;
        api.bad("roles.delete", &request, &message).await;
    }
}

pub(crate) async fn the_door_is_open_until_it_is_closed_and_then_stays_closed(backend: Backend) {
    let place = Place::new(backend);
    let mut server = place.start(&["--auth"]);
    let mut api = server.api();
    let users = list(&api.ok("users.list", &json!({})).await);
    assert_eq!(users.len(), 1);
    assert_eq!((text(&users[0], "id"), text(&users[0], "username")), ("anonymous".into(), "anonymous".into()));
    let roles = api.ok("roles.list", &json!({})).await;
    let queue = api.plain_queue().await;
    let (user, mut admin) = person(&api, &json!({})).await;
    bind(&api, &user, "_system", "Admin").await;
    let keys = api.ok("apikeys.list", &json!({ "user_id": user })).await;
    let door = json!({ "namespace": "_system", "role_name": "Admin", "user_id": "anonymous" });
    admin.done("rolebindings.delete", &door).await;

    for restarted in [false, true] {
        if restarted {
            server.kill();
            server = place.start(&["--auth"]);
            api = server.api();
            let key = admin.key();
            admin = api.with_key(&key);
        }
        for (rpc, body) in
            [("queue.stats", json!({ "queue_name": queue })), ("users.list", json!({})), ("queues.list", json!({}))]
        {
            api.refused(rpc, &body, 403, "access denied").await;
            admin.ok(rpc, &body).await;
        }
        assert_eq!(api.get("/health").await.status, 200, "nobody is asked for a key there");
        assert_eq!(admin.ok("roles.list", &json!({})).await, roles, "standard roles keep their ids");
        let same = admin.ok("apikeys.list", &json!({ "user_id": user })).await;
        assert_eq!(same["items"][0]["id"], keys["items"][0]["id"]);
    }
}

pub(crate) async fn without_authentication_nobody_is_stopped(backend: Backend) {
    let api = shared(backend, "identity", &["--test-hooks"]);
    let queue = api.plain_queue().await;
    for api in [api.clone(), api.with_key("whatever"), api.with_key(&foreign_key())] {
        for (rpc, _, body) in needs(&queue).into_iter().filter(|(rpc, _, _)| !rpc.ends_with(".delete")) {
            let (status, answer) = api.call(rpc, &body).await;
            assert!(![401, 403].contains(&status), "{rpc}: {answer}");
        }
    }
}

/// Only on PostgreSQL: two processes.
pub(crate) async fn another_process_sees_a_revocation_within_five_seconds(backend: Backend) {
    let place = Place::new(backend);
    let (first, second) = (place.start(&["--auth"]), place.start(&["--auth"]));
    let api = &first.api();
    let (user, person) = person(api, &json!({})).await;
    let role = grant(api, &user, "_system", &["queue.list", "user.list"]).await;
    let there = second.api().with_key(&person.key());
    there.ok("queues.list", &json!({})).await;
    there.ok("users.list", &json!({})).await;

    let gone = async |rpc: &str, code: u16, message: &str| {
        let since = std::time::Instant::now();
        let answer = eventually("the change is seen", async || {
            let answer = there.call(rpc, &json!({})).await;
            (answer.0 != 200).then_some(answer)
        });
        assert_eq!(answer.await, (code, refusal(code, message)));
        // Promised are five; a busy machine may need longer to ask.
        assert!(since.elapsed().as_secs() < 20, "it took {:?}", since.elapsed());
    };
    let request = json!({ "namespace": "_system", "name": role, "permissions": ["queue.list"] });
    api.done("roles.update", &request).await;
    gone("users.list", 403, "access denied").await;
    let keys = api.ok("apikeys.list", &json!({ "user_id": user })).await;
    api.done("apikeys.delete", &json!({ "id": keys["items"][0]["id"] })).await;
    gone("queues.list", 401, "api key does not exist").await;
}

/// Only on PostgreSQL: the database goes away.
pub(crate) async fn what_cannot_be_looked_up_is_refused(backend: Backend) {
    let (place, gate) = (Place::new(backend), Gate::open().await);
    let server = place.start_on(&gate.through(&place.dsn), &["--auth"]);
    let api = &server.api();
    let (user, person) = person(api, &json!({})).await;
    grant(api, &user, "_system", &["user.list"]).await;
    person.ok("users.list", &json!({})).await;
    gate.shut().await;
    // What is remembered may be used for a few seconds more, and then nothing.
    let message = "authorization check failed";
    for (api, code, message) in [(api, 453, message), (&person, 401, "api key is invalid")] {
        let refused = eventually("it is refused", async || {
            let answer = api.call("users.list", &json!({})).await;
            (answer.0 == code).then_some(answer)
        });
        assert_eq!(refused.await, (code, refusal(code, message)));
    }
    api.with_key(&foreign_key()).refused("queues.list", &json!({}), 401, "api key is invalid").await;
    gate.reopen();
    eventually("it works again", async || {
        let (status, answer) = person.call("users.list", &json!({})).await;
        (status == 200).then_some(answer)
    })
    .await;
}

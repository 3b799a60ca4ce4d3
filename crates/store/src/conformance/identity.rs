use super::*;
use crate::conformance::statements::script;
use crate::{Kind, NewApiKey, NewUser, Removal, Use, User};

fn user(id: &str, username: &str) -> NewUser {
    NewUser { id: id.into(), username: username.into(), ..NewUser::default() }
}

fn key(id: &str, user_id: &str) -> NewApiKey {
    NewApiKey { id: id.into(), user_id: user_id.into(), hash: format!("hash of {id}"), ..NewApiKey::default() }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// Users `ann` and `bob`, and a role `reader` of the namespace `team`, whose ids are their names.
async fn people(h: &Harness) -> [User; 2] {
    h.store.role_create("reader", "team", "reader", &texts(&["queue.list"])).await.unwrap();
    let ann = h.store.user_create(user("ann", "ann")).await.unwrap();
    [ann, h.store.user_create(user("bob", "bob")).await.unwrap()]
}

pub async fn a_namespace_comes_back_as_it_was_created_and_changed(h: &Harness) {
    let created = h.store.namespace_create("billing", "invoices, ünpaid", "bill").await.unwrap();
    assert_eq!((created.name.as_str(), created.created_at), ("billing", START));
    assert_eq!(h.store.namespace_get("billing").await.unwrap().as_ref(), Some(&created));
    h.advance(10);
    assert!(h.store.namespace_update("billing", "", "b2").await.unwrap());
    let changed = h.store.namespace_get("billing").await.unwrap().unwrap();
    assert_eq!((changed.description.as_str(), changed.key_tag.as_str()), ("", "b2"));
    assert_eq!(changed.created_at, START);
    assert!(!h.store.namespace_update("nowhere", "", "").await.unwrap());
    assert_eq!(h.store.namespace_get("nowhere").await.unwrap(), None);
    assert_eq!(h.store.namespace_delete("billing").await.unwrap(), Removal::Done);
    assert_eq!(h.store.namespace_delete("billing").await.unwrap(), Removal::Missing);
}

pub async fn a_namespace_that_is_there_is_refused_or_left_alone(h: &Harness) {
    let first = h.store.namespace_create("billing", "first", "one").await.unwrap();
    let error = h.store.namespace_create("billing", "second", "two").await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("'billing' already exists"), "{error}");
    h.advance(10);
    h.store.namespace_ensure("billing").await.unwrap();
    assert_eq!(h.store.namespace_list("", 9).await.unwrap(), [first]);
    h.store.namespace_ensure("_system").await.unwrap();
    let system = h.store.namespace_get("_system").await.unwrap().unwrap();
    assert_eq!((system.description.as_str(), system.key_tag.as_str()), ("", ""));
    assert_eq!(system.created_at, START + 10_000);
}

pub async fn lists_are_bytewise_and_begin_with_the_pivot(h: &Harness) {
    for name in ["b", "a", "C", "ä", "a-b"] {
        h.store.namespace_create(name, "", "").await.unwrap();
        h.store.user_create(user(name, name)).await.unwrap();
        h.store.role_create(name, "team", name, &[]).await.unwrap();
    }
    let sorted = ["C", "a", "a-b", "b", "ä"];
    for (pivot, limit, expected) in [
        ("", 9, &sorted[..]),
        ("a", 9, &sorted[1..]),
        ("aa", 2, &sorted[3..]),
        ("a", 2, &sorted[1..3]),
        ("ö", 9, &sorted[5..]),
    ] {
        let namespaces = h.store.namespace_list(pivot, limit).await.unwrap();
        assert_eq!(namespaces.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), expected);
        let users = h.store.user_list(pivot, limit).await.unwrap();
        assert_eq!(users.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), expected);
        let roles = h.store.role_list("team", pivot, limit).await.unwrap();
        assert_eq!(roles.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), expected);
    }
    assert!(h.store.role_list("elsewhere", "", 9).await.unwrap().is_empty());
    assert!(h.store.user_list("", 0).await.unwrap().is_empty());
    assert_eq!(h.store.user_list("", usize::MAX).await.unwrap().len(), 5);
}

pub async fn a_namespace_in_use_names_bindings_then_roles_then_queues(h: &Harness) {
    people(h).await;
    h.store.namespace_create("team", "", "").await.unwrap();
    h.queue_with(Settings { namespace: "team".into(), ..Settings::default() }).await;
    h.store.binding_create("b1", "team", "ann", "reader").await.unwrap();
    let delete = || async { h.store.namespace_delete("team").await.unwrap() };
    assert_eq!(delete().await, Removal::InUse(Use::Bindings));
    assert!(h.store.binding_delete("team", "ann", "reader").await.unwrap());
    assert_eq!(delete().await, Removal::InUse(Use::Roles));
    assert_eq!(h.store.role_delete("team", "reader").await.unwrap(), Removal::Done);
    assert_eq!(delete().await, Removal::InUse(Use::Queues));
    assert!(h.store.namespace_get("team").await.unwrap().is_some());
    h.store.queue_delete("jobs").await.unwrap();
    assert_eq!(delete().await, Removal::Done);
    assert_eq!(h.store.namespace_get("team").await.unwrap(), None);
}

pub async fn a_user_comes_back_as_created_and_a_username_is_taken_once(h: &Harness) {
    let new = NewUser { external_id: "x-1".into(), email: "ann@example.org".into(), ..user("u1", "ann") };
    let ann = h.store.user_create(new).await.unwrap();
    assert_eq!((ann.id.as_str(), ann.username.as_str()), ("u1", "ann"));
    assert_eq!((ann.external_id.as_str(), ann.email.as_str()), ("x-1", "ann@example.org"));
    assert_eq!((ann.created_at, ann.updated_at), (START, START));
    assert_eq!(h.store.user_get("u1").await.unwrap().as_ref(), Some(&ann));
    assert_eq!(h.store.user_get("ann").await.unwrap(), None);
    let error = h.store.user_create(user("u2", "ann")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("the username 'ann' is already taken"), "{error}");
    assert_eq!(h.store.user_list("", 9).await.unwrap(), [ann]);
}

pub async fn ensuring_a_user_keeps_the_first_and_needs_its_name_free(h: &Harness) {
    let new = NewUser { email: "first@example.org".into(), ..user("anonymous", "anonymous") };
    h.store.user_ensure(new).await.unwrap();
    h.advance(10);
    h.store.user_ensure(user("anonymous", "anonymous")).await.unwrap();
    let kept = h.store.user_get("anonymous").await.unwrap().unwrap();
    assert_eq!((kept.email.as_str(), kept.created_at), ("first@example.org", START));
    let error = h.store.user_ensure(user("other", "anonymous")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("belongs to a user whose id is not 'other'"), "{error}");
}

pub async fn a_deleted_user_takes_keys_and_bindings_along(h: &Harness) {
    let [_, bob] = people(h).await;
    for (id, name) in [("1", "ann"), ("2", "bob")] {
        h.store.api_key_create(key(id, name)).await.unwrap();
        h.store.binding_create(id, "team", name, "reader").await.unwrap();
    }
    assert!(h.store.user_delete("ann").await.unwrap());
    assert!(!h.store.user_delete("ann").await.unwrap());
    assert_eq!(h.store.user_list("", 9).await.unwrap(), [bob]);
    assert_eq!(h.store.api_key_by_hash("hash of 1").await.unwrap(), None);
    let keys = h.store.api_key_list(None, "", 9).await.unwrap();
    assert_eq!(keys.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), ["2"]);
    let bindings = h.store.binding_list("team", None, "", 9).await.unwrap();
    assert_eq!(bindings.iter().map(|binding| binding.id.as_str()).collect::<Vec<_>>(), ["2"]);
    assert!(h.store.permissions("ann", "team").await.unwrap().is_empty());
    h.store.verify().await.unwrap();
}

pub async fn a_key_is_found_by_its_hash_and_needs_a_user(h: &Harness) {
    people(h).await;
    let new = NewApiKey {
        scope: "team".into(),
        name: "laptop".into(),
        prefix: "qtr-live-abcdefgh".into(),
        expires_at: Some(START + 60_000_000),
        ..key("k1", "ann")
    };
    let created = h.store.api_key_create(new).await.unwrap();
    assert_eq!((created.scope.as_str(), created.name.as_str()), ("team", "laptop"));
    assert_eq!((created.created_at, created.last_used_at, created.expired), (START, None, false));
    assert_eq!(h.store.api_key_by_hash("hash of k1").await.unwrap().as_ref(), Some(&created));
    assert_eq!(h.store.api_key_by_hash("k1").await.unwrap(), None);
    let error = h.store.api_key_create(key("k2", "nobody")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("no user 'nobody'"), "{error}");
    let twin = NewApiKey { hash: "hash of k1".into(), ..key("k3", "bob") };
    assert_eq!(h.store.api_key_create(twin).await.unwrap_err().kind(), Kind::AlreadyExists);
    // Whoever lost the user otherwise has a key that opens nothing.
    script(&h.store, "delete from tenure.users where id = 'ann'").await;
    assert_eq!(h.store.api_key_by_hash("hash of k1").await.unwrap(), None);
    let error = h.store.verify().await.unwrap_err();
    assert!(error.to_string().contains("api_key belong to no user"), "{error}");
}

pub async fn a_key_expires_by_the_clock_of_the_database(h: &Harness) {
    people(h).await;
    let ending = |id: &str, at: i64| NewApiKey { expires_at: Some(at), ..key(id, "ann") };
    assert!(h.store.api_key_create(ending("past", START - 1)).await.unwrap().expired);
    assert!(!h.store.api_key_create(ending("soon", START + 1_000_000)).await.unwrap().expired);
    assert!(!h.store.api_key_create(key("ever", "ann")).await.unwrap().expired);
    let expired = || async {
        let keys = h.store.api_key_list(Some("ann"), "", 9).await.unwrap();
        keys.into_iter().filter(|key| key.expired).map(|key| key.id).collect::<Vec<_>>()
    };
    assert_eq!(expired().await, ["past"]);
    h.advance(999);
    assert!(!h.store.api_key_by_hash("hash of soon").await.unwrap().unwrap().expired);
    h.advance(1);
    assert!(h.store.api_key_by_hash("hash of soon").await.unwrap().unwrap().expired);
    assert_eq!(expired().await, ["past", "soon"]);
}

pub async fn keys_are_listed_for_one_user_or_all_used_and_deleted(h: &Harness) {
    people(h).await;
    for (id, name) in [("3", "ann"), ("1", "bob"), ("2", "ann")] {
        h.store.api_key_create(key(id, name)).await.unwrap();
    }
    let list = |user: Option<&'static str>, pivot: &'static str, limit| async move {
        let keys = h.store.api_key_list(user, pivot, limit).await.unwrap();
        keys.into_iter().map(|key| key.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, "", 9).await, ["1", "2", "3"]);
    assert_eq!(list(None, "2", 1).await, ["2"]);
    assert_eq!(list(Some("ann"), "", 9).await, ["2", "3"]);
    assert!(list(Some("nobody"), "", 9).await.is_empty());
    h.advance(5);
    h.store.api_key_used("2").await.unwrap();
    h.store.api_key_used("unknown").await.unwrap();
    let used = h.store.api_key_list(None, "", 9).await.unwrap();
    let used: Vec<_> = used.iter().map(|key| key.last_used_at).collect();
    assert_eq!(used, [None, Some(START + 5_000), None]);
    assert!(h.store.api_key_delete("2").await.unwrap());
    assert!(!h.store.api_key_delete("2").await.unwrap());
    assert_eq!(list(None, "", 9).await, ["1", "3"]);
}

pub async fn a_role_keeps_its_permissions_in_order_even_none_at_all(h: &Harness) {
    let many = texts(&["queue.produce", "queue.lease", "namespace.create"]);
    let worker = h.store.role_create("r1", "team", "worker", &many).await.unwrap();
    assert_eq!((&worker.permissions, worker.created_at), (&many, START));
    let idle = h.store.role_create("r2", "team", "idle", &[]).await.unwrap();
    assert!(idle.permissions.is_empty());
    assert_eq!(h.store.role_get("team", "worker").await.unwrap().as_ref(), Some(&worker));
    assert_eq!(h.store.role_list("team", "", 9).await.unwrap(), [worker, idle]);
    assert_eq!(h.store.role_get("elsewhere", "worker").await.unwrap(), None);
    let error = h.store.role_create("r3", "team", "idle", &[]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("a role named 'idle' already exists in namespace 'team'"), "{error}");
    h.store.role_create("r3", "elsewhere", "idle", &[]).await.unwrap();
    assert!(h.store.role_update("team", "worker", &[]).await.unwrap());
    assert!(h.store.role_get("team", "worker").await.unwrap().unwrap().permissions.is_empty());
    assert!(!h.store.role_update("team", "nobody", &many).await.unwrap());
}

pub async fn ensuring_a_role_keeps_its_id_and_refreshes_its_permissions(h: &Harness) {
    let first = h.store.role_ensure("r1", "_system", "Admin", &texts(&["queue.list"])).await.unwrap();
    assert_eq!((first.id.as_str(), first.created_at), ("r1", START));
    h.advance(10);
    let more = texts(&["queue.list", "user.create"]);
    let again = h.store.role_ensure("r2", "_system", "Admin", &more).await.unwrap();
    assert_eq!((again.id.as_str(), again.created_at), ("r1", START));
    assert_eq!(again.permissions, more);
    assert_eq!(h.store.role_list("_system", "", 9).await.unwrap(), [again]);
}

pub async fn a_role_that_somebody_has_is_not_deleted(h: &Harness) {
    people(h).await;
    h.store.binding_create("b1", "team", "ann", "reader").await.unwrap();
    assert_eq!(h.store.role_delete("team", "reader").await.unwrap(), Removal::InUse(Use::Bindings));
    assert_eq!(h.store.permissions("ann", "team").await.unwrap(), ["queue.list"]);
    assert!(h.store.binding_delete("team", "ann", "reader").await.unwrap());
    assert_eq!(h.store.role_delete("team", "reader").await.unwrap(), Removal::Done);
    assert_eq!(h.store.role_delete("team", "reader").await.unwrap(), Removal::Missing);
}

pub async fn a_binding_is_made_once_and_needs_its_user_and_its_role(h: &Harness) {
    people(h).await;
    let first = h.store.binding_create("b1", "team", "ann", "reader").await.unwrap();
    assert_eq!((first.id.as_str(), first.created_at), ("b1", START));
    let error = h.store.binding_create("b2", "team", "ann", "reader").await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("user 'ann' has the role 'reader' in namespace 'team' already"), "{error}");
    h.advance(10);
    h.store.binding_ensure("b3", "team", "ann", "reader").await.unwrap();
    h.store.binding_ensure("b4", "team", "bob", "reader").await.unwrap();
    let bindings = h.store.binding_list("team", None, "", 9).await.unwrap();
    assert_eq!(bindings.iter().map(|binding| binding.id.as_str()).collect::<Vec<_>>(), ["b1", "b4"]);
    assert_eq!(bindings[0], first);
    assert_eq!(h.store.binding_list("team", Some("bob"), "", 9).await.unwrap(), bindings[1..]);
    assert_eq!(h.store.binding_list("team", None, "b1", 1).await.unwrap(), bindings[..1]);
    assert!(h.store.binding_list("elsewhere", None, "", 9).await.unwrap().is_empty());
    for (who, what, part) in [("nobody", "reader", "no user 'nobody'"), ("ann", "nothing", "no role with the id")] {
        let errors = [
            h.store.binding_create("b5", "team", who, what).await.unwrap_err(),
            h.store.binding_ensure("b5", "team", who, what).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), Kind::NotFound);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

pub async fn permissions_are_the_union_over_the_bindings_of_a_user_there(h: &Harness) {
    people(h).await;
    h.store.role_create("writer", "team", "writer", &texts(&["queue.produce", "queue.list"])).await.unwrap();
    h.store.role_create("idle", "team", "idle", &[]).await.unwrap();
    h.store.role_create("admin", "_system", "Admin", &texts(&["user.create"])).await.unwrap();
    for (id, namespace, name, role) in [
        ("1", "team", "ann", "reader"),
        ("2", "team", "ann", "writer"),
        ("3", "team", "ann", "idle"),
        ("4", "_system", "ann", "admin"),
        ("5", "team", "bob", "idle"),
    ] {
        h.store.binding_create(id, namespace, name, role).await.unwrap();
    }
    assert_eq!(h.store.permissions("ann", "team").await.unwrap(), ["queue.list", "queue.produce"]);
    assert_eq!(h.store.permissions("ann", "_system").await.unwrap(), ["user.create"]);
    assert!(h.store.permissions("bob", "team").await.unwrap().is_empty());
    assert!(h.store.permissions("nobody", "team").await.unwrap().is_empty());
    h.store.role_update("team", "writer", &texts(&["queue.lease"])).await.unwrap();
    assert_eq!(h.store.permissions("ann", "team").await.unwrap(), ["queue.lease", "queue.list"]);
}

pub async fn two_deletions_of_one_binding_have_one_winner(h: &Harness) {
    people(h).await;
    let another = h.another().await;
    let other = another.as_ref().unwrap_or(&h.store);
    for _ in 0..10 {
        h.store.binding_create("b", "team", "ann", "reader").await.unwrap();
        let (one, two) = tokio::join!(
            h.store.binding_delete("team", "ann", "reader"),
            other.binding_delete("team", "ann", "reader")
        );
        assert!(one.unwrap() != two.unwrap(), "exactly one of them took it away");
    }
}

pub async fn a_binding_never_outlives_its_role_or_its_user(h: &Harness) {
    let another = h.another().await;
    let other = another.as_ref().unwrap_or(&h.store);
    for _ in 0..10 {
        people(h).await;
        let (bound, role, user) = tokio::join!(
            h.store.binding_create("b", "team", "ann", "reader"),
            other.role_delete("team", "reader"),
            other.user_delete("ann")
        );
        if let Err(error) = bound {
            assert_eq!(error.kind(), Kind::NotFound);
        }
        assert!(user.unwrap());
        if role.unwrap() != Removal::Done {
            assert_eq!(h.store.role_delete("team", "reader").await.unwrap(), Removal::Done);
        }
        assert!(h.store.binding_list("team", None, "", 9).await.unwrap().is_empty());
        assert!(h.store.user_delete("bob").await.unwrap());
    }
    h.store.verify().await.unwrap();
}

pub async fn every_change_raises_the_version_and_nothing_else_does(h: &Harness) {
    let s = &h.store;
    let mut version = s.identity_version().await.unwrap();
    assert_eq!(version, 0);
    macro_rules! raise {
        ($($act:expr;)+) => {$(
            $act.await.unwrap();
            let now = s.identity_version().await.unwrap();
            assert!(now > version, "{}", stringify!($act));
            version = now;
        )+};
    }
    raise! {
        s.namespace_create("team", "", "");
        s.namespace_ensure("_system");
        s.namespace_update("team", "d", "t");
        s.user_create(user("ann", "ann"));
        s.user_ensure(user("bob", "bob"));
        s.api_key_create(key("k", "ann"));
        s.role_create("r", "team", "reader", &texts(&["queue.list"]));
        s.role_ensure("r2", "team", "writer", &[]);
        s.role_update("team", "reader", &[]);
        s.binding_create("b", "team", "ann", "r");
        s.binding_ensure("b2", "team", "ann", "r2");
        s.binding_delete("team", "ann", "r");
        s.role_delete("team", "reader");
        s.api_key_delete("k");
        s.user_delete("ann");
        s.role_delete("team", "writer");
        s.namespace_delete("team");
    }
    s.api_key_used("k").await.unwrap();
    s.user_list("", 9).await.unwrap();
    s.permissions("ann", "team").await.unwrap();
    h.queue().await;
    assert_eq!(s.user_create(user("bob", "bob")).await.unwrap_err().kind(), Kind::AlreadyExists);
    assert_eq!(s.api_key_create(key("k", "nobody")).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(s.identity_version().await.unwrap(), version);
}

pub async fn texts_that_cannot_be_stored_are_refused_with_advice(h: &Harness) {
    people(h).await;
    let (s, long, version) = (&h.store, "x".repeat(513), h.store.identity_version().await.unwrap());
    let mail = NewUser { email: "nul\0".into(), ..user("u", "u") };
    let comma = texts(&["queue.list,queue.lease"]);
    for (error, part) in [
        (s.namespace_create("", "", "").await.unwrap_err(), "name is empty"),
        (s.namespace_create(&long, "", "").await.unwrap_err(), "513 bytes: at most 512"),
        (s.namespace_create("n", "nul\0", "").await.unwrap_err(), "the description contains a NUL"),
        (s.namespace_get("nul\0").await.unwrap_err(), "NUL"),
        (s.namespace_list("nul\0", 9).await.unwrap_err(), "the pivot contains a NUL"),
        (s.namespace_delete("nul\0").await.unwrap_err(), "NUL"),
        (s.user_create(user("u", "")).await.unwrap_err(), "the username is empty"),
        (s.user_create(mail).await.unwrap_err(), "the email address contains a NUL"),
        (s.user_delete("nul\0").await.unwrap_err(), "NUL"),
        (s.api_key_create(key("nul\0", "ann")).await.unwrap_err(), "NUL"),
        (s.api_key_by_hash("nul\0").await.unwrap_err(), "NUL"),
        (s.api_key_used("nul\0").await.unwrap_err(), "NUL"),
        (s.role_create("r", "team", "r", &texts(&[""])).await.unwrap_err(), "a permission is empty"),
        (s.role_create("r", "team", "r", &comma).await.unwrap_err(), "has a comma in it"),
        (s.role_update("team", "reader", &texts(&["nul\0"])).await.unwrap_err(), "NUL"),
        (s.binding_create("b", "nul\0", "ann", "reader").await.unwrap_err(), "NUL"),
        (s.binding_list("team", Some("nul\0"), "", 9).await.unwrap_err(), "NUL"),
        (s.permissions("ann", "nul\0").await.unwrap_err(), "NUL"),
    ] {
        assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(s.identity_version().await.unwrap(), version);
    // Whatever is long or strange but can be stored is, as it was given.
    let strange = "it's \"quoted\"; drop table x; -- 🐦 %_\\";
    s.namespace_create(strange, &"d".repeat(200_000), "").await.unwrap();
    assert_eq!(s.namespace_get(strange).await.unwrap().unwrap().description.len(), 200_000);
    assert_eq!(s.namespace_get(&"x".repeat(10_000)).await.unwrap(), None);
}

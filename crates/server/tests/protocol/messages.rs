//! No message of the protocol is left out: each family of Appendix A stands in some case, as the beginning of a text.

use std::path::Path;

/// What our server can say, by how it begins.
const FAMILIES: &[(u16, &[&str])] = &[
    (
        400,
        &[
            "queue name is invalid",
            "queue does not exist",
            "invalid queue",
            "dead queue is invalid",
            "dead_queue cannot reference itself",
            "dead_queue does not exist",
            "dead_queue is invalid",
            "reference field is invalid",
            "max attempts is invalid",
            "partitions is invalid",
            "lease timeout is invalid",
            "lease timeout is too long",
            "expire timeout is invalid",
            "namespace name is invalid",
            "namespace name is reserved",
            "namespace already exists",
            "namespace has role bindings",
            "namespace has roles",
            "namespace has queues",
            "request timeout is required",
            "request timeout is invalid",
            "items cannot be empty",
            "items is invalid",
            "ids is invalid",
            "invalid client id",
            "invalid batch size",
            "duplicate client id",
            "partition is invalid",
            "invalid storage id",
            "item(s) cannot be completed",
            "item(s) cannot be retried",
            "invalid clear request",
            "limit is invalid",
            "pivot is invalid",
            "username is invalid",
            "username is already taken",
            "email is invalid",
            "external_id is invalid",
            "user_id is invalid",
            "name is invalid",
            "role_name is invalid",
            "namespace is invalid",
            "permission is invalid",
            "api_key_tag is invalid",
            "key_tag is invalid",
            "role already exists",
            "role binding already exists",
            "role has active bindings",
            "cannot modify or delete standard role",
            "request body exceeds",
            "http method",
        ],
    ),
    (
        401,
        &["api key is invalid", "api key does not exist", "api key has expired", "invalid authorization header format"],
    ),
    (403, &["access denied"]),
    (
        453,
        &[
            "service is shutting down",
            "queue is shutting down",
            "namespace does not exist",
            "user does not exist",
            "role does not exist",
            "role binding does not exist",
            "authorization check failed",
        ],
    ),
    (
        454,
        &[
            "request timeout; no items are in the queue, try again",
            "queue is overloaded; try again later",
            "partition not available; ",
            "internal error, try your request again",
        ],
    ),
    (455, &["Content-Type header", "Accept header"]),
    (500, &["Internal Error"]),
    (501, &["no such method; "]),
];

/// Never sent: stores of identities are always configured, partitions do not move between processes, a queue always has
/// partitions, and no test can take the system's random numbers away.
const UNREACHABLE: &[&str] = &[
    "storage not configured",
    "partition not found; ",
    "queue has no available partitions",
    "failed to generate api key",
    "authentication required",
];

fn cases() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol");
    let mut text = String::new();
    for folder in [folder.join("support"), folder] {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("messages.rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

#[test]
fn every_message_of_the_protocol_stands_in_a_case() {
    let cases = cases();
    for (code, families) in FAMILIES {
        for family in *families {
            assert!(cases.contains(&format!("\"{family}")), "no case expects {code} '{family}'");
        }
    }
    for family in UNREACHABLE {
        assert!(!cases.contains(&format!("\"{family}")), "'{family}' can be reached: move it into the list");
    }
}

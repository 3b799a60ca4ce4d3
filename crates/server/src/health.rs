//! The body of `GET /health`, as the draft on health checks for HTTP APIs has it (`application/health+json`).
//!
//! Invariants: what the store that holds the queues answers decides between 200 and 503; any other store only warns,
//! because the partitions of the rest go on; nobody is asked for a key here, so why a store failed is logged, not sent.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

/// The `Content-Type` of what [`body`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/health+json";

/// What a store answered.
#[derive(Debug)]
pub(crate) struct StoreCheck {
    pub(crate) name: String,
    pub(crate) result: Result<(), String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Pass,
    Warn,
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// The status and the body for what the stores answered; the first one is home. `now` is RFC 3339, in whole seconds.
pub(crate) fn body(stores: &[StoreCheck], shutting_down: bool, version: &str, now: &str) -> (StatusCode, String) {
    for store in stores {
        if let Err(error) = &store.result {
            tracing::warn!(store = %store.name, %error, "storage check failed");
        }
    }
    let home = stores.first().is_some_and(|home| home.result.is_ok());
    let status = if shutting_down || !home {
        Status::Fail
    } else if stores.iter().all(|store| store.result.is_ok()) {
        Status::Pass
    } else {
        Status::Warn
    };
    let mut checks = Map::new();
    checks.insert("queues:storage".to_owned(), check(status, now));
    if stores.len() > 1 {
        for store in stores {
            let status = if store.result.is_ok() { Status::Pass } else { Status::Fail };
            checks.insert(format!("store:{}", store.name), check(status, now));
        }
    }
    let mut body = json!({ "status": status.name(), "version": version, "checks": checks });
    if shutting_down {
        body["output"] = "service is shutting down".into();
    }
    let code = if status == Status::Fail { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (code, body.to_string())
}

/// A list, because the draft allows several nodes of one component; here it is always one.
fn check(status: Status, now: &str) -> Value {
    let mut check = json!({ "componentType": "datastore", "status": status.name(), "time": now });
    if status != Status::Pass {
        check["output"] = "storage check failed".into();
    }
    json!([check])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests assert")]

    use super::*;

    const NOW: &str = "2026-05-18T10:20:30Z";

    fn checked(stores: &[(&str, bool)], shutting_down: bool) -> (u16, Value) {
        let store = |(name, up): &(&str, bool)| StoreCheck {
            name: (*name).to_owned(),
            result: if *up { Ok(()) } else { Err("connection to 10.0.0.7 refused for user tenure".to_owned()) },
        };
        let stores: Vec<StoreCheck> = stores.iter().map(store).collect();
        let (code, text) = body(&stores, shutting_down, "dev-build", NOW);
        assert!(!text.contains("10.0.0.7"), "{text}");
        (code.as_u16(), serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_store_that_answers_passes() {
        let (code, body) = checked(&[("main", true)], false);
        assert_eq!(code, 200);
        let check = json!({ "componentType": "datastore", "status": "pass", "time": NOW });
        assert_eq!(body, json!({ "status": "pass", "version": "dev-build", "checks": { "queues:storage": [check] } }));
    }

    #[test]
    fn a_home_store_that_does_not_answer_fails_without_saying_why() {
        for stores in [&[("main", false)][..], &[("main", false), ("east", true)], &[]] {
            let (code, body) = checked(stores, false);
            assert_eq!(code, 503);
            assert_eq!(body["status"], "fail");
            let check = json!({
                "componentType": "datastore", "status": "fail", "time": NOW, "output": "storage check failed",
            });
            assert_eq!(body["checks"]["queues:storage"], json!([check]));
        }
    }

    #[test]
    fn another_store_that_does_not_answer_is_a_warning_and_is_named() {
        let (code, body) = checked(&[("main", true), ("east", false), ("west", true)], false);
        assert_eq!(code, 200);
        assert_eq!(body["status"], "warn");
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, elements) in body["checks"].as_object().unwrap() {
            assert_eq!(elements.as_array().unwrap().len(), 1);
            found.push((name.clone(), elements[0]["status"].as_str().unwrap().to_owned()));
        }
        let wanted =
            [("queues:storage", "warn"), ("store:east", "fail"), ("store:main", "pass"), ("store:west", "pass")];
        assert_eq!(found, wanted.map(|(name, status)| (name.to_owned(), status.to_owned())));
    }

    #[test]
    fn a_service_that_shuts_down_fails_however_its_stores_are() {
        let (code, body) = checked(&[("main", true)], true);
        assert_eq!(code, 503);
        assert_eq!(body["status"], "fail");
        assert_eq!(body["checks"]["queues:storage"][0]["output"], "storage check failed");
        assert_eq!(body["output"], "service is shutting down");
    }
}

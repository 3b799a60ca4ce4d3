//! HTTP itself: methods, paths, headers, limits, and what answers without being an RPC.

use serde_json::json;

use crate::support::api::{Api, Connection, JSON, Response, refusal, request};
use crate::support::queue::settings;
use crate::support::text::{SECOND, nanos, now};
use crate::support::{Backend, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "transport", &[])
}

/// Every RPC, by the length that its body may have.
const RPCS: [(usize, &str, &[&str]); 5] = [
    (512, "512B", &["queue.lease", "queue.stats", "queue.clear", "queue.reload"]),
    (512_000, "500.0KiB", &["queues.update"]),
    (5_000_000, "5.0MB", &["queue.produce"]),
    (64_000_000, "61.0MiB", &["storage/items.import"]),
    (
        256_000,
        "250.0KiB",
        &[
            "queue.complete",
            "queue.retry",
            "queues.create",
            "queues.list",
            "queues.info",
            "queues.delete",
            "storage/items.list",
            "storage/scheduled.list",
            "storage/items.delete",
            "namespaces.create",
            "namespaces.update",
            "namespaces.list",
            "namespaces.delete",
            "users.create",
            "users.list",
            "users.delete",
            "apikeys.create",
            "apikeys.list",
            "apikeys.delete",
            "roles.create",
            "roles.list",
            "roles.update",
            "roles.delete",
            "rolebindings.create",
            "rolebindings.list",
            "rolebindings.delete",
        ],
    ),
];

fn assert_refused(response: &Response, code: u16, message: &str) {
    assert_eq!((response.status, response.json()), (code, refusal(code, message)));
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
}

pub(crate) async fn only_post_is_allowed(backend: Backend) {
    let api = api(backend);
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/v1/queues.list", "/v1/nothing"] {
            let response = api.send(method, path, &[], b"").await;
            assert_refused(&response, 400, &format!("http method '{method}' not allowed; only POST"));
        }
    }
}

pub(crate) async fn an_unknown_path_is_not_implemented(backend: Backend) {
    let api = api(backend);
    for path in [
        "/v1/nothing",
        "/v1/queues.rebalance",
        "/v1/storage/scheduled.add",
        "/v1/storage/scheduled.delete",
        "/v1/storage.items-list",
        "/v1/queues.list/",
        "/v1/Queues.list",
        "/health",
        "/metrics",
    ] {
        let response = api.send("POST", path, &[JSON], b"{}").await;
        assert_refused(&response, 501, &format!("no such method; {path}"));
    }
}

pub(crate) async fn query_strings_are_ignored(backend: Backend) {
    let response = api(backend).send("POST", "/v1/queues.list?limit=-1&x=%00", &[JSON], b"{\"limit\":1}").await;
    assert_eq!(response.status, 200, "{response:?}");
}

pub(crate) async fn credentials_have_one_form_even_where_nobody_asks_for_them(backend: Backend) {
    let api = api(backend);
    for header in ["Basic dXNlcjpwYXNz", "bearer qtr-live-x", "Bearer", "qtr-live-x"] {
        for path in ["/v1/queues.list", "/v1/nothing"] {
            let response = api.send("POST", path, &[JSON, ("authorization", header)], b"{}").await;
            assert_refused(&response, 401, "invalid authorization header format");
        }
    }
    let response = api.send("POST", "/v1/queues.list", &[JSON, ("authorization", "Bearer whatever")], b"{}").await;
    assert_eq!(response.status, 200, "{response:?}");
}

pub(crate) async fn hooks_are_for_servers_that_were_started_with_them(backend: Backend) {
    let api = &api(backend);
    for path in ["/v1/test/queue.pause", "/v1/test/roles.add"] {
        let response = api.send("POST", path, &[JSON], b"{}").await;
        assert_refused(&response, 501, &format!("no such method; {path}"));
    }
    let (queue, next_year) = (unique("queue"), now() + 365 * 86_400 * SECOND);
    api.at(next_year).done("queues.create", &settings(&queue, &json!({}))).await;
    assert!((nanos(&api.info(&queue).await["created_at"]) - now()).abs() < 600 * SECOND, "the clock was set");
}

/// A request whose body has exactly so many bytes.
fn padded(length: usize) -> Vec<u8> {
    let mut body = json!({ "queue_name": "missing" }).to_string().into_bytes();
    body.resize(length, b' ');
    body
}

pub(crate) async fn a_body_may_be_as_long_as_its_limit_and_no_longer(backend: Backend) {
    let api = api(backend);
    for (limit, shown, rpcs) in RPCS {
        for rpc in rpcs {
            let path = format!("/v1/{rpc}");
            let response = api.send("POST", &path, &[JSON], &padded(limit)).await;
            assert!(!response.text().contains("exceeds"), "{rpc} {response:?}");
            let response = api.send("POST", &path, &[JSON], &padded(limit + 1)).await;
            assert_refused(&response, 400, &format!("request body exceeds {shown} limit"));
        }
    }
}

pub(crate) async fn a_body_without_a_length_has_the_same_limit(backend: Backend) {
    let api = api(backend);
    for (length, message) in [
        (512, "queue does not exist; no such queue named 'missing'"),
        (513, "request body exceeds 512B limit"),
        (100_000, "request body exceeds 512B limit"),
    ] {
        let mut bytes = b"POST /v1/queue.stats HTTP/1.1\r\nhost: tenure\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for chunk in padded(length).chunks(300) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let mut connection = Connection::open(api.address).await.unwrap();
        // It may be refused, and the connection closed, before all of it has arrived.
        connection.send(&bytes).await.ok();
        assert_refused(&connection.receive().await.unwrap(), 400, message);
    }
}

pub(crate) async fn a_connection_serves_many_requests_also_when_they_come_together(backend: Backend) {
    let api = api(backend);
    let mut connection = Connection::open(api.address).await.unwrap();
    for n in 0..50 {
        let bytes = request("POST", &format!("/v1/nothing-{n}"), &[JSON], b"{}");
        connection.send(&bytes).await.unwrap();
        let response = connection.receive().await.unwrap();
        assert_refused(&response, 501, &format!("no such method; /v1/nothing-{n}"));
    }
    let together: Vec<u8> = (0..20).flat_map(|n| request("POST", &format!("/v1/no-{n}"), &[JSON], b"{}")).collect();
    connection.send(&together).await.unwrap();
    for n in 0..20 {
        assert_refused(&connection.receive().await.unwrap(), 501, &format!("no such method; /v1/no-{n}"));
    }
}

pub(crate) async fn a_request_may_arrive_byte_by_byte(backend: Backend) {
    let api = api(backend);
    let mut connection = Connection::open(api.address).await.unwrap();
    for byte in request("POST", "/v1/queues.list", &[JSON], b"{ \"limit\" : 1 }") {
        connection.send(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.receive().await.unwrap().status, 200);
}

pub(crate) async fn what_is_not_http_harms_nobody(backend: Backend) {
    let api = api(backend);
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"\r\n\r\n\r\n", &[0; 4096]] {
        let mut connection = Connection::open(api.address).await.unwrap();
        connection.send(garbage).await.ok();
        drop(connection);
    }
    let mut halved = Connection::open(api.address).await.unwrap();
    let bytes = request("POST", "/v1/queues.list", &[JSON], &padded(1000));
    halved.send(&bytes[..bytes.len() - 500]).await.unwrap();
    drop(halved);
    api.ok("queues.list", &json!({ "limit": 1 })).await;
}

pub(crate) async fn health_says_that_the_store_works(backend: Backend) {
    let api = api(backend);
    // Nobody needs to be known for that.
    let response = api.send("GET", "/health", &[("authorization", "Basic nonsense")], b"").await;
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/health+json"));
    let body = response.json();
    assert_eq!(body["status"], "pass");
    assert!(body["version"].as_str().is_some_and(|version| !version.is_empty()), "{body}");
    let checks = body["checks"]["queues:storage"].as_array().unwrap();
    assert_eq!(checks.len(), 1, "{body}");
    assert_eq!((&checks[0]["componentType"], &checks[0]["status"]), (&json!("datastore"), &json!("pass")));
    assert!((nanos(&checks[0]["time"]) - now()).abs() < 60 * SECOND && nanos(&checks[0]["time"]) % SECOND == 0);
    assert_eq!(checks[0].get("output"), None);
}

pub(crate) async fn metrics_have_a_bounded_number_of_series(backend: Backend) {
    let api = api(backend);
    api.ok("queues.list", &json!({})).await;
    for n in 0..20 {
        let path = format!("/v1/attack-{n}");
        assert_eq!(api.send("POST", &path, &[JSON], b"{}").await.status, 501);
    }
    let response = api.get("/metrics").await;
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").is_some_and(|mime| mime.starts_with("text/plain")), "{response:?}");
    let text = response.text();
    assert!(!text.contains("attack"), "callers must not choose labels");
    let known: Vec<String> = RPCS.iter().flat_map(|(_, _, rpcs)| rpcs.iter()).map(|rpc| format!("/v1/{rpc}")).collect();
    let paths: Vec<&str> = text
        .split("path=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|path| *path != "other")
        .collect();
    assert!(paths.contains(&"/v1/queues.list"), "{text}");
    for path in paths {
        assert!(known.iter().any(|known| known == path), "the label '{path}' is no path of an RPC");
    }
}

pub(crate) async fn the_description_of_the_api_names_every_rpc(backend: Backend) {
    let api = api(backend);
    let response = api.get("/openapi.json").await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    let document = response.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")), "{}", document["openapi"]);
    let rpcs: Vec<&str> = RPCS.iter().flat_map(|(_, _, rpcs)| rpcs.iter().copied()).collect();
    for rpc in &rpcs {
        assert!(document["paths"][format!("/v1/{rpc}")]["post"].is_object(), "{rpc} is not described");
    }
    let described = document["paths"].as_object().unwrap().keys().filter(|path| path.starts_with("/v1/")).count();
    assert_eq!(described, rpcs.len(), "everything that is described exists");
    let page = api.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|mime| mime.starts_with("text/html")));
    assert!(page.text().contains("openapi.json"), "the page shows the description");
}

pub(crate) async fn every_described_rpc_is_answered(backend: Backend) {
    let api = api(backend);
    for rpc in RPCS.iter().flat_map(|(_, _, rpcs)| rpcs.iter()) {
        let (status, answer) = api.call(rpc, &json!({})).await;
        assert!([200, 400, 401, 453].contains(&status), "{rpc}: {answer}");
        let reply = status == 200 || answer["code"] == status;
        assert!(reply, "{rpc}: {answer}");
    }
}

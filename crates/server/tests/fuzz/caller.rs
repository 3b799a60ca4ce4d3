//! A service inside this process, called through its router, and what every answer of it must be like.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value as Json, json};
use tenure_server::{Options, Service, StoreOptions};
use tower::ServiceExt as _;

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROTOBUF: &str = "application/protobuf";

/// All statuses but 500.
const STATUSES: [u16; 9] = [200, 400, 401, 403, 453, 454, 455, 501, 512];

/// A service and the way to it.
#[derive(Clone)]
pub(crate) struct Caller {
    service: Arc<Service>,
    router: Router,
}

impl Caller {
    pub(crate) async fn start(dsn: &str, auth: bool) -> Self {
        // The reason of an internal error is in the log only.
        tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_test_writer().try_init().ok();
        let store = StoreOptions { name: "main".to_owned(), dsn: dsn.to_owned(), affinity: 1.0 };
        let service = Service::start(Options { stores: vec![store], auth, ..Options::default() }).await.unwrap();
        Caller { router: service.router(), service }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let mime = head.headers.get(CONTENT_TYPE).and_then(|mime| mime.to_str().ok()).unwrap_or_default().to_owned();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), mime, body }
    }

    /// Sends a body as what `mime` says it is; the path is without its `/v1/`.
    pub(crate) async fn post(&self, path: &str, mime: &'static str, body: impl Into<Body>) -> Answer {
        let mut request = Request::new(body.into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("/v1/{path}").parse().unwrap();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(mime));
        let answer = self.send(request).await;
        assert_eq!(answer.complaint(), None, "{path}: {answer:?}");
        answer
    }

    /// The same with JSON.
    pub(crate) async fn call(&self, path: &str, body: &Json) -> Answer {
        self.post(path, JSON, body.to_string()).await
    }

    /// The same when it must be carried out.
    pub(crate) async fn done(&self, path: &str, body: &Json) -> Json {
        let answer = self.call(path, body).await;
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        answer.json().unwrap()
    }

    pub(crate) async fn create_queue(&self, name: &str) {
        let settings = json!({
            "queue_name": name, "lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1,
        });
        self.done("queues.create", &settings).await;
    }

    /// Carries a message from its producer to its consumer, in a queue that nobody else has.
    pub(crate) async fn round_trip(&self) {
        let queue = "round-trip";
        self.create_queue(queue).await;
        let items = json!([{ "utf8": "still there" }]);
        self.done("queue.produce", &json!({ "queue_name": queue, "request_timeout": "5s", "items": items })).await;
        let lease = json!({ "queue_name": queue, "batch_size": 5, "client_id": "c", "request_timeout": "5s" });
        let leased = self.done("queue.lease", &lease).await;
        assert_eq!(leased["items"].as_array().map(Vec::len), Some(1), "{leased}");
        assert_eq!(leased["items"][0]["bytes"], "c3RpbGwgdGhlcmU=");
        let ids = json!([leased["items"][0]["id"]]);
        self.done("queue.complete", &json!({ "queue_name": queue, "request_timeout": "5s", "ids": ids })).await;
        let stats = self.done("queue.stats", &json!({ "queue_name": queue })).await;
        assert_eq!(stats["logicalQueues"][0]["partitions"][0].get("total"), None, "{stats}");
    }

    pub(crate) async fn stop(self) {
        self.service.shut_down().await;
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    mime: String,
    body: Bytes,
}

impl Answer {
    /// The body, if it is JSON.
    pub(crate) fn json(&self) -> Option<Json> {
        (self.mime == JSON).then(|| serde_json::from_slice(&self.body).ok()).flatten()
    }

    /// Why no client could live with this answer; none: it can.
    pub(crate) fn complaint(&self) -> Option<String> {
        if !STATUSES.contains(&self.status) {
            return Some(format!("status {}", self.status));
        }
        let code = match self.mime.as_str() {
            JSON => match self.json() {
                Some(Json::Object(body)) => body.get("code").and_then(Json::as_u64),
                _ => return Some("the body is no JSON object".to_owned()),
            },
            PROTOBUF => match fields(&self.body) {
                Some(fields) if self.status == 200 => number(&fields, 1),
                Some(fields) if is_text(&fields, 2) && is_text(&fields, 3) => number(&fields, 1),
                _ => return Some("the body is no message".to_owned()),
            },
            mime => return Some(format!("the content type is '{mime}'")),
        };
        let refused_otherwise = self.status != 200 && code != Some(self.status.into());
        refused_otherwise.then(|| format!("status {} with the code {code:?}", self.status))
    }
}

/// A field of protobuf: all answers consist of numbers and of chunks.
#[derive(Debug)]
enum Part<'a> {
    Number(u64),
    Chunk(&'a [u8]),
}

fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Part<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let part = match tag & 7 {
            0 => Part::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (chunk, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Part::Chunk(chunk)
            }
            _ => return None,
        };
        fields.push((tag >> 3, part));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return Some(value);
        }
    }
    None
}

fn number(fields: &[(u64, Part<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(at, part)| match part {
        Part::Number(number) if *at == wanted => Some(*number),
        _ => None,
    })
}

fn is_text(fields: &[(u64, Part<'_>)], wanted: u64) -> bool {
    let text = |part: &Part<'_>| matches!(part, Part::Chunk(chunk) if std::str::from_utf8(chunk).is_ok());
    fields.iter().any(|(at, part)| *at == wanted && text(part))
}

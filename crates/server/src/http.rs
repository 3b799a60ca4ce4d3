//! The router: from an HTTP request to an RPC and back.
//!
//! Invariants: a POST is always answered with a message in one of the two encodings, whatever is wrong with it; a body is
//! never longer than its RPC allows, and all bodies together never more than the service may hold; what goes wrong inside
//! is logged with the request's number and never shown; a handler that panics answers 500 and harms nobody else.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;

use crate::fault::{Answer, Fault};
use crate::metrics::{self, StoreState};
use crate::rpc::{self, Rpc};
use crate::service::Service;
use crate::stores::Member;
use crate::wire::{Encoding, encode};
use crate::{health, openapi};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How long a store may take to say that it works.
const PROBE: Duration = Duration::from_secs(5);
/// Bodies up to this size are not counted.
const SMALL: usize = 64 << 10;
/// How long a body waits for room while others hold all of it.
const CROWDED: Duration = Duration::from_secs(5);
/// How much beyond its limit of a body that is too long is read, and thrown away.
const DRAINED: usize = 8 << 20;
/// The page may load nothing but the description that it shows.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// Numbers the requests of this process.
static REQUESTS: AtomicU64 = AtomicU64::new(1);

impl Service {
    /// The service as an axum router, to be served or to be nested into another one.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }
}

async fn answer(State(service): State<Arc<Service>>, request: Request) -> Response<Body> {
    let (id, began) = (REQUESTS.fetch_add(1, Ordering::Relaxed), Instant::now());
    let _entered = service.metrics.enter();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if method == Method::GET
        && let Some(page) = page(&service, &path).await
    {
        return page;
    }
    let known = rpc::find(&path).map_or("other", |rpc| rpc.path);
    let encoding = respond_with(&service, request.headers());
    let answered = AssertUnwindSafe(call(&service, request, &method, &path, &encoding)).catch_unwind().await;
    let answered = answered.unwrap_or_else(|_| Err(Fault::internal("the handler panicked")));
    let code = answered.as_ref().map_or_else(|fault| fault.code, |_| 200);
    service.metrics.request(known, code, began.elapsed());
    match &answered {
        Ok(_) => tracing::debug!(request = id, path, took = ?began.elapsed(), "a request was answered"),
        Err(fault) => log(id, &method, &path, fault, began.elapsed()),
    }
    let encoding = encoding.unwrap_or(Encoding::Json);
    let body = answered.unwrap_or_else(|fault| encode(encoding, &fault.reply()));
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(encoding.mime()));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REQUEST_ID, HeaderValue::from(id));
    response
}

fn log(id: u64, method: &Method, path: &str, fault: &Fault, took: Duration) {
    let (code, reply) = (fault.code, &fault.message);
    match fault.source() {
        Some(source) if code == 500 => {
            tracing::error!(request = id, %method, path, code, reply, error = ?source, ?took, "a request failed");
        }
        Some(source) => {
            tracing::warn!(request = id, %method, path, code, reply, error = %source, ?took, "a request was refused");
        }
        None => tracing::debug!(request = id, %method, path, code, reply, ?took, "a request was refused"),
    }
}

/// The text of a header; none when it is absent. One that is no text cannot be anything that is known.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// How the answer is to be written.
fn respond_with(service: &Service, headers: &HeaderMap) -> Answer<Encoding> {
    let request = Encoding::of_content_type(text(headers, CONTENT_TYPE)).unwrap_or(Encoding::Json);
    Encoding::of_accept(text(headers, ACCEPT), request, service.options.mirror)
}

async fn call(
    service: &Arc<Service>,
    request: Request,
    method: &Method,
    path: &str,
    encoding: &Answer<Encoding>,
) -> Answer<Bytes> {
    if *method != Method::POST {
        return Err(Fault::bad(format!("http method '{method}' not allowed; only POST")));
    }
    #[cfg(feature = "test-hooks")]
    if service.options.test_hooks {
        crate::hooks::set_clock(service, request.headers()).await?;
    }
    let home = async || service.home().await;
    let caller = service.auth.identify(home, request.headers().get(AUTHORIZATION)).await?;
    #[cfg(feature = "test-hooks")]
    if service.options.test_hooks && crate::hooks::is_hook(path) {
        let (body, _held) = read(service, request, crate::hooks::LIMIT).await?;
        return crate::hooks::run(service, path, &body).await;
    }
    let rpc = rpc::find(path).ok_or_else(|| Fault::unknown_path(path))?;
    // An answer that nobody could read is refused before anything is done.
    let to = match encoding {
        Ok(encoding) => *encoding,
        Err(fault) => return Err(Fault::content(fault.message.clone())),
    };
    let from = Encoding::of_content_type(text(request.headers(), CONTENT_TYPE))?;
    let (body, _held) = read(service, request, limit(service, rpc)).await?;
    rpc.run(service, &caller, from, body, to).await
}

fn limit(service: &Service, rpc: &Rpc) -> usize {
    if rpc.body_limit == rpc::PRODUCE { service.options.max_produce_bytes } else { rpc.body_limit }
}

/// The body, and the memory that it holds.
async fn read(service: &Service, request: Request, limit: usize) -> Answer<(Bytes, Option<OwnedSemaphorePermit>)> {
    let declared = text(request.headers(), CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        drain(request.into_body(), limit).await;
        return Err(too_large(limit));
    }
    let mut room = Room { service, held: None };
    let body = collect(request.into_body(), limit, &mut room).await?;
    Ok((body, room.held))
}

/// Room for a body, taken as it arrives: what is only announced holds nothing.
struct Room<'a> {
    service: &'a Service,
    held: Option<OwnedSemaphorePermit>,
}

impl Room<'_> {
    async fn take(&mut self, bytes: usize) -> Answer<()> {
        let most = (self.service.options.max_body_memory >> 10).max(1);
        let kib = (bytes >> 10).clamp(1, most) as u32;
        let room = self.service.bodies.clone().acquire_many_owned(kib);
        let overloaded = || Fault::retry("queue is overloaded; try again later");
        let room = tokio::time::timeout(CROWDED, room).await.map_err(|_| overloaded())?.map_err(Fault::internal)?;
        match &mut self.held {
            Some(held) => held.merge(room),
            None => self.held = Some(room),
        }
        Ok(())
    }
}

async fn collect(mut body: Body, limit: usize, room: &mut Room<'_>) -> Answer<Bytes> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::transport(format!("the request body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            drain(body, limit).await;
            return Err(too_large(limit));
        }
        // Most bodies are small, and those never wait for the large ones.
        if first.len() + rest.len() + data.len() > SMALL {
            room.take(data.len()).await?;
        }
        // Nearly every body is one frame, which is then not copied.
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

/// Throws away what is left of a body that is too long, within reason: a connection that is closed while its client still
/// sends is reset, and the client never sees why.
async fn drain(mut body: Body, limit: usize) {
    let mut left = limit + DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

/// Binary units where the limit divides by 1024, decimal ones elsewhere, as the original prints them.
fn too_large(limit: usize) -> Fault {
    let (base, units) = match limit % 1024 {
        0 => (1024.0, ["B", "KiB", "MiB"]),
        _ => (1000.0, ["B", "kB", "MB"]),
    };
    let mut size = limit as f64;
    let mut unit = 0;
    while size >= base && unit < 2 {
        size /= base;
        unit += 1;
    }
    let size = if unit == 0 { format!("{limit}B") } else { format!("{size:.1}{}", units[unit]) };
    Fault::bad(format!("request body exceeds {size} limit"))
}

/// What can be looked at with a browser or a monitor; nobody needs a key for it.
async fn page(service: &Arc<Service>, path: &str) -> Option<Response<Body>> {
    match path {
        "/metrics" => Some(content(StatusCode::OK, metrics::CONTENT_TYPE, scrape(service).await)),
        "/health" => {
            let (status, body) = probe(service).await;
            Some(content(status, health::CONTENT_TYPE, body))
        }
        "/openapi.json" => Some(content(StatusCode::OK, "application/json", openapi::document_text())),
        "/" | "/docs" => {
            let mut page = content(StatusCode::OK, "text/html; charset=utf-8", openapi::PAGE);
            page.headers_mut().insert("content-security-policy", HeaderValue::from_static(POLICY));
            Some(page)
        }
        _ => None,
    }
}

fn content(status: StatusCode, mime: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(mime));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn probe(service: &Arc<Service>) -> (StatusCode, String) {
    let mut checks = Vec::new();
    for member in service.stores.all() {
        let probe = async { member.watched(member.store().await?.queue_list("", None, 1).await) };
        let result = match tokio::time::timeout(PROBE, probe).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it did not answer within 5 seconds".to_owned()),
        };
        checks.push(health::StoreCheck { name: member.name.clone(), result });
    }
    let now = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    health::body(&checks, service.is_closing(), env!("CARGO_PKG_VERSION"), &now)
}

async fn scrape(service: &Arc<Service>) -> String {
    let state = |member: &Arc<Member>| StoreState {
        name: member.name.clone(),
        up: member.failures() == 0 && member.opened().is_some(),
        vitals: member.opened().map(|store| store.vitals()).unwrap_or_default(),
    };
    let stores: Vec<StoreState> = service.stores.all().iter().map(state).collect();
    service.metrics.render(&service.depths().await, &stores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_printed_as_the_original_prints_them() {
        for (limit, text) in
            [(512, "512B"), (256_000, "250.0KiB"), (512_000, "500.0KiB"), (64_000_000, "61.0MiB"), (5_000_000, "5.0MB")]
        {
            assert_eq!(too_large(limit).message, format!("request body exceeds {text} limit"));
        }
    }
}

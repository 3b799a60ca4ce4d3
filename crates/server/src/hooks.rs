//! What only tests may do: set the clock, pause a queue, seed a role. Compiled with the feature `test-hooks`, and answered
//! only when the server was started with `--test-hooks`.

use std::sync::Arc;

use axum::http::HeaderMap;
use bytes::Bytes;
use serde::Deserialize;

use crate::fault::{Answer, Fault};
use crate::lifecycle;
use crate::service::Service;
use crate::wire::{Encoding, Reply, encode, ksuid};

/// Bodies of hooks.
pub(crate) const LIMIT: usize = 256_000;

#[derive(Deserialize)]
struct Pause {
    queue_name: String,
    pause: bool,
}

#[derive(Deserialize)]
struct AddRole {
    namespace: String,
    name: String,
    #[serde(default)]
    permissions: Vec<String>,
}

/// Sets the clock to the request's `X-Test-Now`, in nanoseconds since 1970, and does whatever is then due.
pub(crate) async fn set_clock(service: &Arc<Service>, headers: &HeaderMap) -> Answer<()> {
    let Some(now) = headers.get("x-test-now") else { return Ok(()) };
    let nanos = now.to_str().ok().and_then(|now| now.trim().parse::<i64>().ok());
    let nanos = nanos.ok_or_else(|| Fault::bad("X-Test-Now is invalid; give nanoseconds since 1970"))?;
    // All stores share one clock.
    service.stores.home().clock.set(nanos.div_euclid(1000));
    service.auth.forget();
    Ok(lifecycle::settle(service).await?)
}

/// Whether a path is one of ours.
pub(crate) fn is_hook(path: &str) -> bool {
    matches!(path, "/v1/test/queue.pause" | "/v1/test/roles.add")
}

/// Carries a hook out.
pub(crate) async fn run(service: &Arc<Service>, path: &str, body: &Bytes) -> Answer<Bytes> {
    let bad = |error: serde_json::Error| Fault::content(error.to_string());
    if path == "/v1/test/queue.pause" {
        let request: Pause = serde_json::from_slice(body).map_err(bad)?;
        service.desk(&request.queue_name).await?.pause(request.pause).await;
    } else {
        let request: AddRole = serde_json::from_slice(body).map_err(bad)?;
        let home = service.home().await?;
        home.role_ensure(&ksuid::random(), &request.namespace, &request.name, &request.permissions).await?;
        service.auth.forget();
    }
    Ok(encode(Encoding::Json, &Reply::ok()))
}

//! Queues: create, list, info, update, delete. The order of the checks is part of the protocol.

use std::time::Duration;

use tenure_store::{Kind, Queue, Settings};

use crate::auth::or_system;
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::service::no_such_queue;
use crate::wire::*;

/// How long dead letters that have no dead queue can still be seen and replayed.
const KEEP_DEAD: Duration = Duration::from_secs(7 * 86_400);

pub(super) async fn create(call: &Call<'_>, request: QueueInfo) -> Answer {
    check_name(&request.queue_name)?;
    let (lease, expire) = timeouts(&request)?;
    if !request.namespace.is_empty() {
        super::namespaces::check_name(&request.namespace)?;
    }
    let namespace = or_system(&request.namespace);
    call.authorize(namespace).await?;
    let home = call.home().await?;
    if home.namespace_get(namespace).await?.is_none() {
        return Err(Fault::failed(format!("namespace does not exist; '{namespace}' was not found")));
    }
    match home.queue_get(&request.queue_name).await {
        Err(error) if error.kind() == Kind::NotFound => {}
        Ok(_) => return Err(taken(&request.queue_name)),
        Err(error) => return Err(error.into()),
    }
    check_dead_queue(call, &request).await?;
    check_rest(&request, request.requested_partitions)?;
    check_timeouts(lease, expire)?;
    let dead = request.dead_queue.clone();
    let settings = Settings {
        namespace: namespace.to_owned(),
        partitions: request.requested_partitions as u32,
        lease: nanos(lease),
        expire: Some(nanos(expire)),
        max_attempts: limit(request.max_attempts),
        dead_queue: Some(request.dead_queue).filter(|name| !name.is_empty()),
        retain_dead: Some(KEEP_DEAD),
        tail_on_expiry: true,
        reference: request.reference,
        ..Settings::default()
    };
    match call.service.create_queue(&request.queue_name, settings).await {
        Ok(()) => Ok(Reply::ok()),
        Err(error) if error.kind() == Kind::AlreadyExists => Err(taken(&request.queue_name)),
        Err(error) if error.kind() == Kind::InvalidInput => Err(Fault::bad(format!("queue is invalid; {error}"))),
        // It was there a moment ago.
        Err(error) if error.kind() == Kind::NotFound => Err(no_dead_queue(&dead)),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn list(call: &Call<'_>, request: QueuesListRequest) -> Answer<QueuesListResponse> {
    let namespace = or_system(&request.namespace);
    call.authorize(namespace).await?;
    let limit = super::namespaces::check_limit(request.limit)?;
    if limit > 65_536 {
        return Err(Fault::bad("limit is invalid; cannot be greater than 65536"));
    }
    if request.pivot.contains('~') {
        return Err(Fault::bad(format!("pivot is invalid; '{}' cannot contain '~' character", request.pivot)));
    }
    let queues = call.home().await?.queue_list(&request.pivot, Some(namespace), limit).await?;
    Ok(QueuesListResponse { items: queues.iter().map(queue_info).collect() })
}

pub(super) async fn info(call: &Call<'_>, request: QueuesInfoRequest) -> Answer<QueueInfo> {
    call.queue(&request.queue_name).await?;
    let queue = call.home().await?.queue_get(&request.queue_name).await;
    queue.map(|queue| queue_info(&queue)).map_err(|error| missing(error, &request.queue_name))
}

pub(super) async fn update(call: &Call<'_>, request: QueueInfo) -> Answer {
    check_name(&request.queue_name)?;
    let (lease, expire) = timeouts(&request)?;
    if !request.namespace.is_empty() {
        super::namespaces::check_name(&request.namespace)?;
    }
    let home = call.home().await?;
    let found = home.queue_get(&request.queue_name).await.map_err(|error| missing(error, &request.queue_name))?;
    call.authorize(&found.settings.namespace).await?;
    check_dead_queue(call, &request).await?;
    let partitions = if request.requested_partitions == 0 { 1 } else { request.requested_partitions };
    check_rest(&request, partitions)?;
    let merged = |asked: i64, before: Option<Duration>| match asked {
        0 => before.map_or(0, |before| before.as_nanos() as i64),
        asked => asked,
    };
    let (lease, expire) = (merged(lease, Some(found.settings.lease)), merged(expire, found.settings.expire));
    check_timeouts(lease, expire)?;
    let settings = Settings {
        lease: nanos(lease),
        expire: Some(nanos(expire)),
        max_attempts: limit(request.max_attempts),
        dead_queue: Some(request.dead_queue).filter(|name| !name.is_empty()),
        reference: request.reference,
        ..found.settings
    };
    let name = &request.queue_name;
    call.service.update_queue(name, settings).await.map_err(|error| missing(error, name))?;
    if let Ok(requested @ 1..) = u32::try_from(request.requested_partitions) {
        home.queue_request_partitions(name, requested).await?;
    }
    Ok(Reply::ok())
}

pub(super) async fn delete(call: &Call<'_>, request: QueuesDeleteRequest) -> Answer {
    let name = &request.queue_name;
    check_name(name)?;
    let home = call.home().await?;
    let queue = home.queue_get(name).await.map_err(|error| missing(error, name))?;
    call.authorize(&queue.settings.namespace).await?;
    call.service.delete_queue(&queue).await.map_err(|error| missing(error, name))?;
    Ok(Reply::ok())
}

/// A queue as clients see it.
fn queue_info(queue: &Queue) -> QueueInfo {
    let Settings { namespace, partitions, lease, expire, max_attempts, dead_queue, reference, .. } =
        queue.settings.clone();
    let duration = |duration: Duration| go::format_duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX));
    QueueInfo {
        queue_name: queue.name.clone(),
        created_at: Some(Timestamp::from_micros(queue.created_at)),
        updated_at: Some(Timestamp::from_micros(queue.updated_at)),
        dead_queue: dead_queue.unwrap_or_default(),
        reference,
        lease_timeout: duration(lease),
        // A queue that was made elsewhere may keep its messages for ever.
        expire_timeout: expire.map_or_else(|| "0s".to_owned(), duration),
        max_attempts: max_attempts.map_or(0, |limit| i32::try_from(limit).unwrap_or(i32::MAX)),
        requested_partitions: partitions as i32,
        partitions: Vec::new(),
        namespace,
    }
}

fn check_name(name: &str) -> Answer<()> {
    if name.len() > 512 {
        return Err(Fault::bad("queue name is invalid; cannot be greater than '512' characters"));
    }
    if name.trim().is_empty() {
        return Err(Fault::bad("queue name is invalid; queue name cannot be empty"));
    }
    check_characters("queue name is invalid", name)
}

fn check_characters(what: &str, name: &str) -> Answer<()> {
    if name.contains(char::is_whitespace) {
        return Err(Fault::bad(format!("{what}; '{name}' cannot contain whitespace")));
    }
    if name.contains('~') {
        return Err(Fault::bad(format!("{what}; '{name}' cannot contain '~' character")));
    }
    // Databases cannot store it, and no error text of the original covers it.
    if name.contains('\0') {
        return Err(Fault::bad(format!("{what}; cannot contain a NUL character")));
    }
    Ok(())
}

/// Lease and expire time-out in nanoseconds; 0 where there is none.
fn timeouts(request: &QueueInfo) -> Answer<(i64, i64)> {
    for (what, text) in [("lease", &request.lease_timeout), ("expire", &request.expire_timeout)] {
        if text.len() > 15 {
            return Err(Fault::bad(format!("{what} timeout is invalid; cannot be greater than '15' characters")));
        }
    }
    let parse = |what: &str, text: &str, like: &str| match text {
        "" => Ok(0),
        text => go::parse_duration(text)
            .map_err(|error| Fault::bad(format!("{what} timeout is invalid; {error} - expected format: {like}"))),
    };
    let expire = parse("expire", &request.expire_timeout, "60m, 2h or 24h")?;
    Ok((parse("lease", &request.lease_timeout, "8m, 15m or 1h")?, expire))
}

fn check_timeouts(lease: i64, expire: i64) -> Answer<()> {
    for (what, nanos) in [("lease", lease), ("expire", expire)] {
        if nanos < 1_000 {
            return Err(Fault::bad(format!("{what} timeout is invalid; cannot be empty")));
        }
    }
    if lease > expire {
        let (lease, expire) = (go::format_duration(lease), go::format_duration(expire));
        return Err(Fault::bad(format!(
            "lease timeout is too long; {lease} cannot be greater than the expire timeout {expire}"
        )));
    }
    Ok(())
}

async fn check_dead_queue(call: &Call<'_>, request: &QueueInfo) -> Answer<()> {
    let dead = &request.dead_queue;
    if dead.is_empty() {
        return Ok(());
    }
    if dead.len() > 500 {
        return Err(Fault::bad("dead queue is invalid; cannot be greater than '500' characters"));
    }
    check_characters("dead queue is invalid", dead)?;
    if *dead == request.queue_name {
        return Err(Fault::bad("dead_queue cannot reference itself"));
    }
    match call.home().await?.queue_get(dead).await {
        Ok(queue) if queue.settings.dead_queue.is_some() => {
            Err(Fault::bad(format!("dead_queue is invalid; '{dead}' already has its own dead_queue configured")))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == Kind::NotFound => Err(no_dead_queue(dead)),
        Err(error) => Err(error.into()),
    }
}

fn check_rest(request: &QueueInfo, partitions: i32) -> Answer<()> {
    if request.reference.len() > 2000 {
        return Err(Fault::bad("reference field is invalid; cannot be greater than '2000' characters"));
    }
    if request.max_attempts > 65_536 {
        return Err(Fault::bad("max attempts is invalid; cannot be greater than 65536"));
    }
    if request.max_attempts < 0 {
        return Err(Fault::bad("max attempts is invalid; cannot be negative number"));
    }
    if partitions < 1 {
        return Err(Fault::bad("partitions is invalid; cannot be less than 1"));
    }
    // The original has no limit. Each partition costs a look of its own, so this many are a mistake.
    if partitions > 1000 {
        return Err(Fault::bad("partitions is invalid; cannot be greater than 1000"));
    }
    Ok(())
}

fn limit(max_attempts: i32) -> Option<u32> {
    u32::try_from(max_attempts).ok().filter(|limit| *limit > 0)
}

fn nanos(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

fn no_dead_queue(name: &str) -> Fault {
    Fault::bad(format!("dead_queue does not exist; '{name}' was not found, create it first"))
}

fn taken(name: &str) -> Fault {
    Fault::bad(format!("invalid queue; '{name}' already exists"))
}

fn missing(error: tenure_store::Error, name: &str) -> Fault {
    if error.kind() == Kind::NotFound { no_such_queue(name) } else { error.into() }
}

//! The queue at work: produce, lease, complete, retry, and what an operator does to all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tenure_store::{Answer as Finished, Clear, Due, End, Fence, Message, NewMessage, Place, State};
use tokio::time::Instant;

use crate::desk::{Desk, Part};
use crate::fault::{Answer, Fault};
use crate::metrics::Act;
use crate::rpc::Call;
use crate::wire::*;

/// What comes sooner than this is not worth scheduling.
const SOON: i64 = 100_000;
/// How long a produce that no store takes waits before it tries again.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(15 * 60);
const SHORTEST: Duration = Duration::from_millis(10);
/// The least time that a complete has for its store, whatever its request time-out says: the protocol accepts any.
const COMPLETE_SHORTEST: Duration = Duration::from_secs(1);
/// How long a retry has for its store. The protocol has no request time-out for it, and a client that hears nothing cannot tell a
/// busy store from a dead server.
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// Counts a call for as long as it lasts.
struct Counted<'a>(Vec<&'a AtomicUsize>);

impl<'a> Counted<'a> {
    fn new(counters: Vec<&'a AtomicUsize>) -> Self {
        for counter in &counters {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Counted(counters)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        for counter in &self.0 {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Enters a call that changes messages, unless too many are at it already.
fn enter<'a>(call: &Call<'_>, desk: &'a Desk, kind: Option<&'a AtomicUsize>) -> Answer<Counted<'a>> {
    let limit = call.service.options.max_requests_per_queue;
    if desk.busy.all.load(Ordering::Relaxed) >= limit + desk.waiting() {
        return Err(Fault::retry("queue is overloaded; try again later"));
    }
    Ok(Counted::new(kind.into_iter().chain([&desk.busy.all]).collect()))
}

/// A request's time-out as its client wrote it, in nanoseconds.
fn parse_timeout(text: &str) -> Answer<i64> {
    if text.is_empty() {
        return Ok(0);
    }
    go::parse_duration(text)
        .map_err(|error| Fault::bad(format!("request timeout is invalid; {error} - expected format: 900ms, 5m or 15m")))
}

fn required(nanos: i64) -> Answer<()> {
    if nanos == 0 {
        return Err(Fault::bad("request timeout is required; '5m' is recommended, 15m is the maximum"));
    }
    Ok(())
}

fn too_long(nanos: i64, is: impl Fn(i64, i64) -> bool) -> Answer<()> {
    if is(nanos, LONGEST.as_nanos() as i64) {
        let asked = go::format_duration(nanos);
        return Err(Fault::bad(format!(
            "request timeout is invalid; maximum timeout is '15m' but '{asked}' was requested"
        )));
    }
    Ok(())
}

fn too_short(nanos: i64) -> Answer<Duration> {
    match u64::try_from(nanos).map(Duration::from_nanos) {
        Ok(timeout) if timeout > SHORTEST => Ok(timeout),
        _ => {
            let asked = go::format_duration(nanos);
            Err(Fault::bad(format!(
                "request timeout is invalid; minimum timeout is '10ms' but '{asked}' was requested"
            )))
        }
    }
}

/// The desk of a queue, looked up within the request's own time-out, and how much of that was spent.
async fn queue_in_time(call: &Call<'_>, name: &str, timeout: &str) -> Answer<(Arc<Desk>, Duration)> {
    let started = Instant::now();
    let nanos = parse_timeout(timeout).ok().and_then(|nanos| u64::try_from(nanos).ok()).filter(|nanos| *nanos > 0);
    let limit = nanos.map_or(LONGEST, Duration::from_nanos).clamp(SHORTEST, LONGEST);
    let desk = tokio::time::timeout(limit, call.queue(name)).await.map_err(|_| timed_out())??;
    Ok((desk, started.elapsed()))
}

pub(super) async fn produce(call: &Call<'_>, request: QueueProduceRequest) -> Answer {
    let (desk, spent) = queue_in_time(call, &request.queue_name, &request.request_timeout).await?;
    let nanos = parse_timeout(&request.request_timeout)?;
    required(nanos)?;
    too_long(nanos, |nanos, longest| nanos >= longest)?;
    let timeout = too_short(nanos)?;
    let (count, most) = (request.items.len(), call.service.options.max_produce_batch);
    if count == 0 {
        return Err(Fault::bad("items cannot be empty; at least one item is required"));
    }
    if count > most {
        return Err(Fault::bad(format!("items is invalid; max_produce_batch_size is {most} but received {count}")));
    }
    let _counted = enter(call, &desk, Some(&desk.busy.produces))?;
    let messages: Vec<NewMessage> = request.items.into_iter().map(new_message).collect();
    let until = Instant::now() + timeout.saturating_sub(spent);
    loop {
        // Counted from here: while the queue is paused nothing times out.
        let limit = until.saturating_duration_since(Instant::now());
        match store(&desk, messages.clone(), limit).await {
            Ok(()) => break,
            // Another partition may take it, or this one in a moment; what may have been stored is not stored twice.
            Err((fault, again)) if !again || Instant::now() + PAUSE >= until => return Err(fault),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    call.service.metrics.count(Act::Produced, &desk.name, count as u64);
    Ok(Reply::ok())
}

/// Stores messages in the partition that is next; with a fault comes whether it may be tried again.
async fn store(desk: &Arc<Desk>, mut messages: Vec<NewMessage>, limit: Duration) -> Result<(), (Fault, bool)> {
    let count = messages.len();
    // Stores that fail may be back before the time is up.
    let place = desk.place(count).await.map_err(|fault| {
        let again = fault.code == 454;
        (fault, again)
    })?;
    // A client may leave at any time; what it had placed is then not on its way any more.
    let mut placed = Placed { desk, place, count, stored: None };
    let part = &desk.parts[place];
    let enqueued = async {
        let (store, queue) = part.open(&desk.name).await?;
        if messages.iter().any(|message| message.due.is_some()) {
            let now = part.member.watched(store.now().await)?;
            messages.iter_mut().for_each(|message| message.due = worth_scheduling(message.due, now));
        }
        let ready = messages.iter().filter(|message| message.due.is_none()).count();
        part.member.watched(store.enqueue(&queue, Some(part.local()), messages).await).map(|_| ready)
    };
    match tokio::time::timeout(limit, enqueued).await.map_err(|_| (timed_out(), false))? {
        Ok(ready) => {
            placed.stored = Some(ready);
            Ok(())
        }
        Err(error) => {
            let again = error.is_retryable() && !error.is_ambiguous();
            Err((not_stored(desk, error), again))
        }
    }
}

/// The fault of a call whose store took longer than its request time-out, for example because another process holds
/// SQLite's write lock.
fn timed_out() -> Fault {
    Fault::retry("request timeout; the store did not answer in time, try again")
}

/// A produce that has its partition: so many messages, and once they are stored, how many of them are ready.
struct Placed<'a> {
    desk: &'a Desk,
    place: usize,
    count: usize,
    stored: Option<usize>,
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        match self.stored {
            Some(ready) => self.desk.produced(self.place, self.count, ready),
            None => self.desk.not_produced(self.place, self.count),
        }
    }
}

fn not_stored(desk: &Desk, error: tenure_store::Error) -> Fault {
    match error.kind() {
        tenure_store::Kind::NotFound => crate::service::no_such_queue(&desk.name),
        tenure_store::Kind::InvalidInput => Fault::bad(format!("items is invalid; {error}")),
        _ => error.into(),
    }
}

/// A due time, unless it comes too soon or has passed. `now` is the time of the database: by the clock of a server that
/// runs a minute ahead, what is due in a minute would be ready at once.
fn worth_scheduling(due: Option<Due>, now: i64) -> Option<Due> {
    due.filter(|due| !matches!(due, Due::At(at) if *at < now.saturating_add(SOON)))
}

fn new_message(item: QueueProduceItem) -> NewMessage {
    let label = |text: String| Some(text).filter(|text| !text.is_empty());
    let due = item.enqueue_at.map(|at| at.to_micros());
    NewMessage {
        payload: if item.bytes.is_empty() { Bytes::from(item.utf8) } else { item.bytes },
        due: due.map(Due::At),
        kind: label(item.kind),
        encoding: label(item.encoding),
        reference: label(item.reference),
        ..NewMessage::default()
    }
}

pub(super) async fn lease(call: &Call<'_>, request: QueueLeaseRequest) -> Answer<QueueLeaseResponse> {
    let (desk, spent) = queue_in_time(call, &request.queue_name, &request.request_timeout).await?;
    let nanos = parse_timeout(&request.request_timeout)?;
    if request.client_id.trim().is_empty() {
        return Err(Fault::bad("invalid client id; cannot be empty"));
    }
    let most = call.service.options.max_lease_batch;
    let batch = usize::try_from(request.batch_size).unwrap_or(0);
    if batch == 0 {
        return Err(Fault::bad("invalid batch size; must be greater than zero"));
    }
    if batch > most {
        let message = format!("invalid batch size; max_lease_batch_size is {most}, but {batch} was requested");
        return Err(Fault::bad(message));
    }
    required(nanos)?;
    too_long(nanos, |nanos, longest| nanos > longest)?;
    let timeout = too_short(nanos)?;
    let _counted = enter(call, &desk, None)?;
    let (partition, messages) = desk.lease(request.client_id, batch, timeout.saturating_sub(spent)).await?;
    call.service.metrics.count(Act::Leased, &desk.name, messages.len() as u64);
    let items = messages.into_iter().map(lease_item).collect();
    Ok(QueueLeaseResponse { queue_name: request.queue_name, partition: partition as i32, items })
}

fn lease_item(message: Message) -> QueueLeaseItem {
    QueueLeaseItem {
        encoding: message.encoding.unwrap_or_default(),
        kind: message.kind.unwrap_or_default(),
        reference: message.reference.unwrap_or_default(),
        id: ksuid::of_message(message.id),
        attempts: i32::try_from(message.attempts).unwrap_or(i32::MAX),
        lease_deadline: Some(Timestamp::from_micros(message.leased_until)),
        bytes: message.payload,
    }
}

pub(super) async fn complete(call: &Call<'_>, request: QueueCompleteRequest) -> Answer {
    let (desk, spent) = queue_in_time(call, &request.queue_name, &request.request_timeout).await?;
    let part = desk.part(request.partition)?;
    let nanos = parse_timeout(&request.request_timeout)?;
    let (count, most) = (request.ids.len(), call.service.options.max_complete_batch);
    if count == 0 {
        return Err(Fault::bad("ids is invalid; list of ids cannot be empty"));
    }
    if count > most {
        return Err(Fault::bad(format!("ids is invalid; max_complete_batch_size is {most} but received {count}")));
    }
    too_long(nanos, |nanos, longest| nanos > longest)?;
    required(nanos)?;
    let _counted = enter(call, &desk, Some(&desk.busy.completes))?;
    desk.pass_gate().await?;
    let ends = request.ids.into_iter().map(|id| (id, End::Complete)).collect();
    let limit = u64::try_from(nanos).map_or(LONGEST, Duration::from_nanos);
    let limit = limit.saturating_sub(spent).max(COMPLETE_SHORTEST);
    let finished = tokio::time::timeout(limit, finish(&desk, part, ends, "item(s) cannot be completed")).await;
    let (done, refused) = finished.map_err(|_| timed_out())?;
    call.service.metrics.count(Act::Completed, &desk.name, done as u64);
    refused.map(|()| Reply::ok())
}

pub(super) async fn retry(call: &Call<'_>, request: QueueRetryRequest) -> Answer {
    let desk = call.queue(&request.queue_name).await?;
    let part = desk.part(request.partition)?;
    let (count, most) = (request.items.len(), call.service.options.max_complete_batch);
    if count == 0 {
        return Err(Fault::bad("items is invalid; list of items cannot be empty"));
    }
    if count > most {
        return Err(Fault::bad(format!("items is invalid; max_complete_batch_size is {most} but received {count}")));
    }
    let _counted = enter(call, &desk, Some(&desk.busy.completes))?;
    desk.pass_gate().await?;
    let retried = tokio::time::timeout(RETRY_LONGEST, retry_all(&desk, part, request.items)).await;
    let (done, refused) = retried.map_err(|_| timed_out())??;
    call.service.metrics.count(Act::Retried, &desk.name, done as u64);
    refused.map(|()| Reply::ok())
}

/// Retries, schedules or buries items one after the other until one cannot be: how many were, and why not the next.
async fn retry_all(desk: &Desk, part: &Part, items: Vec<QueueRetryItem>) -> Answer<(usize, Answer<()>)> {
    let now = if items.iter().any(|item| item.retry_at.is_some()) {
        let (store, _) = part.lane(&desk.name).await?;
        part.member.watched(store.now().await).map_err(|error| again(part.fault(&desk.name, error)))?
    } else {
        0
    };
    let end = |item: &QueueRetryItem| match item.dead {
        true => End::Bury { reason: "declared dead by its consumer".to_owned() },
        false => {
            // Under the same id while it waits; promotion gives it a new one.
            let due = item.retry_at.as_ref().map(|at| Due::At(at.to_micros()));
            End::Retry { due: worth_scheduling(due, now), place: Place::Tail }
        }
    };
    let ready = items.iter().filter(|item| matches!(end(item), End::Retry { due: None, .. })).count();
    let ends = items.into_iter().map(|item| (item.id.clone(), end(&item))).collect();
    let (done, refused) = finish(desk, part, ends, "item(s) cannot be retried").await;
    if ready.min(done) > 0 {
        desk.returned(part, ready.min(done));
    }
    Ok((done, refused))
}

/// Ends leases one after the other until one cannot be: how many were ended, and why not the next.
async fn finish(desk: &Desk, part: &Part, ends: Vec<(String, End)>, refusal: &str) -> (usize, Answer<()>) {
    let (store, queue) = match part.open(&desk.name).await {
        Ok(open) => open,
        Err(error) => return (0, Err(part.fault(&desk.name, error))),
    };
    let (lane, keeps) = (queue.lanes[part.local() as usize], queue.settings.retain_completed.is_some());
    // What comes before a malformed id is done all the same.
    let mut malformed = Ok(());
    let mut items = Vec::with_capacity(ends.len());
    let mut ids = Vec::with_capacity(ends.len());
    for (id, end) in ends {
        match item_id(&id) {
            // An id that is not one of ours is no message's id, and none is 0.
            Ok(ksuid) => {
                let end = if end == End::Complete && !keeps { End::Discard } else { end };
                items.push((Fence::any(ksuid.message().unwrap_or(0)).within(lane), end));
            }
            Err(fault) => {
                malformed = Err(fault);
                break;
            }
        }
        ids.push(id);
    }
    let positions: Vec<i64> = items.iter().map(|(fence, _)| fence.id).collect();
    let answers = match part.member.watched(store.finish_in_order(items).await) {
        Ok(answers) => answers,
        Err(error) => return (0, Err(again(part.fault(&desk.name, error)))),
    };
    let is_done = |answer: &Finished| matches!(answer, Finished::Done | Finished::Already);
    let done = answers.iter().take_while(|answer| is_done(answer)).count();
    desk.ended(part, positions[..done].iter().copied());
    let Some(id) = ids.get(done) else { return (done, malformed) };
    let refused = match store.message_list(lane, State::Live, positions[done], 1).await {
        Ok(live) if live.first().is_some_and(|message| message.id == positions[done]) => {
            Fault::bad(format!("{refusal}; '{id}' is not marked as leased"))
        }
        Ok(_) => Fault::bad(format!("invalid storage id; '{id}' does not exist")),
        Err(error) => part.fault(&desk.name, error),
    };
    (done, Err(refused))
}

/// Whatever the store says no to, ending a lease may be tried again.
fn again(fault: Fault) -> Fault {
    if fault.code == 500 { fault.into_retry("internal error, try your request again") } else { fault }
}

/// An item's id as a client wrote it.
pub(super) fn item_id(id: &str) -> Answer<ksuid::Ksuid> {
    ksuid::parse(id).map_err(|reason| Fault::bad(format!("invalid storage id; '{id}': {reason}")))
}

pub(super) async fn stats(call: &Call<'_>, request: QueueStatsRequest) -> Answer<QueueStatsResponse> {
    let desk = call.queue(&request.queue_name).await?;
    let mut partitions = Vec::with_capacity(desk.parts.len());
    for part in &desk.parts {
        let mut stats = QueuePartitionStats {
            partition: part.number as i32,
            failures: i32::try_from(part.member.failures()).unwrap_or(i32::MAX),
            average_age: "0s".to_owned(),
            average_leased_age: "0s".to_owned(),
            ..QueuePartitionStats::default()
        };
        // A partition whose store is away is shown as failing, not as empty.
        if let Ok((store, queue)) = part.open(&desk.name).await
            && let Ok(lane) = part.member.watched(store.lane_stats(queue.lanes[part.local() as usize]).await)
        {
            let age = |age: Option<Duration>| {
                go::format_duration(age.map_or(0, |age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)))
            };
            let count = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
            stats.total = count(lane.ready + lane.leased);
            stats.total_leased = count(lane.leased);
            stats.scheduled = count(lane.scheduled);
            stats.average_age = age(lane.average_age);
            stats.average_leased_age = age(lane.average_lease_left);
        }
        stats.failures = i32::try_from(part.member.failures()).unwrap_or(i32::MAX);
        partitions.push(stats);
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) as i32;
    let logical = QueueLogicalStats {
        produce_waiting: count(&desk.busy.produces),
        lease_waiting: desk.parked() as i32,
        complete_waiting: count(&desk.busy.completes),
        in_flight: count(&desk.busy.all),
        partitions,
    };
    Ok(QueueStatsResponse { queue_name: request.queue_name, logical_queues: vec![logical] })
}

pub(super) async fn clear(call: &Call<'_>, request: QueueClearRequest) -> Answer {
    let desk = call.queue(&request.queue_name).await?;
    if !request.queue && !request.scheduled {
        return Err(Fault::bad("invalid clear request; one of 'queue', 'scheduled' must be true"));
    }
    let which =
        Clear { ready: request.queue, leased: request.queue && request.destructive, scheduled: request.scheduled };
    for part in &desk.parts {
        let (store, lane) = part.lane(&desk.name).await?;
        part.member.watched(store.lane_clear(lane, which).await).map_err(|error| part.fault(&desk.name, error))?;
    }
    desk.recount().await;
    Ok(Reply::ok())
}

pub(super) async fn reload(call: &Call<'_>, request: QueueReloadRequest) -> Answer {
    let desk = call.queue(&request.queue_name).await?;
    for part in &desk.parts {
        part.member.wake();
    }
    desk.recount().await;
    Ok(Reply::ok())
}

//! What happens to queues that nobody looks at: due messages become ready, leases that ran out are recovered, and what must die
//! dies. The stores' housekeeping is a task of its own, because a round of it can take long.
//!
//! Invariants: everything comes from the stores and nothing from memory, so it also happens after a restart; any number of
//! processes may do this at the same time, because every step takes only rows that nobody else is working on; no step walks
//! a long queue in one go.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rand::Rng as _;
use tenure_store::{Backend, Error, Import, Kind, Queue, Store};

use crate::service::Service;
use crate::stores::Member;
use crate::wire::ksuid;

/// How often it is looked what is due.
const EVERY: Duration = Duration::from_secs(1);
/// How often a lane is walked on.
const WALK_EVERY: Duration = Duration::from_secs(4);
/// After how long a walk that is not continued is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// Queues that are looked after in one turn, beside those in use: 3,000 queues in a minute.
const QUEUES: usize = 50;
/// The same in stores other than home, where each may have dead letters to be carried, which takes a statement.
const QUEUES_ELSEWHERE: usize = 5;
/// Lanes that are looked at with one statement.
const TOGETHER: usize = 64;
/// Lanes with due messages that are served in one turn.
const LANES: usize = 1000;
/// Dead letters that are carried to another store at once.
const CARRIED: usize = 100;
/// How often it is asked whether the housekeeping of a store is due; one process does it then.
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);

/// How far the walks over lanes have come, and when each went on; and how far the one over all queues.
#[derive(Default)]
struct Walks {
    lanes: HashMap<i64, (i64, Instant)>,
    queues: String,
}

/// Looks after all queues of a store until the service ends.
pub(crate) async fn keep(service: Weak<Service>, member: Arc<Member>) {
    let mut walks = Walks::default();
    loop {
        let Some(service) = service.upgrade().filter(|service| !service.is_closing()) else { return };
        if member.is_up()
            && let Err(error) = turn(&service, &member, &mut walks).await
        {
            tracing::warn!(%error, store = member.name, "queues could not be looked after");
        }
        drop(service);
        // Lanes that are gone are not met again.
        walks.lanes.retain(|_, (_, at)| at.elapsed() < FORGOTTEN);
        // Not in step with other processes.
        let pause = EVERY.mul_f64(rand::rng().random_range(0.8..1.2));
        tokio::time::sleep(pause).await;
    }
}

/// Does the housekeeping of a store, when no other process does, until the service ends.
pub(crate) async fn maintain(service: Weak<Service>, member: Arc<Member>) {
    loop {
        if service.upgrade().is_none_or(|service| service.is_closing()) {
            return;
        }
        // At the start too: a store whose servers are often restarted is maintained all the same.
        if member.is_up() {
            let done = match member.store().await {
                Ok(store) => member.watched(store.maintain_in_turn().await),
                Err(error) => Err(error),
            };
            match done {
                Ok(Some(done)) => tracing::debug!(?done, store = member.name, "housekeeping is done"),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, store = member.name, "housekeeping failed, and is tried again"),
            }
        }
        let pause = MAINTAIN_EVERY.mul_f64(rand::rng().random_range(0.8..1.2));
        tokio::time::sleep(pause).await;
    }
}

/// One turn in one store.
async fn turn(service: &Arc<Service>, member: &Arc<Member>, walks: &mut Walks) -> Result<(), Error> {
    let store = member.store().await?;
    for lane in member.watched(store.lanes_due(LANES).await)? {
        go_on(lane, member.watched(store.promote(lane).await))?;
    }
    let mut lanes = BTreeSet::new();
    service.close_idle_desks();
    for desk in service.open_desks() {
        // Another process may have deleted the queue, and the leases that wait for it here would never be answered.
        if desk.waiting() > 0 {
            service.desk(&desk.name).await.ok();
        }
        for part in desk.parts.iter().filter(|part| Arc::ptr_eq(&part.member, member)) {
            if let Ok((_, queue)) = part.open(&desk.name).await {
                lanes.insert(queue.lanes[part.local() as usize]);
            }
        }
    }
    let pivot = std::mem::take(&mut walks.queues);
    let is_home = Arc::ptr_eq(member, service.stores.home());
    let page = if is_home { QUEUES } else { QUEUES_ELSEWHERE };
    let queues = member.watched(store.queue_list(&pivot, None, page).await)?;
    if queues.len() == page
        && let Some(last) = queues.last()
    {
        walks.queues = behind(&last.name);
    }
    lanes.extend(queues.iter().flat_map(|queue| &queue.lanes));
    tend(&store, member, lanes, walks).await?;
    for queue in queues.iter().filter(|_| !is_home) {
        go_on(queue.id, carry_dead(service, member, &store, queue).await)?;
    }
    Ok(())
}

/// Carries dead letters to a dead queue that lives in another store: stored there first, then forgotten here. Should this
/// end in between, the letter's source keeps it from being stored twice for as long as it is there.
async fn carry_dead(service: &Arc<Service>, member: &Member, store: &Store, queue: &Queue) -> Result<(), Error> {
    let dead = store.archive_dead(queue.id, None, CARRIED).await?;
    if dead.is_empty() {
        return Ok(());
    }
    // Not now, while home is away; never, for a queue that home does not know or that has no dead queue.
    let Ok(home) = service.stores.home().store().await else { return Ok(()) };
    let Ok(Some(name)) = home.queue_get(&queue.name).await.map(|queue| queue.settings.dead_queue) else {
        return Ok(());
    };
    let Ok(target) = home.queue_get(&name).await else { return Ok(()) };
    for id in dead {
        let Some(letter) = store.archive_get(id).await? else { continue };
        let now = home.now().await?;
        let copy = Import {
            // Every store counts from 1.
            source_id: Some(format!("{}/{}", member.name, ksuid::of_message(letter.id))),
            expire_at: target.settings.expire.map(|expire| now.saturating_add(expire.as_micros() as i64)),
            kind: letter.kind,
            encoding: letter.encoding,
            reference: letter.reference,
            payload: letter.payload,
            ..Import::default()
        };
        if let Err(error) = home.message_import(target.lanes[0], vec![copy]).await {
            tracing::warn!(%error, queue = queue.name, "a dead letter waits to be carried to its dead queue");
            return Ok(());
        }
        store.archive_delete(queue.id, id).await?;
    }
    Ok(())
}

/// Goes on with the walks over these lanes, those that are due.
async fn tend(store: &Store, member: &Member, lanes: BTreeSet<i64>, walks: &mut Walks) -> Result<(), Error> {
    let is_due = |lane: &i64| walks.lanes.get(lane).is_none_or(|(_, at)| at.elapsed() >= WALK_EVERY);
    let walked = |lane: i64| (lane, walks.lanes.get(&lane).map_or(0, |(walked, _)| *walked));
    let due: Vec<(i64, i64)> = lanes.into_iter().filter(is_due).map(walked).collect();
    // Turso has one connection, which the calls of clients wait for.
    let together = if store.backend() == Backend::Turso { TOGETHER / 16 } else { TOGETHER };
    for part in due.chunks(together) {
        let tended = match member.watched(store.tend(part).await) {
            // One lane may be the reason, and must not keep the others from being looked after.
            Err(error) if part.len() > 1 && error.kind() != Kind::Unavailable => {
                let mut alone = Vec::with_capacity(part.len());
                for walk in part {
                    alone.push(store.tend(&[*walk]).await.and_then(|mut tended| tended.remove(0)));
                }
                alone
            }
            Err(error) if error.kind() != Kind::Unavailable => vec![Err(error)],
            tended => tended?,
        };
        for ((lane, _), tended) in part.iter().zip(tended) {
            let walked = go_on(*lane, member.watched(tended))?.unwrap_or(0);
            walks.lanes.insert(*lane, (walked, Instant::now()));
        }
    }
    Ok(())
}

/// What fails in one lane must not stop the care for the others, unless the whole store is away.
fn go_on<T>(lane: i64, result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        Err(error) => {
            tracing::warn!(%error, lane, "a lane could not be looked after");
            Ok(None)
        }
    }
}

/// The least name behind this one: no name holds a NUL.
fn behind(name: &str) -> String {
    format!("{name}\u{1}")
}

/// Does at once whatever is due anywhere: for tests that move the clock.
#[cfg(feature = "test-hooks")]
pub(crate) async fn settle(service: &Arc<Service>) -> Result<(), Error> {
    for member in service.stores.all() {
        let store = member.store().await?;
        let mut pivot = String::new();
        loop {
            let queues = store.queue_list(&pivot, None, 1000).await?;
            for lane in queues.iter().flat_map(|queue| &queue.lanes) {
                store.promote(*lane).await?;
                let mut walked = store.tend(&[(*lane, 0)]).await?.remove(0)?;
                while walked > 0 {
                    walked = store.tend(&[(*lane, walked)]).await?.remove(0)?;
                }
            }
            for queue in queues.iter().filter(|_| !Arc::ptr_eq(member, service.stores.home())) {
                carry_dead(service, member, &store, queue).await?;
            }
            match queues.last().filter(|_| queues.len() == 1000) {
                Some(last) => pivot = behind(&last.name),
                None => break,
            }
        }
    }
    for desk in service.open_desks() {
        desk.recount().await;
    }
    Ok(())
}

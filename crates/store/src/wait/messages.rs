//! Claims of messages: concurrent claims of the same lanes share their looks, whatever their workers and leases.
//!
//! Invariants: messages are dealt one at a time, round-robin, so that no waiting claim is starved by a greedy one; a message
//! without attempts or time left is buried and never delivered; a claim of a stopped worker leases nothing and ends with an
//! error.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Moved, micros};
use crate::db::Conn;
use crate::error::Result;
use crate::ops::claim::{self, Batch, Terms, Wanted};
use crate::ops::finish::{Finish, Verb, finish, is_one_statement};
use crate::ops::lifecycle::{ALL, burial};
use crate::ops::no_lane;
use crate::ops::worker::worker_stopped;
use crate::sql::LANE_CHECK;
use crate::store::Shared;
use crate::types::{Message, Micros};
use crate::value::Value;
use crate::wait::cursor::Scanned;
use crate::wait::hub::{Hub, Lane};
use crate::wait::lease::{Held, Lease, Leased};
use crate::wait::waiters::{Asked, Round, Topic, Waiters};

/// Messages in one claim statement.
const PASS: usize = 1000;
/// Messages without attempts or time that one claim buries before it answers; more are buried beside the claims.
pub(crate) const MET: usize = 32;
/// How often a claim that waits asks whether its worker was stopped.
const WORKER_CHECK_EVERY: Duration = Duration::from_secs(1);

/// The messages of some lanes.
pub(crate) struct Messages {
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Which lane the next look begins with, so that every lane is first in turn.
    turn: AtomicUsize,
    /// When workers of waiting claims were last found not to be stopped.
    workers_checked: Mutex<HashMap<i64, Instant>>,
    clock_moved: Mutex<Moved>,
}

impl Messages {
    pub(crate) fn of(hub: &Hub, lanes: &[i64]) -> Arc<Waiters<Self>> {
        let waiters = Waiters::new(Messages {
            lanes: lanes.iter().map(|lane| hub.lane(*lane)).collect(),
            turn: AtomicUsize::new(0),
            workers_checked: Mutex::default(),
            clock_moved: Mutex::new(hub.clock.watch()),
        });
        for lane in &waiters.topic.lanes {
            lane.state().claims.add(&waiters);
        }
        waiters
    }

    /// Leases messages for claims, lane by lane, and hands each what it gets from a lane.
    async fn take(&self, shared: &Arc<Shared>, rooms: &[Room]) -> Result<Vec<Vec<Message>>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut hands: Vec<Vec<Message>> = rooms.iter().map(|_| Vec::new()).collect();
        for n in 0..self.lanes.len() {
            let lane = &self.lanes[(turn + n) % self.lanes.len()];
            let taken = hands.iter().map(Vec::len).sum::<usize>();
            match shared.take(lane, &left(rooms, &hands), PASS - taken).await {
                Ok(more) => hands.iter_mut().zip(more).for_each(|(hand, more)| hand.extend(more)),
                // What was leased before the failure has holders who wait for it.
                Err(_) if taken > 0 => return Ok(hands),
                Err(error) => return Err(error),
            }
        }
        Ok(hands)
    }

    /// Tells claims that found nothing when their worker was stopped, or is not there any more. Claims that find
    /// messages do not pay for this: a worker that is not ready leases nothing.
    async fn dismiss_stopped(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>) {
        let due: BTreeSet<i64> = {
            let mut checked = self.workers_checked.lock().unwrap_or_else(PoisonError::into_inner);
            checked.retain(|_, at| at.elapsed() < WORKER_CHECK_EVERY);
            let is_due =
                |asked: &Asked<Room>| asked.want.0.worker.filter(|worker| asked.first || !checked.contains_key(worker));
            round.open().into_iter().filter_map(|n| is_due(&round.asked[n])).collect()
        };
        if due.is_empty() {
            return;
        }
        let stopped = match shared.stopped(due.iter().copied().collect()).await {
            Ok(stopped) => stopped,
            Err(error) => {
                tracing::debug!(%error, "could not ask whether workers were stopped; claims go on waiting");
                return;
            }
        };
        let now = Instant::now();
        self.workers_checked.lock().unwrap_or_else(PoisonError::into_inner).extend(due.into_iter().map(|id| (id, now)));
        for n in round.open() {
            if let Some(worker) = round.asked[n].want.0.worker.filter(|worker| stopped.contains(worker)) {
                round.answer(n, Err(worker_stopped(worker)));
            }
        }
    }
}

impl Topic for Messages {
    type Home = Shared;
    type Want = Room;
    type Answer = Result<Option<Lease<Held<Vec<Message>>>>>;

    async fn look(&self, shared: &Arc<Shared>, round: &mut Round<'_, Self>) -> bool {
        let mut rooms: Vec<Room> = round.asked.iter().map(|asked| asked.want).collect();
        // The first claims take all places of the statement, and may be of workers that are not ready.
        let first = if rooms.len() > PASS { self.turn.load(Ordering::Relaxed) * PASS % rooms.len() } else { 0 };
        rooms.rotate_left(first);
        let mut hands = match self.take(shared, &rooms).await {
            Ok(hands) => hands,
            Err(error) => {
                round.fail(&error);
                return false;
            }
        };
        hands.rotate_right(first);
        let more = hands.iter().map(Vec::len).sum::<usize>() == PASS;
        for (n, hand) in hands.into_iter().enumerate().filter(|(_, hand)| !hand.is_empty()) {
            round.answer(n, Ok(Some(Held::lease(shared, hand))));
        }
        // They do not wait for the question below.
        round.send();
        self.dismiss_stopped(shared, round).await;
        more
    }

    async fn rest(&self, shared: &Arc<Shared>) -> Result<()> {
        let _waiting = shared.hub.wait();
        tokio::select! {
            () = tokio::time::sleep(shared.hub.rest(&self.lanes)) => {}
            () = Moved::keep(&self.clock_moved) => {}
        }
        Ok(())
    }
}

impl Leased for Held<Vec<Message>> {
    async fn release(self) {
        if let Err(error) = self.shared.release_messages(self.it).await {
            tracing::warn!(%error, "could not release messages of a caller that has gone; they become available when their leases expire");
        }
    }
}

/// On which terms a claim leases, and how many messages it takes.
pub(crate) type Room = (Terms, usize);

/// What claims can still take.
fn left(rooms: &[Room], hands: &[Vec<Message>]) -> Vec<Room> {
    rooms.iter().zip(hands).map(|((terms, limit), hand)| (*terms, limit - hand.len())).collect()
}

impl Shared {
    /// Leases messages of a lane for claims, `most` in all. What each gets: messages are dealt one at a time, in order.
    pub(crate) async fn take(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        rooms: &[Room],
        most: usize,
    ) -> Result<Vec<Vec<Message>>> {
        let mut hands: Vec<Vec<Message>> = rooms.iter().map(|_| Vec::new()).collect();
        let mut met = 0;
        loop {
            let taken = hands.iter().map(Vec::len).sum::<usize>();
            let open: Vec<usize> = left(rooms, &hands).iter().map(|(_, limit)| *limit).collect();
            let owners = turns(&open, most - taken);
            if owners.is_empty() {
                return Ok(hands);
            }
            let claimed = match self.claim(lane, owners.iter().map(|owner| rooms[*owner].0).collect()).await {
                Ok(claimed) => claimed,
                Err(_) if taken > 0 => return Ok(hands),
                Err(error) => return Err(error),
            };
            self.tallies.claimed.add(claimed.messages.len());
            let burials: Vec<Finish> = claimed.messages.iter().filter_map(|(_, claimed)| burial(claimed)).collect();
            met += burials.len();
            if met > MET {
                self.bury_behind(lane, burials);
            } else if !burials.is_empty()
                && let Err(error) = self.finish_now(burials).await
            {
                tracing::warn!(%error, "dead messages stay leased, and are buried when their lease has run out");
            }
            for (slot, claimed) in claimed.messages.into_iter().filter(|(_, claimed)| claimed.doomed.is_none()) {
                hands[owners[slot]].push(claimed.message);
            }
            if !claimed.full {
                return Ok(hands);
            }
        }
    }

    /// One claim of one lane, from where its cursor stands, with a place for each message on the terms of its claim.
    async fn claim(&self, lane: &Lane, slots: Vec<Terms>) -> Result<Batch> {
        let hub = &self.hub;
        let began = hub.steady();
        self.prepare(lane).await?;
        let (scan, skip_doomed) = {
            let mut state = lane.state();
            (state.cursor.begin(hub.steady()), state.burying)
        };
        let wanted = Arc::new(Wanted { lane: lane.id, from: scan.from, slots, skip_doomed });
        let (clock, asked) = (hub.clock.clone(), wanted.clone());
        let act = hub.db.write(move |conn| Box::pin(async move { claim::claim(conn, &clock, &asked).await }));
        let claimed = act.await;
        let mut state = lane.state();
        let leased = claimed.as_ref().ok().and_then(|claimed| {
            // One statement has one time, so there is one end for each length of lease, and later ends are expected apart.
            let ends = claimed
                .messages
                .iter()
                .map(|(slot, claimed)| (wanted.slots[*slot].lease, claimed.message.leased_until));
            let ends: BTreeMap<Option<Duration>, Micros> = ends.collect();
            let mut deadlines: BTreeSet<_> =
                ends.into_iter().map(|(lease, until)| hub.deadline(&state, lease, until)).collect();
            let deadline = deadlines.pop_first()?;
            deadlines.into_iter().for_each(|deadline| state.cursor.expect(deadline));
            let (first, last) = (claimed.messages.first()?, claimed.messages.last()?);
            Some(Scanned { first: first.1.message.id, last: last.1.message.id, stopped: claimed.full, deadline })
        });
        state.cursor.end(&scan, leased);
        if scan.full {
            let now = hub.steady();
            state.cursor.rest(now, now - began);
        }
        claimed.inspect_err(|_| state.cursor.rewind())
    }

    /// Brings in what has become due, and before a full scan whatever else has changed hands.
    async fn prepare(&self, lane: &Lane) -> Result<()> {
        let hub = &self.hub;
        let now = hub.steady();
        let (check, full, look) = {
            let state = lane.state();
            (state.due_known_until <= now, state.cursor.is_full_due(now), state.cursor.is_look_due(now))
        };
        if check {
            check_lane(self, lane).await?;
        }
        let (promote, recover) = {
            let state = lane.state();
            (state.due.is_some_and(|due| due <= now), full && state.tail)
        };
        if promote {
            self.promote(lane.id).await?;
            check_lane(self, lane).await?;
        }
        if recover {
            self.recover(lane.id).await?;
        }
        if look {
            let (id, look) = (lane.id, lane.state().cursor.look());
            let seen = hub.db.read(move |conn| Box::pin(async move { claim::floor(conn, id, look).await })).await;
            lane.state().cursor.observe(&look, seen.as_ref().ok().copied());
            seen?;
        }
        Ok(())
    }

    /// Buries messages that a claim has met, and then whatever else must die in the lane, beside the claims: they skip
    /// such messages meanwhile. A backlog of 20,000 expired messages held the first fresh one back for 16 s when claims
    /// buried them all. Should this process end first, the next claim meets them.
    pub(crate) fn bury_behind(self: &Arc<Self>, lane: &Arc<Lane>, burials: Vec<Finish>) {
        let first = !std::mem::replace(&mut lane.state().burying, true);
        let (shared, lane) = (self.clone(), lane.clone());
        tokio::spawn(async move {
            let buried = async {
                shared.finish_now(burials).await?;
                if first { shared.bury_all(lane.id, None, ALL).await } else { Ok(Vec::new()) }
            };
            if let Err(error) = buried.await {
                tracing::warn!(%error, lane = lane.id, "could not bury dead messages; the next claim that meets them will");
            }
            if first {
                lane.state().burying = false;
            }
        });
    }
}

/// Looks up when the next scheduled message of a lane is due, and whether the lane is still there.
async fn check_lane(shared: &Shared, lane: &Lane) -> Result<()> {
    let hub = &shared.hub;
    // Read before the question is sent: what is due is then looked for rather too early than too late.
    let steady = hub.steady();
    let clock = hub.clock.fixed_now().map_or(Value::Null, |_| Value::Int(steady));
    let params = [clock, Value::Int(lane.id)];
    let act = hub.db.read(move |conn: &mut Conn<'_>| {
        Box::pin(async move {
            let rows = conn.query(LANE_CHECK, &params).await?;
            let mut row = rows[0].fields(LANE_CHECK.name);
            Ok((row.int_or_null()?, row.int_or_null()?, row.bool_or_null()?, row.int()?))
        })
    });
    let (due, lease, tail, now) = act.await?;
    let lease = lease.ok_or_else(|| no_lane(lane.id))?;
    let mut state = lane.state();
    state.due = due.map(|due| steady.saturating_add(due - now));
    state.due_known_until = steady.saturating_add(micros(crate::wait::hub::POLL_EVERY));
    state.tail = tail == Some(true);
    state.lease = lease;
    Ok(())
}

/// Deals items one at a time, in order and round-robin, to those who still have room.
///
/// ```
/// use tenure_store::deal;
/// assert_eq!(deal(vec![1, 2, 3, 4, 5], &[1, 9]), [vec![1], vec![2, 3, 4, 5]]);
/// ```
pub fn deal<T>(items: Vec<T>, rooms: &[usize]) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = rooms.iter().map(|_| Vec::new()).collect();
    for (n, item) in turns(rooms, items.len()).into_iter().zip(items) {
        hands[n].push(item);
    }
    hands
}

/// Whose turn it is, for so many items at most, when each gets one at a time for as long as it has room.
fn turns(rooms: &[usize], most: usize) -> Vec<usize> {
    let mut left = rooms.to_vec();
    let mut open: VecDeque<usize> = (0..rooms.len()).filter(|n| rooms[*n] > 0).collect();
    let mut turns = Vec::new();
    while turns.len() < most
        && let Some(n) = open.pop_front()
    {
        turns.push(n);
        left[n] -= 1;
        if left[n] > 0 {
            open.push_back(n);
        }
    }
    turns
}

impl Shared {
    /// Releases messages that no caller has received, as if they had not been leased.
    pub(crate) async fn release_messages(&self, messages: Vec<Message>) -> Result<()> {
        let release = |message: Message| Finish::new(message.fence(), Verb::Release { uncount: true });
        self.finish_now(messages.into_iter().map(release).collect()).await
    }

    /// Carries out verbs of the kernel itself, outside the combiner.
    pub(crate) async fn finish_now(&self, items: Vec<Finish>) -> Result<()> {
        let clock = self.hub.clock.clone();
        let items = Arc::new(items);
        let one = is_one_statement(&items);
        let act = self.hub.db.commit(one, move |conn| Box::pin(async move { finish(conn, &clock, &items).await }));
        let finished = act.await?;
        self.announce(&finished);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_dealt_one_at_a_time() {
        let split =
            |rooms: &[usize], count: i64| deal((0..count).collect(), rooms).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(split(&[20, 6, 1], 23), [16, 6, 1]);
        assert_eq!(split(&[5, 10, 20], 100), [5, 10, 20]);
        assert_eq!(split(&[10; 5], 10), [2; 5]);
        assert_eq!(split(&[0, 3], 2), [0, 2]);
    }

    #[test]
    fn every_hand_is_in_order() {
        for hand in deal((0..50).collect(), &[20, 20, 5]) {
            assert!(hand.is_sorted());
        }
    }
}

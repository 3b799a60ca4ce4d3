//! One claimer per process and set of lanes: it merges concurrent claims, deals out what it gets, and parks the rest.
//!
//! Invariants: waiting claims cost no database work until there is reason to look; messages are dealt one at a time,
//! round-robin, so that no waiting claim is starved by a greedy one; what was leased for a caller that has gone is given
//! back at once, uncounted; a message without attempts or time left is buried and never delivered; a claim of a stopped
//! worker leases nothing and ends with an error.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::clock::{Moved, micros};
use crate::cursor::Leased;
use crate::db::Conn;
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::ops::claim::{self, Batch, Terms, Wanted};
use crate::ops::finish::{Finish, Verb, finish, is_one_statement};
use crate::ops::lifecycle::{ALL, burial};
use crate::ops::no_lane;
use crate::ops::worker::worker_stopped;
use crate::receipt::Return;
use crate::sql::LANE_CHECK;
use crate::store::Shared;
use crate::types::{Message, Micros};
use crate::value::Value;
use crate::wake::Lane;

/// Messages in one claim statement.
const PASS: usize = 1000;
/// Messages without attempts or time that one claim buries before it answers; more are buried beside the claims.
pub(crate) const MET: usize = 32;
/// How often a claim that waits asks whether its worker was stopped.
const WORKER_CHECK_EVERY: Duration = Duration::from_secs(1);
/// A claimer that nobody uses ends after this long.
const IDLE: Duration = Duration::from_secs(60);

/// A caller's claim, on its way to the claimer.
pub(crate) struct Request {
    pub(crate) limit: usize,
    pub(crate) terms: Terms,
    /// Until when the caller is willing to wait.
    pub(crate) until: Instant,
    /// When its worker was last found not to be stopped.
    pub(crate) worker_checked: Option<Instant>,
    pub(crate) reply: oneshot::Sender<Result<Vec<Message>>>,
}

/// What a claimer is asked.
pub(crate) enum Ask {
    Claim(Request),
    /// To forget claims whose callers have gone, and to say so when no message can be leased for them any more.
    Forget(oneshot::Sender<()>),
}

/// A message that was leased for a claim on these terms as it was enqueued.
pub(crate) struct Handed {
    pub(crate) terms: Terms,
    pub(crate) message: Message,
    pub(crate) task: Return,
}

pub(crate) struct Claimer {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    /// Where the next pass begins, so that every lane is first in turn.
    turn: usize,
    inbox: mpsc::UnboundedReceiver<Ask>,
    woken: Arc<Notify>,
    clock_moved: Moved,
    waiting: VecDeque<Request>,
    /// Messages that enqueues of this process have leased for a claim that waits here.
    handed: mpsc::UnboundedReceiver<Handed>,
    hands: mpsc::UnboundedSender<Handed>,
}

impl Claimer {
    pub(crate) fn new(shared: Arc<Shared>, lanes: &[i64], inbox: mpsc::UnboundedReceiver<Ask>) -> Self {
        let woken = Arc::new(Notify::new());
        for lane in lanes {
            shared.hub.subscribe(*lane, &woken);
        }
        let lanes = lanes.iter().map(|lane| shared.hub.lane(*lane)).collect();
        let clock_moved = shared.hub.clock.watch();
        let (hands, handed) = mpsc::unbounded_channel();
        Claimer { shared, lanes, turn: 0, inbox, woken, clock_moved, waiting: VecDeque::new(), handed, hands }
    }

    pub(crate) async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                tokio::select! {
                    ask = self.inbox.recv() => match ask {
                        Some(ask) => self.receive(ask),
                        None => return,
                    },
                    Some(handed) = self.handed.recv() => self.deliver(handed),
                    () = tokio::time::sleep(IDLE) => if self.retire() { return },
                }
            }
            while let Ok(ask) = self.inbox.try_recv() {
                self.receive(ask);
            }
            while let Ok(handed) = self.handed.try_recv() {
                self.deliver(handed);
            }
            self.waiting.retain(|request| !request.reply.is_closed());
            let more = self.pass().await;
            self.dismiss_stopped().await;
            self.turn_away();
            if !more && !self.waiting.is_empty() && !self.park().await {
                return;
            }
        }
    }

    /// Not to be called while an offer stands: enqueues could lease messages for claims that are forgotten here.
    fn receive(&mut self, ask: Ask) {
        match ask {
            Ask::Claim(request) => self.waiting.push_back(request),
            Ask::Forget(forgotten) => {
                self.waiting.retain(|request| !request.reply.is_closed());
                let _gone = forgotten.send(());
            }
        }
    }

    /// Ends for want of work, unless a request has just come in.
    fn retire(&mut self) -> bool {
        let lanes: Vec<i64> = self.lanes.iter().map(|lane| lane.id).collect();
        let retired = self.shared.retire(&lanes, || self.inbox.is_empty());
        if retired {
            self.handed.close();
            while let Ok(handed) = self.handed.try_recv() {
                self.deliver(handed);
            }
        }
        retired
    }

    /// Gives a message that was leased as it was enqueued to the first claim with its terms.
    fn deliver(&mut self, Handed { terms, message, task }: Handed) {
        let mut hand = vec![message];
        while let Some(n) = self.waiting.iter().position(|request| request.terms == terms)
            && let Some(request) = self.waiting.remove(n)
        {
            match request.reply.send(Ok(hand)) {
                Err(Ok(back)) => hand = back,
                _ => return,
            }
        }
        self.shared.give_back(hand, task);
    }

    /// Serves all waiting claims once, together, whatever their workers and leases. Whether there may be more for those that
    /// still wait.
    async fn pass(&mut self) -> bool {
        let requests: Vec<Request> = std::mem::take(&mut self.waiting).into();
        let rooms: Vec<Room> = requests.iter().map(|request| (request.terms, request.limit)).collect();
        let hands = match self.take(&rooms).await {
            Ok(hands) => hands,
            Err(error) => {
                for request in requests {
                    drop(request.reply.send(Err(error.duplicate())));
                }
                return false;
            }
        };
        let more = hands.iter().map(Vec::len).sum::<usize>() == PASS;
        let mut undelivered = Vec::new();
        for (request, hand) in requests.into_iter().zip(hands) {
            if hand.is_empty() {
                self.waiting.push_back(request);
            } else if let Err(Ok(hand)) = request.reply.send(Ok(hand)) {
                undelivered.extend(hand);
            }
        }
        if undelivered.is_empty() && self.waiting.len() == rooms.len() && rooms.len() > PASS {
            // The first claims took all places of the statement, and may be of workers that are not ready.
            self.waiting.rotate_left(PASS);
        }
        self.shared.give_back(undelivered, self.shared.returns.begin());
        self.turn = self.turn.wrapping_add(1);
        more
    }

    /// Tells claims that found nothing when their worker was stopped, or is not there any more. Claims that find
    /// messages do not pay for this: a worker that is not ready leases nothing.
    async fn dismiss_stopped(&mut self) {
        let is_due = |request: &Request| {
            request.terms.worker.filter(|_| request.worker_checked.is_none_or(|at| at.elapsed() >= WORKER_CHECK_EVERY))
        };
        let workers: BTreeSet<i64> = self.waiting.iter().filter_map(is_due).collect();
        if workers.is_empty() {
            return;
        }
        let workers: Vec<i64> = workers.into_iter().collect();
        let stopped = match self.shared.stopped(workers.clone()).await {
            Ok(stopped) => stopped,
            Err(error) => {
                tracing::debug!(%error, "could not ask whether workers were stopped; claims go on waiting");
                return;
            }
        };
        for mut request in std::mem::take(&mut self.waiting) {
            match request.terms.worker {
                Some(worker) if stopped.contains(&worker) => {
                    drop(request.reply.send(Err(worker_stopped(worker))));
                    continue;
                }
                Some(worker) if workers.contains(&worker) => request.worker_checked = Some(Instant::now()),
                _ => {}
            }
            self.waiting.push_back(request);
        }
    }

    /// Answers claims that may wait no longer.
    fn turn_away(&mut self) {
        let now = Instant::now();
        for request in std::mem::take(&mut self.waiting) {
            if request.until <= now {
                drop(request.reply.send(Ok(Vec::new())));
            } else {
                self.waiting.push_back(request);
            }
        }
    }

    /// Sleeps until there is reason to look again; false when the store was closed.
    async fn park(&mut self) -> bool {
        let hub = self.shared.hub.clone();
        let _waiting = hub.wait();
        let sleep = hub.rest(&self.lanes);
        let terms = self.waiting.iter().map(|request| request.terms).collect();
        let offer = Offer::publish(terms, self.hands.clone(), &self.lanes);
        let patience = self.waiting.iter().map(|request| request.until).min();
        let wake_at = patience.map_or(Instant::now() + sleep, |patience| patience.min(Instant::now() + sleep));
        let (mut open, mut asked) = (true, None);
        tokio::select! {
            ask = self.inbox.recv() => {
                open = ask.is_some();
                asked = ask;
            }
            Some(handed) = self.handed.recv() => self.deliver(handed),
            () = self.woken.notified() => {}
            () = self.clock_moved.wait() => {}
            () = tokio::time::sleep_until(wake_at) => {}
        }
        offer.withdraw(&self.lanes);
        if let Some(ask) = asked {
            self.receive(ask);
        }
        open
    }

    /// Leases messages for claims, lane by lane. What each gets.
    async fn take(&self, rooms: &[Room]) -> Result<Vec<Vec<Message>>> {
        let mut hands: Vec<Vec<Message>> = rooms.iter().map(|_| Vec::new()).collect();
        for n in 0..self.lanes.len() {
            let lane = &self.lanes[(self.turn + n) % self.lanes.len()];
            let taken = hands.iter().map(Vec::len).sum::<usize>();
            match self.shared.take(lane, &left(rooms, &hands), PASS - taken).await {
                Ok(more) => hands.iter_mut().zip(more).for_each(|(hand, more)| hand.extend(more)),
                // What was leased before the failure has holders who wait for it.
                Err(_) if taken > 0 => return Ok(hands),
                Err(error) => return Err(error),
            }
        }
        Ok(hands)
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
            Some(Leased { first: first.1.message.id, last: last.1.message.id, stopped: claimed.full, deadline })
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
    state.due_known_until = steady.saturating_add(micros(crate::wake::POLL_EVERY));
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
    /// Releases what was leased for callers that have gone, and ends the task then.
    pub(crate) fn give_back(self: &Arc<Self>, messages: Vec<Message>, task: Return) {
        if messages.is_empty() {
            return;
        }
        let shared = self.clone();
        let release = |message: Message| Finish::new(message.fence(), Verb::Release { uncount: true });
        let items: Vec<Finish> = messages.into_iter().map(release).collect();
        tokio::spawn(async move {
            if let Err(error) = shared.finish_now(items).await {
                tracing::warn!(%error, "messages of a caller that went away stay leased until their lease runs out");
            }
            drop(task);
        });
    }

    /// Carries out verbs of the kernel itself, outside the combiner.
    pub(crate) async fn finish_now(&self, items: Vec<Finish>) -> Result<(), Error> {
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

//! In-process state of one queue: what is believed of its partitions, and the leases that wait for its messages.
//!
//! Leases wait as all callers of the kernel do (`tenure_store::Waiters`). Produces are sent to the emptiest partition.
//! Invariants: what a lease gets comes from one partition; a client that has gone receives nothing, and messages leased for it
//! are released uncounted; the tallies of the partitions are guesses that only decide where to look first, so no lease starves
//! when they are wrong; any number of processes may have such a state for the same queue, because the database alone decides
//! who holds what.

mod dealer;
mod tally;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_store::{Error, Kind, Message, Queue, Store, Waiters};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::fault::{Answer, Fault};
use crate::metrics::QueueDepth;
use crate::service::no_such_queue;
use crate::stores::Member;
use dealer::{Dealt, Leases, Wanted};
use tally::Tally;

/// How long after its deadline a lease is recovered: its holder has stamped the deadline when he received it, and must not
/// see the message with somebody else before that.
const GRACE: Duration = Duration::from_millis(13);
/// Up to where ready messages are counted: whoever has more is full.
const COUNTED: usize = 10_000;
/// How often a queue is looked up again, in case another process has changed or deleted it.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a desk is kept after its last use. A call that meets a closed one is told that the queue is shutting down, so this is
/// much longer than a call takes from its look-up to its first act here.
const IDLE: Duration = Duration::from_secs(60);

/// One partition: a lane of one of the stores.
pub(crate) struct Part {
    pub(crate) number: u32,
    pub(crate) member: Arc<Member>,
    /// Its number among the lanes that the queue has in that store.
    place: usize,
    queue: Mutex<Option<Arc<Queue>>>,
}

/// What a client receives: from which partition, and what.
type Received = (u32, Vec<Message>);

/// A produce that waits for the end of a pause: how many messages, and who is told where they go.
type Parked = (usize, oneshot::Sender<usize>);

#[derive(Default)]
struct State {
    tallies: Vec<Tally>,
    paused: bool,
    parked: VecDeque<Parked>,
    /// Whether a look has failed.
    failed: bool,
    closed: bool,
    checked: Option<Instant>,
    used: Option<Instant>,
}

/// Calls that are not yet answered.
#[derive(Default)]
pub(crate) struct Busy {
    pub(crate) produces: AtomicUsize,
    pub(crate) completes: AtomicUsize,
    pub(crate) all: AtomicUsize,
}

/// A queue at work in this process.
pub(crate) struct Desk {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The queue's number in the home store.
    pub(crate) id: i64,
    /// When its settings last changed, as far as this process knows.
    updated_at: AtomicI64,
    pub(crate) parts: Vec<Part>,
    pub(crate) busy: Busy,
    state: Mutex<State>,
    leases: Arc<Waiters<Leases>>,
    /// Messages were leased whose leases are the next to run out, or it closes.
    leased: Notify,
    /// A pause ended, or the desk closes.
    opened: Notify,
}

impl Part {
    /// The store and the queue as it is there.
    pub(crate) async fn open(&self, name: &str) -> Result<(Store, Arc<Queue>), Error> {
        let store = self.member.store().await?;
        if let Some(queue) = self.queue().clone() {
            return Ok((store, queue));
        }
        let queue = Arc::new(self.member.watched(store.queue_get(name).await)?);
        if queue.lanes.len() <= self.place {
            let message =
                format!("queue '{name}' has fewer partitions in the store '{}' than it should", self.member.name);
            return Err(Error::new(Kind::Corrupt, message));
        }
        *self.queue() = Some(queue.clone());
        Ok((store, queue))
    }

    fn queue(&self) -> MutexGuard<'_, Option<Arc<Queue>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store and the lane, or the fault that callers get while they cannot be reached.
    pub(crate) async fn lane(&self, name: &str) -> Answer<(Store, i64)> {
        let (store, queue) = self.open(name).await.map_err(|error| self.fault(name, error))?;
        Ok((store, queue.lanes[self.place]))
    }

    /// The partition's number in its store, as `enqueue` wants it.
    pub(crate) fn local(&self) -> u32 {
        self.place as u32
    }

    /// What a caller gets who names this partition and meets an error.
    pub(crate) fn fault(&self, name: &str, error: Error) -> Fault {
        match error.kind() {
            Kind::Unavailable => {
                let number = self.number;
                Fault::retry(format!("partition not available; partition '{number}' is failing, retry again"))
            }
            Kind::NotFound => {
                // Whoever comes next looks it up again.
                *self.queue() = None;
                no_such_queue(name)
            }
            _ => error.into(),
        }
    }
}

impl Desk {
    /// A desk for a queue whose partitions are spread like this: so many in each of these stores.
    pub(crate) fn new(queue: &Queue, shares: Vec<(Arc<Member>, usize)>) -> Arc<Self> {
        let mut parts = Vec::new();
        for (n, (member, count)) in shares.into_iter().enumerate() {
            for place in 0..count {
                let number = parts.len() as u32;
                // The first store is home, where the queue was just looked up.
                let known = (n == 0).then(|| Arc::new(queue.clone()));
                parts.push(Part { number, member: member.clone(), place, queue: Mutex::new(known) });
            }
        }
        let tallies = parts.iter().map(|_| Tally::default()).collect();
        let state = State { tallies, checked: Some(Instant::now()), used: Some(Instant::now()), ..State::default() };
        Arc::new(Desk {
            name: queue.name.clone(),
            namespace: queue.settings.namespace.clone(),
            id: queue.id,
            updated_at: queue.updated_at.into(),
            parts,
            busy: Busy::default(),
            state: Mutex::new(state),
            leases: Waiters::new(Leases::default()),
            leased: Notify::new(),
            opened: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to ask whether the queue is still there; true for one caller at a time.
    pub(crate) fn is_check_due(&self) -> bool {
        let mut state = self.state();
        let due = state.checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY);
        if due {
            state.checked = Some(Instant::now());
        }
        due
    }

    /// A call has named the queue.
    pub(crate) fn used(&self) {
        self.state().used = Some(Instant::now());
    }

    /// Whether nothing has happened here for a while and nothing is expected: no call, no waiting lease, no lease to be recovered.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        let outstanding = state.tallies.iter().any(|tally| tally.coming > 0 || tally.leases.next().is_some());
        state.used.is_none_or(|used| used.elapsed() >= IDLE)
            && self.busy.all.load(Ordering::Relaxed) == 0
            && !state.paused
            && !outstanding
            && self.waiting() == 0
    }

    /// The queue as it is now: when its settings have changed, the parts look theirs up again.
    pub(crate) fn refresh(&self, queue: &Queue) {
        if self.updated_at.swap(queue.updated_at, Ordering::Relaxed) != queue.updated_at {
            for part in &self.parts {
                *part.queue() = None;
            }
        }
    }

    /// The partition of that number.
    pub(crate) fn part(&self, number: i32) -> Answer<&Part> {
        let part = usize::try_from(number).ok().and_then(|number| self.parts.get(number));
        part.ok_or_else(|| Fault::bad(format!("partition is invalid; '{number}' is not a valid partition")))
    }

    /// How many leases wait.
    pub(crate) fn waiting(&self) -> usize {
        self.leases.count(|_, _| true)
    }

    /// How many leases are known to find nothing for now: what becomes ready next is dealt to all of them.
    pub(crate) fn parked(&self) -> usize {
        let paused = self.state().paused;
        self.leases.count(|_, looked| looked || paused)
    }

    /// Counts anew what can be leased in each partition. One partition needs no counting: there is no choice.
    pub(crate) async fn recount(&self) {
        for (n, part) in self.parts.iter().enumerate().filter(|_| self.parts.len() > 1) {
            let Ok((store, queue)) = part.open(&self.name).await else { continue };
            if let Ok(ready) = part.member.watched(store.lane_ready(queue.lanes[part.place], COUNTED).await) {
                self.state().tallies[n].recounted(ready);
            }
        }
        self.look();
    }

    /// What is in the queue, as far as its stores can be reached.
    pub(crate) async fn depth(&self) -> QueueDepth {
        let mut depth = QueueDepth { queue: self.name.clone(), waiting: self.waiting(), ..QueueDepth::default() };
        for part in &self.parts {
            let Ok((store, queue)) = part.open(&self.name).await else { continue };
            if let Ok(stats) = part.member.watched(store.lane_stats(queue.lanes[part.place]).await) {
                depth.ready += stats.ready;
                depth.leased += stats.leased;
                depth.scheduled += stats.scheduled;
                depth.oldest_ready = depth.oldest_ready.max(stats.oldest_ready);
            }
            if part.place == 0
                && let Ok((dead, _)) = part.member.watched(store.archive_count(queue.id).await)
            {
                depth.dead += dead;
            }
        }
        depth
    }

    /// Something may have become ready anywhere.
    pub(crate) fn look(&self) {
        self.state().tallies.iter_mut().for_each(Tally::stir);
        self.leases.wake();
    }

    /// Ends it: waiting calls are answered with a fault.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state();
            state.closed = true;
            state.parked.clear();
        }
        self.opened.notify_waiters();
        self.leased.notify_one();
        self.leases.answer_all(|| Dealt(Err(closing())));
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Whether a look has failed since this was last asked.
    fn take_failed(&self) -> bool {
        std::mem::take(&mut self.state().failed)
    }

    /// Where a produce of so many messages goes: to the emptiest partition that works. After a pause all that have waited
    /// are placed together, in the order in which they came.
    pub(crate) async fn place(&self, count: usize) -> Answer<usize> {
        let place = {
            let mut state = self.state();
            if state.closed {
                return Err(closing());
            }
            if state.paused {
                let (reply, place) = oneshot::channel();
                state.parked.push_back((count, reply));
                place
            } else {
                return self.emptiest(&mut state, count).ok_or_else(all_failing);
            }
        };
        place.await.map_err(|_| closing())
    }

    fn emptiest(&self, state: &mut State, count: usize) -> Option<usize> {
        let works = |n: &usize| self.parts[*n].member.is_up();
        let full = |n: &usize| state.tallies[*n].unleased + state.tallies[*n].coming;
        let place = (0..self.parts.len()).filter(works).min_by_key(full)?;
        state.tallies[place].coming += count;
        Some(place)
    }

    /// What was placed here is stored: so much of it can be leased at once.
    pub(crate) fn produced(&self, place: usize, count: usize, ready: usize) {
        self.state().tallies[place].arrived(count, ready);
        self.leases.wake();
    }

    /// What was placed here is not stored.
    pub(crate) fn not_produced(&self, place: usize, count: usize) {
        self.state().tallies[place].coming -= count;
    }

    /// Waits until a pause is over.
    pub(crate) async fn pass_gate(&self) -> Answer<()> {
        loop {
            let opened = self.opened.notified();
            {
                let state = self.state();
                if state.closed {
                    return Err(closing());
                }
                if !state.paused {
                    return Ok(());
                }
            }
            opened.await;
        }
    }

    /// Stops or resumes produces, leases, completes and retries; they wait, and nothing times out. Nobody but tests does.
    #[cfg(feature = "test-hooks")]
    pub(crate) async fn pause(&self, paused: bool) {
        if paused {
            self.state().paused = true;
            return;
        }
        // First the produces, also those that come while the others are stored, and only then whoever wants what they bring.
        while !self.let_produces_in() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.state().paused = false;
        self.opened.notify_waiters();
        self.leases.wake();
    }

    /// Places the produces that waited for the end of a pause; whether all are stored.
    #[cfg(feature = "test-hooks")]
    fn let_produces_in(&self) -> bool {
        let mut state = self.state();
        for (count, reply) in std::mem::take(&mut state.parked) {
            let place = self.emptiest(&mut state, count).unwrap_or_else(|| {
                state.tallies[0].coming += count;
                0
            });
            reply.send(place).ok();
        }
        self.busy.produces.load(Ordering::Relaxed) == 0
    }

    /// Leases messages: at once if there are any, else as soon as there are.
    pub(crate) async fn lease(self: &Arc<Self>, client: String, batch: usize, wait: Duration) -> Answer<Received> {
        if self.is_closed() {
            return Err(closing());
        }
        if self.waiting() == 0 {
            // No lease has waited here lately, so what other processes made ready went unnoticed.
            self.state().tallies.iter_mut().for_each(Tally::stir);
        }
        let wanted = Wanted { client: client.clone(), batch };
        let answer = self.leases.wait_unless(self, wanted, Instant::now() + wait, |other| other.client == client);
        let duplicate = "duplicate client id; a client cannot make multiple leased requests to the same queue";
        let Dealt(answer) = answer.await.ok_or_else(|| Fault::bad(duplicate))?;
        let hand = answer?.keep();
        Ok((hand.part, hand.messages))
    }

    /// Leases of this process have ended.
    pub(crate) fn ended(&self, part: &Part, ids: impl Iterator<Item = i64>) {
        self.state().tallies[part.number as usize].leases.end(ids);
    }

    /// Something of this partition can be leased again.
    pub(crate) fn returned(&self, part: &Part, count: usize) {
        let mut state = self.state();
        let tally = &mut state.tallies[part.number as usize];
        tally.unleased += count;
        tally.stir();
        drop(state);
        self.leases.wake();
    }
}

fn closing() -> Fault {
    Fault::failed("queue is shutting down")
}

fn all_failing() -> Fault {
    Fault::retry("partition not available; all partitions of the queue are failing, retry again")
}

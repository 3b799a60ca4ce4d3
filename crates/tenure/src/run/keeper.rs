//! Keeps leases while their handlers work, and tells handlers whose message is no longer theirs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tenure_store::{Extension, Fence};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::types::InTransaction;

/// The longest time between two looks at the leases. The shortest lease that a loop accepts on its own, 100 ms, is looked at
/// eight times in its length.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many extensions run at once: one begins in each eighth of a lease, and its answer is of use for three eighths.
const EXTENSIONS: usize = 4;
/// How often the database is asked whether the messages that handlers work on are still theirs, so that a handler learns within
/// a second that its message was deleted. Handlers that take less time cost no statement.
const CHECK_EVERY: Duration = Duration::from_millis(400);

#[derive(Clone, Copy)]
pub(super) enum Leased {
    Message(Fence),
    Key {
        token: i64,
        /// The position of the last message that the handler was given.
        seen: i64,
    },
}

/// Extends the leases of a loop, and tells handlers whose lease cannot be kept.
pub(super) struct Keeper {
    kernel: tenure_store::Store,
    leases: Mutex<HashMap<u64, Kept>>,
    next: AtomicU64,
    /// Wakes the loop that looks, when a lease needs its first look sooner than [`LOOK_EVERY`].
    short: Notify,
}

struct Kept {
    what: Leased,
    /// How long the lease was when it was taken: the queue's setting may change while a loop runs.
    lease: Duration,
    /// When the lease ends at the earliest by our own clock, counted from the moment at which the claim was sent: its answer
    /// may come late (6 s after the lease began, while the database was frozen). For a message that its handler completes in an
    /// open transaction: until when the lock that this has on the message is relied upon.
    until: Instant,
    lost: CancellationToken,
    working: Option<Working>,
    /// When the last extension for it began; none: none runs, or one has been answered since.
    extending_since: Option<Instant>,
}

impl Kept {
    /// Whether there is no lease to keep any more: of a message that is gone, or that was taken from its handler.
    fn is_over(&self) -> bool {
        let found = self.working.as_ref().map_or(Found::Held, |working| working.found);
        matches!(self.what, Leased::Message(_)) && found != Found::Held
    }

    /// When the lease is given up unless it was extended: it may end before the next look after that, and clocks drift.
    fn given_up_at(&self) -> Instant {
        self.until - self.lease / 4
    }

    /// Whether it is to be extended: less than five eighths of it are left, and no extension runs for it, or one that has not
    /// been answered for a quarter of a lease.
    fn is_due(&self, now: Instant) -> bool {
        self.until <= now + self.lease * 5 / 8 && self.extending_since.is_none_or(|since| now >= since + self.lease / 4)
    }
}

/// Leases that one extension is asked for.
struct Due {
    /// Ticket, lease, and by how much it is extended.
    leases: Vec<(u64, Leased, Duration)>,
    /// All of them have been given up at this time, unless another extension has kept them.
    useless_at: Instant,
}

/// The message that a handler works on, or has worked on last.
struct Working {
    identity: i64,
    fence: Fence,
    since: Instant,
    in_transaction: InTransaction,
    ended: bool,
    found: Found,
}

/// What the last look at a message has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Its fence holds, or there was no look.
    Held,
    /// It was in no table while its lease ran: it was completed or deleted under this lease, unless an operator had freed it
    /// since the look before.
    Gone,
    /// It is free, or leased under another fence.
    Taken,
}

impl Working {
    /// Whether its handler is concerned when it is gone: it has neither answered nor completed it itself.
    fn is_concerned(&self) -> bool {
        !self.ended && !self.in_transaction.is_completed()
    }
}

impl Keeper {
    pub(super) fn new(kernel: &tenure_store::Store) -> Self {
        Keeper { kernel: kernel.clone(), leases: Mutex::default(), next: AtomicU64::new(0), short: Notify::new() }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<u64, Kept>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a lease of this length that was asked for at this moment.
    pub(super) fn add(&self, what: Leased, asked: Instant, lease: Duration) -> u64 {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (until, lost) = (asked + lease, CancellationToken::new());
        let kept = Kept { what, lease, until, lost, working: None, extending_since: None };
        self.leases().insert(ticket, kept);
        if lease / 8 < LOOK_EVERY {
            self.short.notify_one();
        }
        ticket
    }

    /// Notes that the handler is given this message. The token that tells it of a lost lease; none: the lease is lost.
    pub(super) fn hand_out(
        &self,
        ticket: u64,
        (identity, fence): (i64, Fence),
        in_transaction: &InTransaction,
    ) -> Option<CancellationToken> {
        let mut leases = self.leases();
        let now = Instant::now();
        let kept = leases.get_mut(&ticket)?;
        if kept.lost.is_cancelled() || kept.given_up_at() <= now {
            return None;
        }
        if let Leased::Key { seen, .. } = &mut kept.what {
            *seen = fence.id;
        }
        let in_transaction = in_transaction.clone();
        kept.working = Some(Working { identity, fence, since: now, in_transaction, ended: false, found: Found::Held });
        Some(kept.lost.child_token())
    }

    /// Notes that the handler has answered: what becomes of its message now is not the handler's concern.
    pub(super) fn handler_ended(&self, ticket: u64) {
        if let Some(working) = self.leases().get_mut(&ticket).and_then(|kept| kept.working.as_mut()) {
            working.ended = true;
        }
    }

    /// Whether no other consumer was given the message that the handler was given last under this ticket, as far as this keeper
    /// has seen: the message was gone before its lease ended, or the lease still runs and no look has found it free or taken.
    pub(super) fn is_exclusive(&self, ticket: u64) -> bool {
        let leases = self.leases();
        let Some(kept) = leases.get(&ticket) else { return false };
        match kept.working.as_ref().map_or(Found::Held, |working| working.found) {
            Found::Held => kept.until > Instant::now(),
            Found::Gone => true,
            Found::Taken => false,
        }
    }

    pub(super) fn remove(&self, ticket: u64) {
        self.leases().remove(&ticket);
    }

    pub(super) fn lose_all(&self) {
        for kept in self.leases().values() {
            kept.lost.cancel();
        }
    }

    pub(super) fn take_all(&self) -> Vec<Leased> {
        self.leases().drain().map(|(_, kept)| kept.what).collect()
    }

    pub(super) async fn run(self: Arc<Self>) {
        tokio::join!(self.keep(), self.check());
    }

    /// Looks eight times in a lease: extends by half a lease what has less than five eighths of one left, and gives up what
    /// has less than a quarter. A look never waits for an extension, so that handlers are told in time. An extension is not
    /// dropped because it is slow, because the database may have carried it out: another one is asked for beside it.
    async fn keep(&self) {
        let mut extensions = FuturesUnordered::new();
        let mut last_began: Option<Instant> = None;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.short.notified() => {
                    next = next.min(Instant::now() + self.tick());
                    continue;
                }
                Some(()) = extensions.next(), if !extensions.is_empty() => continue,
            }
            let (now, tick) = (Instant::now(), self.tick());
            next = now + tick.min(LOOK_EVERY);
            self.give_up(now);
            // What comes due meanwhile shares the next statement, so that a slow database is not asked at every look.
            let apart = last_began.is_none_or(|began| now >= began + tick);
            if (extensions.is_empty() || apart && extensions.len() < EXTENSIONS)
                && let Some(due) = self.take_due(now)
            {
                last_began = Some(now);
                extensions.push(self.extend_in_time(due));
            }
        }
    }

    /// An eighth of the shortest lease.
    fn tick(&self) -> Duration {
        let shortest = self.leases().values().map(|kept| kept.lease).min();
        // A queue's setting may be a few microseconds while a loop runs.
        shortest.map_or(LOOK_EVERY, |lease| (lease / 8).max(Duration::from_millis(1)))
    }

    /// Asks from time to time whether the messages that handlers work on are still there, and tells the handlers of those that
    /// an operator has deleted or that another consumer holds.
    async fn check(&self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let (tickets, fences) = self.worked_on();
            if fences.is_empty() {
                continue;
            }
            match self.kernel.holds(&fences).await {
                Ok(holds) => {
                    let missing = tickets.into_iter().zip(fences).zip(holds).filter(|(_, holds)| !holds);
                    self.look_for(missing.map(|(lease, _)| lease)).await;
                }
                Err(error) => tracing::debug!(%error, "could not look whether messages are still leased"),
            }
        }
    }

    /// The messages that handlers have worked on for a while. A message that its handler completes in a transaction of its own
    /// is not lost when it is gone.
    fn worked_on(&self) -> (Vec<u64>, Vec<Fence>) {
        let early = |working: &&Working| working.since.elapsed() >= CHECK_EVERY && working.is_concerned();
        let leases = self.leases();
        let live = leases.iter().filter(|(_, kept)| !kept.lost.is_cancelled());
        live.filter_map(|(ticket, kept)| Some((*ticket, kept.working.as_ref().filter(early)?.fence))).unzip()
    }

    /// Looks whether messages whose fences do not hold any more are gone, or free or with another consumer. If the database does
    /// not answer, the next look or extension asks again.
    async fn look_for(&self, missing: impl Iterator<Item = (u64, Fence)>) {
        let looks = missing.filter_map(|(ticket, fence)| {
            let identity =
                self.leases().get(&ticket)?.working.as_ref().filter(|working| working.fence == fence)?.identity;
            Some(async move {
                match self.kernel.message_get(identity).await {
                    Ok(message) => self.not_held(ticket, &fence, message.is_some()),
                    Err(error) => tracing::debug!(%error, "could not look whether a message is still there"),
                }
            })
        });
        join_all(looks).await;
    }

    /// Notes that the fence of a message does not hold any more, and tells its handler, unless it has answered since, or has
    /// begun to complete a message that is gone.
    fn not_held(&self, ticket: u64, fence: &Fence, there: bool) {
        if let Some(kept) = self.leases().get_mut(&ticket)
            && let Some(working) = &mut kept.working
            && working.fence == *fence
        {
            if there {
                working.found = Found::Taken;
            } else if kept.until > Instant::now() {
                working.found = Found::Gone;
            }
            if working.is_concerned() || there && !working.ended {
                kept.lost.cancel();
            }
        }
    }

    /// Gives up leases that may end before the next look.
    fn give_up(&self, now: Instant) {
        for kept in self.leases().values().filter(|kept| kept.given_up_at() <= now && !kept.is_over()) {
            kept.lost.cancel();
        }
    }

    /// The leases that must be extended now, which count as being extended from now on.
    fn take_due(&self, now: Instant) -> Option<Due> {
        let mut leases = self.leases();
        let live = leases.iter_mut().filter(|(_, kept)| !kept.lost.is_cancelled() && !kept.is_over());
        let due = live.filter(|(_, kept)| kept.is_due(now));
        let (leases, given_up): (Vec<_>, Vec<_>) = due
            .map(|(ticket, kept)| {
                kept.extending_since = Some(now);
                ((*ticket, kept.what, kept.lease / 2), kept.given_up_at())
            })
            .unzip();
        Some(Due { leases, useless_at: given_up.into_iter().max()? })
    }

    /// One statement extends by one length; there are several after a change of the queue's setting.
    async fn extend_in_time(&self, due: Due) {
        let mut by_length: HashMap<Duration, Vec<(u64, Leased)>> = HashMap::new();
        for (ticket, what, extra) in &due.leases {
            by_length.entry(*extra).or_default().push((*ticket, *what));
        }
        let extensions = join_all(by_length.iter().map(|(extra, leases)| self.extend(leases, *extra)));
        if tokio::time::timeout_at(due.useless_at, extensions).await.is_err() {
            tracing::warn!(leases = due.leases.len(), "could not extend leases in time");
        }
        let mut leases = self.leases();
        for (ticket, ..) in &due.leases {
            if let Some(kept) = leases.get_mut(ticket) {
                kept.extending_since = None;
            }
        }
    }

    async fn extend(&self, leases: &[(u64, Leased)], extra: Duration) {
        let asked = Instant::now();
        let (mut messages, mut keys) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (ticket, what) in leases {
            match what {
                Leased::Message(fence) => {
                    messages.0.push(*ticket);
                    messages.1.push(*fence);
                }
                Leased::Key { token, .. } => {
                    keys.0.push(*ticket);
                    keys.1.push(*token);
                }
            }
        }
        let (messages_until, keys_until) =
            tokio::join!(self.kernel.extend_unlocked(&messages.1, extra), self.kernel.key_extend(&keys.1, extra));
        let of_key = |until: Option<_>| until.map_or(Extension::Lost, Extension::Until);
        let keys_until = keys_until.map(|until| until.into_iter().map(of_key).collect());
        let mut missing = Vec::new();
        for (tickets, extensions) in [(messages.0, messages_until), (keys.0, keys_until)] {
            match extensions {
                Ok(extensions) => {
                    let extended = |(ticket, extension)| self.extended(ticket, extension, asked, extra);
                    missing.extend(tickets.into_iter().zip(extensions).filter_map(extended));
                }
                Err(error) => tracing::warn!(%error, "could not extend leases; trying again"),
            }
        }
        self.look_for(missing.into_iter()).await;
    }

    /// Notes what an extension has answered. The message that a handler works on, if its lease is not held any more.
    fn extended(&self, ticket: u64, extension: Extension, asked: Instant, extra: Duration) -> Option<(u64, Fence)> {
        let mut leases = self.leases();
        let kept = leases.get_mut(&ticket)?;
        match (extension, kept.what) {
            (Extension::Until(_), _) => kept.until = kept.until.max(asked) + extra,
            // No other consumer can lease a message while the handler's own transaction, which completes it, has locked it. Any other
            // lock says nothing about what happens when it ends. Either way the next look asks again.
            (Extension::Locked, _) => {
                if kept.working.as_ref().is_some_and(|working| working.in_transaction.is_completed()) {
                    kept.until = kept.until.max(asked + extra);
                }
            }
            (Extension::Lost, Leased::Message(fence)) if kept.working.is_some() => return Some((ticket, fence)),
            (Extension::Lost, _) => kept.lost.cancel(),
        }
        None
    }
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(8);

    fn fence(id: i64) -> Fence {
        Fence::exact(id, 1)
    }

    /// A keeper of one lease of a message that was asked for so many milliseconds ago, and its ticket.
    async fn keeper(asked_before: u64) -> (Keeper, u64) {
        let keeper = Keeper::new(&tenure_store::Store::connect(":memory:").await.unwrap());
        let asked = Instant::now() - Duration::from_millis(asked_before);
        let ticket = keeper.add(Leased::Message(fence(1)), asked, LEASE);
        (keeper, ticket)
    }

    #[tokio::test]
    async fn a_lease_is_extended_when_five_eighths_are_left_of_it_and_given_up_at_a_quarter() {
        for (asked_before, extended, lost) in
            [(0, false, false), (2900, false, false), (3100, true, false), (5800, true, false), (6100, false, true)]
        {
            let (keeper, ticket) = keeper(0).await;
            // One moment for all looks: a machine that stalls between them changes nothing.
            let now = keeper.leases()[&ticket].until - LEASE + Duration::from_millis(asked_before);
            keeper.give_up(now);
            assert_eq!(keeper.take_due(now).is_some(), extended, "asked for {asked_before} ms ago");
            assert_eq!(keeper.leases()[&ticket].lost.is_cancelled(), lost, "asked for {asked_before} ms ago");
            let handed_out = keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default());
            assert_eq!(handed_out.is_none(), lost, "asked for {asked_before} ms ago");
        }
    }

    #[tokio::test]
    async fn leases_of_different_lengths_are_extended_at_the_same_look() {
        let store = tenure_store::Store::connect(":memory:").await.unwrap();
        store.install().await.unwrap();
        let keeper = Keeper::new(&store);
        for (id, lease) in [(1, LEASE), (2, LEASE / 2)] {
            keeper.add(Leased::Message(fence(id)), Instant::now() - lease / 2, lease);
        }
        keeper.extend_in_time(keeper.take_due(Instant::now()).unwrap()).await;
        // No such messages exist: the extension of each says that its lease is lost.
        assert!(keeper.leases().values().all(|kept| kept.lost.is_cancelled()));
    }

    #[tokio::test]
    async fn a_handler_is_told_by_the_extension_that_finds_its_lease_lost() {
        let store = tenure_store::Store::connect(":memory:").await.unwrap();
        store.install().await.unwrap();
        let keeper = Keeper::new(&store);
        let ticket = keeper.add(Leased::Message(fence(1)), Instant::now() - LEASE / 2, LEASE);
        let told = keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default()).unwrap();
        // No such message exists, and nothing else looks for it: `check` does not run.
        keeper.extend_in_time(keeper.take_due(Instant::now()).unwrap()).await;
        assert!(told.is_cancelled());
    }

    #[tokio::test]
    async fn a_lease_is_extended_again_beside_an_extension_that_is_not_answered() {
        let (keeper, _) = keeper(3100).await;
        let now = Instant::now();
        let due = keeper.take_due(now).unwrap();
        assert!(due.useless_at > now + LEASE / 4, "the answer may come until the lease is given up");
        assert!(keeper.take_due(now + LEASE / 5).is_none());
        assert!(keeper.take_due(now + LEASE / 4).is_some());
        // The answer of either ends the wait for both. The store has no tables: the answer is an error, and the next look asks again.
        keeper.extend_in_time(due).await;
        assert!(keeper.take_due(now + LEASE / 5).is_some());
    }

    #[tokio::test]
    async fn a_short_lease_is_given_up_in_time_although_the_keeper_was_idle() {
        let store = tenure_store::Store::connect(":memory:").await.unwrap();
        let (lease, mut taken) = (LOOK_EVERY * 2 / 5, Vec::new());
        // A busy machine is late in some rounds, and adds the lease too late in others.
        for _ in 0..50 {
            let keeper = Arc::new(Keeper::new(&store));
            let keeping = tokio::spawn({
                let keeper = keeper.clone();
                async move { keeper.keep().await }
            });
            let began = Instant::now();
            tokio::time::sleep(LOOK_EVERY / 20).await;
            let asked = Instant::now();
            let ticket = keeper.add(Leased::Message(fence(1)), asked, lease);
            let lost = keeper.leases()[&ticket].lost.clone();
            lost.cancelled().await;
            let took = asked.elapsed();
            keeping.abort();
            // Without the wake-up the keeper looks again as long after its first look as it may.
            if asked - began < LOOK_EVERY / 5 && took < lease {
                return;
            }
            taken.push(took);
        }
        panic!("given up after {taken:?}");
    }

    #[tokio::test]
    async fn a_message_is_not_handed_out_under_a_lease_that_was_given_up() {
        let (keeper, ticket) = keeper(0).await;
        keeper.lose_all();
        assert!(keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default()).is_none());
        assert!(keeper.take_due(Instant::now()).is_none());
    }

    #[tokio::test]
    async fn an_extension_counts_from_the_end_of_the_lease_or_from_when_it_was_asked_for() {
        let (keeper, ticket) = keeper(4000).await;
        let until = || keeper.leases()[&ticket].until;
        let (before, asked) = (until(), Instant::now());
        keeper.extended(ticket, Extension::Until(0), asked, LEASE / 2);
        assert_eq!(until(), before + LEASE / 2);
        keeper.extended(ticket, Extension::Until(0), before + LEASE, LEASE / 2);
        assert_eq!(until(), before + LEASE + LEASE / 2);
        keeper.extended(ticket, Extension::Lost, asked, LEASE / 2);
        assert!(keeper.leases()[&ticket].lost.is_cancelled());
    }

    #[tokio::test]
    async fn a_locked_message_is_kept_while_its_handlers_own_transaction_completes_it() {
        for completes in [false, true] {
            let (keeper, ticket) = keeper(4000).await;
            let in_transaction = InTransaction::default();
            keeper.hand_out(ticket, (1, fence(1)), &in_transaction).unwrap();
            if completes {
                in_transaction.completes();
            }
            let until = || keeper.leases()[&ticket].until;
            let (before, asked) = (until(), Instant::now() + LEASE / 4);
            assert_eq!(keeper.extended(ticket, Extension::Locked, asked, LEASE / 2), None);
            assert_eq!(until(), if completes { asked + LEASE / 2 } else { before });
            assert!(keeper.take_due(asked).is_some(), "the next look asks again");
            // The transaction was rolled back, and the lease taken meanwhile.
            assert_eq!(keeper.extended(ticket, Extension::Lost, asked, LEASE / 2), Some((ticket, fence(1))));
        }
    }

    #[tokio::test]
    async fn a_handler_is_told_of_its_own_message_only_and_not_after_it_has_completed_it() {
        let (keeper, ticket) = keeper(0).await;
        let in_transaction = InTransaction::default();
        let told = keeper.hand_out(ticket, (1, fence(1)), &in_transaction).unwrap();
        keeper.not_held(ticket, &fence(2), false);
        assert!(!told.is_cancelled());
        in_transaction.completes();
        let lost = keeper.extended(ticket, Extension::Lost, Instant::now(), LEASE);
        assert_eq!(lost, Some((ticket, fence(1))));
        keeper.not_held(ticket, &fence(1), false);
        // There is no lease to extend any more, and its end is not the handler's concern.
        let after = Instant::now() + LEASE;
        keeper.give_up(after);
        assert!(keeper.take_due(after).is_none());
        assert!(!told.is_cancelled() && keeper.is_exclusive(ticket));
        let told = keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default()).unwrap();
        keeper.handler_ended(ticket);
        keeper.not_held(ticket, &fence(1), false);
        assert!(!told.is_cancelled());
        let told = keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default()).unwrap();
        keeper.not_held(ticket, &fence(1), false);
        assert!(told.is_cancelled());
    }

    #[tokio::test]
    async fn a_handler_is_told_that_its_message_was_taken_although_it_has_begun_to_complete_it() {
        let (keeper, ticket) = keeper(0).await;
        let in_transaction = InTransaction::default();
        let told = keeper.hand_out(ticket, (1, fence(1)), &in_transaction).unwrap();
        in_transaction.completes();
        keeper.not_held(ticket, &fence(1), true);
        assert!(told.is_cancelled() && !keeper.is_exclusive(ticket));
    }

    #[tokio::test]
    async fn a_message_is_exclusive_while_its_lease_runs_and_after_that_if_it_was_gone_before() {
        for (found_gone, asked_before, exclusive) in
            [(None, 0, true), (None, 8100, false), (Some(0), 8100, true), (Some(8100), 8100, false)]
        {
            let (keeper, ticket) = keeper(0).await;
            keeper.hand_out(ticket, (1, fence(1)), &InTransaction::default()).unwrap();
            let set = |before: u64| {
                let until = Instant::now() + LEASE - Duration::from_millis(before);
                keeper.leases().get_mut(&ticket).unwrap().until = until;
            };
            if let Some(before) = found_gone {
                set(before);
                keeper.not_held(ticket, &fence(1), false);
            }
            set(asked_before);
            assert_eq!(keeper.is_exclusive(ticket), exclusive, "gone: {found_gone:?}, asked: {asked_before}");
        }
    }
}

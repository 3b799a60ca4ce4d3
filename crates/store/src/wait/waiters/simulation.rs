//! Callers of one topic under a scheduler that a seed controls: looks that take several steps, items that become ready, wake-ups,
//! callers that go away and callers that do not wait, in every order.
//!
//! There is no polling here, so that a wake-up that is lost is never made up for. When nothing moves any more:
//!
//! - no caller waits while there is an item that it could take;
//! - every item is there, or was received by a caller;
//! - calls that do not wait have ended, and the task runs only while others wait.
//!
//! Each rule that a promise stands on has a variant that breaks it, and the simulation must find it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;
use crate::wait::lease::{Lease, Leased};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// An item is announced before a look can see it.
    AnnouncesTooEarly,
    /// A wake-up that arrives during a look is dropped.
    ForgetsWakeUpsDuringALook,
    /// Two items that become ready together are announced as one.
    AnnouncesTwoAsOne,
    /// An answer that its caller does not receive is not released.
    KeepsLeasesOfCallersThatHaveGone,
}

/// What is leased: even and odd items, for callers that take one or the other.
struct Items {
    ready: [AtomicUsize; 2],
    broken: Broken,
    waiters: std::sync::OnceLock<Arc<Waiters<Simulated>>>,
}

struct Simulated(std::sync::Mutex<StdRng>);

struct Item {
    items: Arc<Items>,
    kind: usize,
}

impl Leased for Item {
    async fn release(self) {
        if self.items.broken != Broken::KeepsLeasesOfCallersThatHaveGone {
            self.items.ready[self.kind].fetch_add(1, Ordering::SeqCst);
            self.items.announce(self.kind);
        }
    }
}

impl Items {
    fn announce(&self, kind: usize) {
        let Some(waiters) = self.waiters.get() else { return };
        if self.broken != Broken::ForgetsWakeUpsDuringALook || !waiters.state().looking {
            waiters.wake_one(|want| *want == kind);
        }
    }

    /// So many items of a kind become ready.
    async fn enqueue(&self, kind: usize, count: usize) {
        if self.broken == Broken::AnnouncesTooEarly {
            self.announce(kind);
            steps(3).await;
            self.ready[kind].fetch_add(count, Ordering::SeqCst);
            return;
        }
        self.ready[kind].fetch_add(count, Ordering::SeqCst);
        let announced = if self.broken == Broken::AnnouncesTwoAsOne { 1 } else { count };
        (0..announced).for_each(|_| self.announce(kind));
    }
}

async fn steps(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

impl Simulated {
    fn steps(&self) -> usize {
        self.0.lock().unwrap().random_range(0..4)
    }
}

impl Topic for Simulated {
    type Home = Items;
    type Want = usize;
    type Answer = Result<Option<Lease<Item>>>;

    async fn look(&self, items: &Arc<Items>, round: &mut Round<'_, Self>) -> bool {
        steps(self.steps()).await;
        for n in round.open() {
            let kind = round.asked[n].want;
            let taken =
                items.ready[kind].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |ready| ready.checked_sub(1));
            if taken.is_ok() {
                round.answer(n, Ok(Some(Lease::new(Item { items: items.clone(), kind }))));
            }
        }
        steps(self.steps()).await;
        false
    }

    async fn rest(&self, _: &Arc<Items>) -> Result<()> {
        std::future::pending().await
    }

    fn alike(one: &usize, other: &usize) -> bool {
        one == other
    }
}

/// A run of one seed; an error says which promise was broken.
async fn simulate(seed: u64, broken: Broken) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let topic = Simulated(std::sync::Mutex::new(StdRng::seed_from_u64(seed + 1)));
    let waiters = Waiters::new(topic);
    let items = Arc::new(Items { ready: Default::default(), broken, waiters: std::sync::OnceLock::new() });
    assert!(items.waiters.set(waiters.clone()).is_ok());
    let received: Arc<[AtomicUsize; 2]> = Arc::default();
    let mut enqueued = [0, 0];
    let mut callers: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    for _ in 0..random.random_range(5..40) {
        match random.random_range(0..10) {
            0..5 => {
                let kind = random.random_range(0..2);
                let wait = std::time::Duration::from_secs(if random.random_bool(0.3) { 0 } else { 3600 });
                let (waiters, items, received) = (waiters.clone(), items.clone(), received.clone());
                callers.push(tokio::spawn(async move {
                    if let Some(lease) = waiters.wait(&items, kind, Instant::now() + wait).await.unwrap() {
                        let _received = lease.keep();
                        received[kind].fetch_add(1, Ordering::SeqCst);
                    }
                }));
            }
            5..8 => {
                let (kind, count) = (random.random_range(0..2), random.random_range(1..4));
                enqueued[kind] += count;
                items.enqueue(kind, count).await;
            }
            _ if callers.is_empty() => {}
            _ => callers.swap_remove(random.random_range(0..callers.len())).abort(),
        }
        steps(random.random_range(0..6)).await;
    }
    steps(200).await;
    for kind in 0..2 {
        let (ready, waiting) = (items.ready[kind].load(Ordering::SeqCst), waiters.count(|want, _| *want == kind));
        if ready > 0 && waiting > 0 {
            return Err(format!("{waiting} callers wait although {ready} items are ready"));
        }
        let received = received[kind].load(Ordering::SeqCst);
        if ready + received != enqueued[kind] {
            return Err(format!("{} items were enqueued, {received} received, and {ready} are there", enqueued[kind]));
        }
    }
    let waiting = waiters.count(|_, _| true);
    let state = waiters.state();
    match callers.iter().filter(|caller| !caller.is_finished()).count() {
        running if running != waiting => Err(format!("{running} calls have not ended, and {waiting} wait")),
        _ if state.served == state.waiting.is_empty() => Err("the task runs although no caller waits".to_owned()),
        _ => Ok(()),
    }
}

/// The first seed below `seeds` that breaks a promise, and how.
fn first_violation(seeds: u64, broken: Broken) -> Option<(u64, String)> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    (0..seeds).find_map(|seed| Some((seed, runtime().block_on(simulate(seed, broken)).err()?)))
}

#[test]
fn no_wake_up_and_no_lease_is_lost_in_any_order_of_steps() {
    assert_eq!(first_violation(3_000, Broken::Nothing), None);
}

#[test]
fn every_rule_that_is_broken_is_noticed() {
    for broken in [
        Broken::AnnouncesTooEarly,
        Broken::ForgetsWakeUpsDuringALook,
        Broken::AnnouncesTwoAsOne,
        Broken::KeepsLeasesOfCallersThatHaveGone,
    ] {
        assert!(first_violation(3_000, broken).is_some(), "{broken:?} was not noticed");
    }
}

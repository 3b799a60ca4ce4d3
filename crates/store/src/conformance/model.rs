//! Random operations against an in-memory model: whatever the store answers, the model must have said.
//!
//! The model is a list of messages with a place in line, an attempt count and a lease. It knows nothing of cursors,
//! batches or databases, so it can only agree if none of those show.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;
use crate::{Due, Outcome, Place};

#[derive(Clone, Debug)]
struct Item {
    /// Order of delivery among live items.
    place: u64,
    attempts: i64,
    max_attempts: Option<i64>,
    expire_at: Option<i64>,
    state: ItemState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ItemState {
    /// `until`: leased until then, or until somebody else takes it.
    Live {
        until: Option<i64>,
    },
    Scheduled {
        due: i64,
        keep_place: bool,
    },
    Dead,
    Completed,
}

struct Model {
    seed: u64,
    rng: StdRng,
    now: i64,
    next_place: u64,
    lease: i64,
    max_attempts: Option<i64>,
    expire: Option<i64>,
    items: HashMap<i64, Item>,
    /// Every fence ever handed out, with its message's identity.
    fences: Vec<(Fence, i64)>,
    /// The position under which each message was last delivered: attempts alone begin anew after a replay.
    positions: HashMap<i64, i64>,
}

/// One run from one seed, on a queue of its own.
pub async fn run(h: &Harness, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let max_attempts = rng.random_bool(0.5).then(|| rng.random_range(1..4));
    let expire = rng.random_bool(0.3).then(|| rng.random_range(20..200) * 1_000_000);
    let lease = rng.random_range(1..40) * 250_000;
    let settings = Settings {
        lease: Duration::from_micros(lease as u64),
        max_attempts,
        expire: expire.map(|expire: i64| Duration::from_micros(expire as u64)),
        retain_completed: rng.random_bool(0.5).then_some(Duration::from_secs(100_000)),
        ..Settings::default()
    };
    let queue = h.store.queue_create(&format!("model-{seed}"), settings).await.unwrap();
    let mut model = Model {
        seed,
        rng,
        now: h.clock.fixed_now().unwrap(),
        next_place: 0,
        lease,
        max_attempts: max_attempts.map(i64::from),
        expire,
        items: HashMap::new(),
        fences: Vec::new(),
        positions: HashMap::new(),
    };
    for step in 0..60 {
        model.step(h, &queue, step).await;
    }
    model.settle(h, &queue).await;
}

impl Model {
    async fn step(&mut self, h: &Harness, queue: &Queue, step: u32) {
        match self.rng.random_range(0..100) {
            0..20 => self.enqueue(h, queue).await,
            20..45 => self.claim(h, queue, step).await,
            45..80 => self.verb(h, step).await,
            80..92 => {
                let millis = [1, 250, 1_000, 5_000, 20_000][self.rng.random_range(0..5)];
                h.advance(millis);
                self.now += millis as i64 * 1000;
            }
            92..96 => self.sweep(h, queue, step).await,
            _ => self.replay(h, step).await,
        }
    }

    async fn enqueue(&mut self, h: &Harness, queue: &Queue) {
        let count = self.rng.random_range(1..6);
        let messages: Vec<NewMessage> = (0..count)
            .map(|_| {
                let millis = self.rng.random_range(1..10_000);
                let due = self.rng.random_bool(0.3).then_some(Due::In(Duration::from_millis(millis)));
                NewMessage { due, ..NewMessage::new("x") }
            })
            .collect();
        let answers = h.store.enqueue(queue, None, messages.clone()).await.unwrap();
        for (message, answer) in messages.iter().zip(answers) {
            let due = match message.due {
                Some(Due::In(delay)) => Some(self.now + delay.as_micros() as i64),
                _ => None,
            };
            assert_eq!(answer.due_at, due, "seed {}", self.seed);
            let expire_at = self.expire.map(|expire| due.unwrap_or(self.now) + expire);
            let state = match due {
                Some(due) => ItemState::Scheduled { due, keep_place: false },
                None => ItemState::Live { until: None },
            };
            let item = Item { place: self.place(), attempts: 0, max_attempts: self.max_attempts, expire_at, state };
            self.items.insert(answer.id, item);
        }
    }

    fn place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    /// What is due joins the line: in the order of due times, then of places.
    fn promote(&mut self) {
        let due_at = |item: &Item| match item.state {
            ItemState::Scheduled { due, keep_place } if due <= self.now => Some((due, item.place, keep_place)),
            _ => None,
        };
        let mut due: Vec<_> = self.items.iter().filter_map(|(id, item)| due_at(item).map(|at| (at, *id))).collect();
        due.sort_unstable();
        for ((_, _, keep_place), id) in due {
            let place = self.place();
            let item = self.items.get_mut(&id).unwrap();
            item.state = ItemState::Live { until: None };
            if !keep_place {
                item.place = place;
            }
        }
    }

    async fn claim(&mut self, h: &Harness, queue: &Queue, step: u32) {
        let limit = self.rng.random_range(1..8);
        self.promote();
        let mut line: Vec<(u64, i64)> = self
            .items
            .iter()
            .filter(|(_, item)| matches!(item.state, ItemState::Live { until } if until.is_none_or(|u| u <= self.now)))
            .map(|(id, item)| (item.place, *id))
            .collect();
        line.sort_unstable();
        let mut expected = Vec::new();
        for (_, id) in line {
            if expected.len() == limit {
                break;
            }
            let item = self.items.get_mut(&id).unwrap();
            let exhausted = item.max_attempts.is_some_and(|limit| item.attempts >= limit);
            if exhausted || item.expire_at.is_some_and(|at| at < self.now) {
                item.state = ItemState::Dead;
            } else {
                item.attempts += 1;
                item.state = ItemState::Live { until: Some(self.now + self.lease) };
                expected.push((id, item.attempts));
            }
        }
        let taken = h.take(queue, limit).await;
        let got: Vec<(i64, i64)> = taken.iter().map(|message| (message.identity(), message.attempts)).collect();
        assert_eq!(got, expected, "seed {}, step {step}: claim of {limit}", self.seed);
        self.fences.extend(taken.iter().map(|message| (message.fence(), message.identity())));
        self.positions.extend(taken.iter().map(|message| (message.identity(), message.id)));
    }

    async fn verb(&mut self, h: &Harness, step: u32) {
        if self.fences.is_empty() {
            return;
        }
        // Mostly recent fences, some of them stale.
        let from = self.fences.len().saturating_sub(12);
        let (fence, id) = self.fences[self.rng.random_range(from..self.fences.len())];
        let holds = {
            let item = &self.items[&id];
            self.positions[&id] == fence.id
                && fence.attempt == Some(item.attempts)
                && matches!(item.state, ItemState::Live { until: Some(_) })
        };
        let seconds = self.rng.random_range(1..10);
        let delay = Duration::from_secs(seconds);
        let due = self.now + delay.as_micros() as i64;
        let choice = self.rng.random_range(0..100);
        let keep_place = self.rng.random_bool(0.5);
        let done = match choice {
            0..40 => h.complete(fence).await == Answer::Done,
            40..55 => h.store.release(&[fence]).await.unwrap()[0] == Answer::Done,
            55..65 => h.store.retry(&[fence], None, Place::Tail).await.unwrap()[0] == Answer::Done,
            65..80 => {
                let place = if keep_place { Place::Keep } else { Place::Tail };
                h.store.retry(&[fence], Some(Due::In(delay)), place).await.unwrap()[0] == Answer::Done
            }
            80..92 => h.store.extend(&[fence], delay).await.unwrap()[0].is_some(),
            _ => h.store.bury(&[fence], "random").await.unwrap()[0] == Answer::Done,
        };
        assert_eq!(done, holds, "seed {}, step {step}: verb {choice} on {fence:?} of {:?}", self.seed, self.items[&id]);
        if !holds {
            return;
        }
        let place = self.place();
        let now = self.now;
        let item = self.items.get_mut(&id).unwrap();
        item.state = match choice {
            0..40 => ItemState::Completed,
            40..55 => ItemState::Live { until: None },
            55..65 => {
                item.place = place;
                ItemState::Live { until: None }
            }
            65..80 => ItemState::Scheduled { due, keep_place },
            80..92 => {
                let ItemState::Live { until: Some(until) } = item.state else { unreachable!("it holds") };
                ItemState::Live { until: Some(until.max(now) + delay.as_micros() as i64) }
            }
            _ => ItemState::Dead,
        };
    }

    async fn sweep(&mut self, h: &Harness, queue: &Queue, step: u32) {
        let mut count = 0;
        for item in self.items.values_mut() {
            let ItemState::Live { until } = item.state else { continue };
            let free = until.is_none_or(|until| until <= self.now);
            let exhausted = free && item.max_attempts.is_some_and(|limit| item.attempts >= limit);
            if exhausted || item.expire_at.is_some_and(|at| at < self.now) {
                item.state = ItemState::Dead;
                count += 1;
            }
        }
        assert_eq!(h.store.sweep(queue.lanes[0]).await.unwrap(), count, "seed {}, step {step}: sweep", self.seed);
    }

    async fn replay(&mut self, h: &Harness, step: u32) {
        let mut ids: Vec<i64> = self.items.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        ids.sort_unstable();
        let id = ids[self.rng.random_range(0..ids.len())];
        let dead = self.items[&id].state == ItemState::Dead;
        let replayed = h.store.archive_replay(None, &[id]).await.unwrap()[0].is_some();
        assert_eq!(replayed, dead, "seed {}, step {step}: replay of {id}", self.seed);
        if dead {
            let place = self.place();
            let expire_at = self.expire.map(|expire| self.now + expire);
            let item = self.items.get_mut(&id).unwrap();
            *item = Item { place, attempts: 0, expire_at, state: ItemState::Live { until: None }, ..item.clone() };
        }
    }

    /// At the end: counts agree, and everything that is left comes out in order.
    async fn settle(&mut self, h: &Harness, queue: &Queue) {
        let stats = h.store.lane_stats(queue.lanes[0]).await.unwrap();
        let count = |test: &dyn Fn(&ItemState) -> bool| self.items.values().filter(|i| test(&i.state)).count() as u64;
        let now = self.now;
        let leased = count(&|state| matches!(state, ItemState::Live { until: Some(until) } if *until > now));
        let live = count(&|state| matches!(state, ItemState::Live { .. }));
        let scheduled = count(&|state| matches!(state, ItemState::Scheduled { .. }));
        assert_eq!(
            (stats.ready, stats.leased, stats.scheduled),
            (live - leased, leased, scheduled),
            "seed {}",
            self.seed
        );
        let (dead, total) = h.store.archive_count(queue.id).await.unwrap();
        assert_eq!(dead, count(&|state| *state == ItemState::Dead), "seed {}", self.seed);
        let completed = count(&|state| *state == ItemState::Completed);
        let kept = if queue.settings.retain_completed.is_some() { completed } else { 0 };
        assert_eq!(total - dead, kept, "seed {}", self.seed);
        for item in h.store.archive_list(queue.id, false, None, 1000).await.unwrap() {
            assert_eq!(item.outcome == Outcome::Completed, self.items[&item.id].state == ItemState::Completed);
        }
        h.advance(50_000);
        self.now += 50_000_000;
        for _ in 0..10 {
            self.claim(h, queue, 999).await;
        }
    }
}

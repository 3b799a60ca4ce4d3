//! What a desk believes about its partitions: how full they are, whether looking there is worth while, and when leases that
//! were given out here run out.
//!
//! Invariant: a belief is withdrawn only by a look that began after its last reason.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure_store::Message;
use tokio::time::Instant;

use super::GRACE;

/// Leases of which the end is remembered; those beyond are met by whoever looks after all queues.
const REMEMBERED: usize = 200_000;
/// Ends closer together than this are met together.
const GRAIN: Duration = Duration::from_millis(10);
/// Recovering takes at most one part in so many of the time.
const SHARE: u32 = 20;

/// Beliefs about one partition.
#[derive(Default)]
pub(crate) struct Tally {
    /// How many can be leased: a guess.
    pub(crate) unleased: usize,
    /// How many are on their way into it.
    pub(crate) coming: usize,
    /// Whether there may be something to lease.
    pub(crate) maybe: bool,
    /// Counts the reasons for `maybe`.
    pub(crate) stamp: u64,
    pub(crate) leases: Leases,
}

impl Tally {
    /// There may be something.
    pub(crate) fn stir(&mut self) {
        self.maybe = true;
        self.stamp += 1;
    }

    /// So many of those that were on their way are there, and so many of them can be leased.
    pub(crate) fn arrived(&mut self, count: usize, ready: usize) {
        self.coming -= count;
        self.unleased += ready;
        self.stir();
    }

    pub(crate) fn recounted(&mut self, ready: usize) {
        self.unleased = ready;
        self.stir();
    }

    /// A look that began at `stamp` wanted so many and got these. Whether one of their leases ends sooner than the others.
    pub(crate) fn taken(&mut self, wanted: usize, messages: &[Message], stamp: u64) -> bool {
        self.unleased = self.unleased.saturating_sub(messages.len());
        if messages.len() < wanted && self.stamp == stamp {
            self.unleased = 0;
            self.maybe = false;
        }
        let before = self.leases.next();
        self.leases.begin(messages);
        self.leases.next().is_some_and(|next| before.is_none_or(|before| next < before))
    }
}

/// Which partition each lease goes to: the fullest, and where several are, the one before. None: nothing to be expected.
pub(crate) fn assign(tallies: &[Tally], up: &[bool], batches: &[usize]) -> Vec<Option<usize>> {
    let mut unleased: Vec<usize> = tallies.iter().map(|tally| tally.unleased).collect();
    let hopeful = |n: &usize| up[*n] && tallies[*n].maybe;
    let mut last: Option<usize> = None;
    let choose = |batch: &usize| {
        let fullest = (0..tallies.len()).filter(hopeful).map(|n| unleased[n]).max()?;
        let alike = |n: &usize| hopeful(n) && unleased[*n] == fullest;
        let part = last.filter(alike).or_else(|| (0..tallies.len()).rev().find(alike))?;
        unleased[part] = fullest.saturating_sub(*batch);
        last = Some(part);
        Some(part)
    };
    batches.iter().map(choose).collect()
}

/// Partitions that may have something, the fullest first.
pub(crate) fn order(tallies: &[Tally]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tallies.len()).filter(|n| tallies[*n].maybe).collect();
    order.sort_by_key(|n| std::cmp::Reverse(tallies[*n].unleased));
    order
}

/// When leases that were given out here end.
#[derive(Default)]
pub(crate) struct Leases {
    ends: HashMap<i64, Instant>,
    times: BTreeMap<Instant, usize>,
    rests_until: Option<Instant>,
}

impl Leases {
    fn begin(&mut self, messages: &[Message]) {
        let now = Instant::now();
        for message in messages {
            let length = message.leased_until.saturating_sub(message.leased_at.unwrap_or(message.leased_until));
            let end = now.checked_add(Duration::from_micros(length.unsigned_abs()) + GRACE);
            if self.ends.len() < REMEMBERED
                && let Some(end) = end
            {
                self.ends.insert(message.id, end);
                *self.times.entry(end).or_default() += 1;
            }
        }
    }

    pub(crate) fn end(&mut self, ids: impl Iterator<Item = i64>) {
        for id in ids {
            if let Some(end) = self.ends.remove(&id)
                && let Some(count) = self.times.get_mut(&end)
            {
                *count -= 1;
                if *count == 0 {
                    self.times.remove(&end);
                }
            }
        }
    }

    /// When the next one ends and is worth a look.
    pub(crate) fn next(&self) -> Option<Instant> {
        let (end, _) = self.times.first_key_value()?;
        Some(self.rests_until.map_or(*end, |rest| rest.max(*end)))
    }

    /// Forgets those that have ended by now; whether there were any.
    pub(crate) fn lapse(&mut self, now: Instant) -> bool {
        if self.next().is_none_or(|next| next > now) {
            return false;
        }
        self.times = self.times.split_off(&(now + Duration::from_nanos(1)));
        self.ends.retain(|_, end| *end > now);
        true
    }

    /// Recovering took this long: it rests accordingly.
    pub(crate) fn rest(&mut self, took: Duration) {
        self.rests_until = Some(Instant::now() + GRAIN.max(took * SHARE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(unleased: &[usize]) -> Vec<Tally> {
        unleased.iter().map(|unleased| Tally { unleased: *unleased, maybe: true, ..Tally::default() }).collect()
    }

    fn assigned(unleased: &[usize], batches: &[usize]) -> Vec<usize> {
        let up = vec![true; unleased.len()];
        assign(&tallies(unleased), &up, batches).into_iter().map(|part| part.unwrap_or(usize::MAX)).collect()
    }

    #[test]
    fn leases_go_where_most_is() {
        assert_eq!(assigned(&[30, 20], &[5, 10, 20]), [0, 0, 1]);
        assert_eq!(assigned(&[0, 7, 0], &[1, 1]), [1, 1]);
    }

    #[test]
    fn leases_that_find_nothing_more_share_the_partition_of_the_one_before() {
        assert_eq!(assigned(&[0, 0, 10, 0, 0], &[10; 5]), [2; 5]);
    }

    #[test]
    fn a_partition_that_fails_or_has_nothing_is_passed_over() {
        let mut three = tallies(&[9, 5, 1]);
        three[1].maybe = false;
        assert_eq!(assign(&three, &[false, true, true], &[1]), [Some(2)]);
        three[2].maybe = false;
        assert_eq!(assign(&three, &[false, true, true], &[1]), [None]);
        assert_eq!(order(&three), [0]);
    }

    #[test]
    fn a_look_that_began_before_the_last_reason_withdraws_nothing() {
        let mut tally = Tally::default();
        tally.stir();
        let stamp = tally.stamp;
        tally.stir();
        tally.taken(10, &[], stamp);
        assert!(tally.maybe);
        tally.taken(10, &[], tally.stamp);
        assert!(!tally.maybe);
    }
}

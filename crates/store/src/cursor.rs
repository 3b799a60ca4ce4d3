//! Where a process looks for work in a lane, so that claims do not wade through what is leased or gone.
//!
//! Invariants: everything below `head` was leased or gone when this process last looked; nothing below `floor` can ever
//! be live again. Claims scan from the head. A full scan from the floor runs when a lease that this process handed out
//! may have run out, and at least every second: it finds expired leases and late commits, because ids are drawn in
//! order but not committed in order. A floor is believed only when every transaction that was running when it was seen
//! has ended. A process that makes something ready lowers its own head, also under a scan that is going on: that one may
//! have looked before the commit (measured without this: 295 ms p99 at 10k/s, the wait for the next full scan).

use std::collections::{BTreeMap, BTreeSet};

use crate::ops::claim::FloorSeen;
use crate::types::Micros;

/// How long a late commit or a foreign lease can go unseen.
const FULL_SCAN_EVERY: Micros = 1_000_000;
/// Deadlines closer together than this share a full scan, so that many leases do not mean many scans.
const GRAIN: Micros = 250_000;

/// The cursors of one lane in one process. Times are of the caller's own steady clock.
#[derive(Debug)]
pub(crate) struct Cursor {
    head: i64,
    /// Beyond the last message that this process has leased; the end of the lane when it found nothing more to lease.
    reach: i64,
    floor: i64,
    /// A floor that was seen, and the transaction number that must be passed before it is believed.
    candidate: Option<(i64, i64)>,
    next_full: Micros,
    deadlines: BTreeSet<Micros>,
    /// Scans going on, with the lowest position that became ready since each began.
    scans: BTreeMap<u64, i64>,
    next_scan: u64,
    grain: Micros,
}

/// A scan in progress.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) from: i64,
    pub(crate) full: bool,
    number: u64,
}

/// What a scan has leased: everything that was ready up to `last`, until `deadline`; `stopped` when it got all it asked
/// for and did not look further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    pub(crate) last: i64,
    pub(crate) stopped: bool,
    pub(crate) deadline: Micros,
}

impl Cursor {
    /// A cursor that knows nothing: its first scan is a full one. `exact` keeps every deadline apart, for fixed clocks.
    pub(crate) fn new(exact: bool) -> Self {
        Cursor {
            head: 0,
            reach: i64::MAX,
            floor: 0,
            candidate: None,
            next_full: Micros::MIN,
            deadlines: BTreeSet::new(),
            scans: BTreeMap::new(),
            next_scan: 0,
            grain: if exact { 1 } else { GRAIN },
        }
    }

    /// Whether the next scan will be a full one.
    pub(crate) fn is_full_due(&self, now: Micros) -> bool {
        now >= self.wakes_at()
    }

    /// When there is reason to look again, if nothing else happens.
    pub(crate) fn wakes_at(&self) -> Micros {
        self.deadlines.first().map_or(self.next_full, |deadline| self.next_full.min(*deadline))
    }

    /// Begins a scan.
    pub(crate) fn begin(&mut self, now: Micros) -> Scan {
        let full = self.is_full_due(now);
        if full {
            self.next_full = now.saturating_add(FULL_SCAN_EVERY);
            self.deadlines = self.deadlines.split_off(&now.saturating_add(1));
        }
        self.next_scan += 1;
        self.scans.insert(self.next_scan, i64::MAX);
        Scan { from: if full { self.floor } else { self.head }, full, number: self.next_scan }
    }

    /// Ends a scan: with what it leased, or with nothing.
    pub(crate) fn end(&mut self, scan: &Scan, leased: Option<Leased>) {
        let low = self.scans.remove(&scan.number).unwrap_or(i64::MAX);
        self.reach = leased.filter(|leased| leased.stopped).map_or(i64::MAX, |leased| self.head.max(leased.last + 1));
        if let Some(Leased { last, stopped, deadline }) = leased {
            self.expect(deadline);
            self.head = match scan.full && stopped {
                // The full scan stopped early: what lies between here and the head has not been looked at.
                true => self.head.min(last + 1),
                false => self.head.max(last + 1),
            };
        }
        self.head = self.head.min(low);
    }

    /// A lease of this process ends then, unless its holder is done before.
    pub(crate) fn expect(&mut self, deadline: Micros) {
        self.deadlines.insert(deadline.saturating_add(self.grain - 1) / self.grain * self.grain);
    }

    /// Something became ready at this position.
    pub(crate) fn lower(&mut self, id: i64) {
        self.head = self.head.min(id);
        for low in self.scans.values_mut() {
            *low = id.min(*low);
        }
        if id < self.floor {
            self.floor = id;
        }
        if self.candidate.is_some_and(|(floor, _)| id < floor) {
            self.candidate = None;
        }
    }

    /// Something may have become ready anywhere: the next scan is a full one.
    pub(crate) fn rewind(&mut self) {
        self.next_full = Micros::MIN;
    }

    /// Where the floor was last believed to be.
    pub(crate) fn floor(&self) -> i64 {
        self.floor
    }

    /// Where leases may be that this process should look after: not beyond a backlog that nobody has touched yet.
    pub(crate) fn leased(&self) -> std::ops::Range<i64> {
        self.floor..self.reach
    }

    /// Takes note of what was seen at the bottom of the lane.
    pub(crate) fn observe(&mut self, seen: FloorSeen) {
        if let Some((floor, started)) = self.candidate
            && seen.running >= started
        {
            // What those transactions have committed is visible by now, and may lie below.
            self.floor = self.floor.max(seen.floor.map_or(floor, |live| live.min(floor)));
            self.candidate = None;
        }
        if self.candidate.is_none() {
            let floor = seen.floor.unwrap_or(self.head).min(self.head.max(self.floor));
            if floor > self.floor {
                self.candidate = Some((floor, seen.started));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: FloorSeen = FloorSeen { floor: Some(50), running: 10, started: 20 };

    fn leased(last: i64, stopped: bool, deadline: Micros) -> Option<Leased> {
        Some(Leased { last, stopped, deadline })
    }

    fn cursor_at(head: i64) -> Cursor {
        let mut cursor = Cursor::new(true);
        let scan = cursor.begin(0);
        cursor.end(&scan, leased(head - 1, false, 100_000));
        cursor
    }

    #[test]
    fn claims_go_on_from_the_head_and_a_full_scan_comes_every_second() {
        let mut cursor = Cursor::new(true);
        let first = cursor.begin(0);
        assert!(first.full);
        cursor.end(&first, leased(9, false, 5_000_000));
        assert_eq!((cursor.begin(10).from, cursor.begin(10).full), (10, false));
        assert!(cursor.begin(1_000_000).full);
        assert!(!cursor.begin(1_000_001).full);
    }

    #[test]
    fn a_lease_that_runs_out_brings_a_full_scan_forward_once() {
        let mut cursor = cursor_at(10);
        assert_eq!(cursor.wakes_at(), 100_000);
        assert!(!cursor.begin(99_999).full);
        assert!(cursor.begin(100_000).full);
        assert!(!cursor.begin(100_001).full);
    }

    #[test]
    fn a_full_scan_that_stopped_early_goes_on_from_where_it_stopped() {
        let mut cursor = cursor_at(1000);
        let scan = cursor.begin(2_000_000);
        cursor.end(&scan, leased(7, true, 3_000_000));
        assert_eq!(cursor.begin(2_000_001).from, 8);
    }

    #[test]
    fn a_message_made_ready_during_a_scan_is_not_passed_over() {
        let mut cursor = cursor_at(10);
        let scan = cursor.begin(1);
        cursor.lower(4);
        cursor.end(&scan, leased(30, false, 9_000_000));
        assert_eq!(cursor.begin(2).from, 4);
    }

    #[test]
    fn a_commit_that_a_scan_did_not_see_is_found_by_the_next() {
        let mut cursor = cursor_at(10);
        let scan = cursor.begin(1);
        // Drawn before what the scan finds, committed after it looked.
        cursor.lower(12);
        cursor.end(&scan, leased(30, false, 9_000_000));
        assert_eq!(cursor.begin(2).from, 12);
    }

    #[test]
    fn a_floor_is_believed_only_when_what_was_running_has_ended() {
        let mut cursor = cursor_at(100);
        cursor.observe(SEEN);
        assert_eq!(cursor.floor(), 0);
        cursor.observe(FloorSeen { running: 19, ..SEEN });
        assert_eq!(cursor.floor(), 0);
        cursor.observe(FloorSeen { running: 20, ..SEEN });
        assert_eq!(cursor.floor(), 50);
    }

    #[test]
    fn a_late_commit_below_a_candidate_holds_the_floor_down() {
        let mut cursor = cursor_at(100);
        cursor.observe(FloorSeen { floor: None, ..SEEN });
        cursor.observe(FloorSeen { floor: Some(31), running: 25, started: 26 });
        assert_eq!(cursor.floor(), 31);
    }

    #[test]
    fn an_empty_lane_has_its_floor_at_the_head_and_never_above() {
        let mut cursor = cursor_at(100);
        for running in [20, 30] {
            cursor.observe(FloorSeen { floor: None, running, started: 20 });
        }
        assert_eq!(cursor.floor(), 100);
        cursor.lower(60);
        assert_eq!(cursor.floor(), 60);
    }
}

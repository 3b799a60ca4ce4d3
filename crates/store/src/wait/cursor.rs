//! Where a process looks for work in a lane, so that claims do not wade through what is leased or gone.
//!
//! Invariants: everything below `head` was leased or gone when this process last looked; nothing below `low` was live at
//! its last look, except what a transaction has committed late; nothing below `floor` can ever be live again. Claims scan
//! from the head. When a lease that this process handed out may have run out, a scan from `low` finds it. At least every
//! second a scan from the floor finds late commits, because ids are drawn in order but not committed in order. A floor is
//! believed only when every transaction that may have drawn an id when it was seen has ended. A process that makes
//! something ready lowers its own head, also under a scan that is going on: that one may have looked before the commit
//! (measured without this: 295 ms p99 at 10k/s, the wait for the next full scan).

use std::collections::{BTreeMap, BTreeSet};

use crate::ops::claim::FloorSeen;
use crate::types::Micros;

/// How long a late commit or a foreign lease can go unseen.
const FULL_SCAN_EVERY: Micros = 1_000_000;
/// Deadlines closer together than this share a full scan, so that many leases do not mean many scans.
const GRAIN: Micros = 250_000;
/// A full scan that takes longer walks through dead rows that an open transaction keeps from being removed: 1,500 messages/s
/// leave 450,000 of them in five minutes, and a look over 90,000 small ones in memory took 11 to 17 ms.
const COSTLY: Micros = 50_000;
/// A costly full scan rests for this many times what it took, so that it cannot take up the time of claims: before the next
/// one from the floor, and before the next one for leases that have run out.
const REST: Micros = 10;
const REST_FOR_LEASES: Micros = 3;
/// The longest such rests.
const LONGEST_REST: Micros = 10_000_000;
const LONGEST_REST_FOR_LEASES: Micros = 1_000_000;

/// The cursors of one lane in one process. Times are of the caller's own steady clock.
#[derive(Debug)]
pub(crate) struct Cursor {
    head: i64,
    /// Beyond the last message that this process has leased; the end of the lane when it found nothing more to lease.
    reach: i64,
    low: i64,
    floor: i64,
    candidate: Option<Candidate>,
    next_full: Micros,
    /// No full scan begins before this.
    rests_until: Micros,
    deadlines: BTreeSet<Micros>,
    /// Scans and looks that are going on.
    scans: BTreeMap<u64, Running>,
    next_scan: u64,
    grain: Micros,
}

/// A floor that was seen but is not yet believed.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    floor: i64,
    /// Every transaction that may hold ids below the floor has a lower number.
    started: i64,
    /// They have all ended, as a look has found after it had read the floor: the next look sees what they committed.
    ended: bool,
}

#[derive(Debug)]
struct Running {
    /// The lowest position that became ready since it began.
    low: i64,
    /// Where it began, if it was due to look behind the head.
    full_from: Option<i64>,
}

/// A scan in progress.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) from: i64,
    pub(crate) full: bool,
    number: u64,
}

/// A look at the bottom of the lane in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// The floor: nothing below is looked at.
    pub(crate) from: i64,
    /// The transaction number that the candidate waits for.
    pub(crate) started: Option<i64>,
    /// Whether a new candidate may come of it.
    pub(crate) wanted: bool,
    ended: bool,
    number: u64,
}

/// What a scan has leased: everything that was ready from `first` to `last`, of which the first lease ends at `deadline`;
/// `stopped` when it got all it asked for and did not look further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    pub(crate) first: i64,
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
            low: 0,
            floor: 0,
            candidate: None,
            next_full: Micros::MIN,
            rests_until: Micros::MIN,
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

    /// Whether it will begin at the floor, for which the floor should be looked at first.
    pub(crate) fn is_look_due(&self, now: Micros) -> bool {
        now >= self.next_full.max(self.rests_until)
    }

    /// When there is reason to look again, if nothing else happens.
    pub(crate) fn wakes_at(&self) -> Micros {
        let next = self.deadlines.first().map_or(self.next_full, |deadline| self.next_full.min(*deadline));
        next.max(self.rests_until)
    }

    /// Begins a scan.
    pub(crate) fn begin(&mut self, now: Micros) -> Scan {
        // Another full scan is going on: it may stop before it reaches what this one could take (a NOTIFY that woke two
        // sets of callers was used up by the first, and the second looked only from the head).
        let joined = self.scans.values().filter_map(|scan| scan.full_from).min();
        let due = self.is_full_due(now).then(|| if self.is_look_due(now) { self.floor } else { self.low });
        if due.is_some() {
            if self.is_look_due(now) {
                self.next_full = now.saturating_add(FULL_SCAN_EVERY);
            }
            self.deadlines = self.deadlines.split_off(&now.saturating_add(1));
        }
        let from = joined.into_iter().chain(due).min();
        Scan { from: from.unwrap_or(self.head).min(self.head), full: from.is_some(), number: self.enter(due) }
    }

    fn enter(&mut self, full_from: Option<i64>) -> u64 {
        self.next_scan += 1;
        self.scans.insert(self.next_scan, Running { low: i64::MAX, full_from });
        self.next_scan
    }

    /// The lowest position that became ready since it began.
    fn leave(&mut self, number: u64) -> i64 {
        self.scans.remove(&number).map_or(i64::MAX, |scan| scan.low)
    }

    /// Ends a scan: with what it leased, or with nothing.
    pub(crate) fn end(&mut self, scan: &Scan, leased: Option<Scanned>) {
        let low = self.leave(scan.number);
        self.reach = leased.filter(|leased| leased.stopped).map_or(i64::MAX, |leased| self.head.max(leased.last + 1));
        if let Some(Scanned { first, last, stopped, deadline }) = leased {
            self.expect(deadline);
            self.low = self.low.min(first);
            self.head = match scan.full && stopped {
                // The full scan stopped early: what lies between here and the head has not been looked at.
                true => self.head.min(last + 1),
                false => self.head.max(last + 1),
            };
        }
        self.head = self.head.min(low);
    }

    /// A full scan has taken this long, with what came before it.
    pub(crate) fn rest(&mut self, now: Micros, took: Micros) {
        if took >= COSTLY {
            let after = |times: Micros, longest| now.saturating_add(took.saturating_mul(times).min(longest));
            self.next_full = self.next_full.max(after(REST, LONGEST_REST));
            self.rests_until = after(REST_FOR_LEASES, LONGEST_REST_FOR_LEASES);
        }
    }

    /// A lease of this process ends then, unless its holder is done before.
    pub(crate) fn expect(&mut self, deadline: Micros) {
        self.deadlines.insert(deadline.saturating_add(self.grain - 1) / self.grain * self.grain);
    }

    /// Something became ready at this position.
    pub(crate) fn lower(&mut self, id: i64) {
        self.head = self.head.min(id);
        self.low = self.low.min(id);
        self.floor = self.floor.min(id);
        for scan in self.scans.values_mut() {
            scan.low = id.min(scan.low);
        }
    }

    /// Something may have become ready anywhere: the next scan is a full one.
    pub(crate) fn rewind(&mut self) {
        self.next_full = Micros::MIN;
    }

    /// Where leases may be that this process should look after: not beyond a backlog from which no message was leased yet.
    pub(crate) fn leased(&self) -> std::ops::Range<i64> {
        self.low..self.reach
    }

    /// Where the floor is believed to be.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn floor(&self) -> i64 {
        self.floor
    }

    /// Begins a look at the bottom of the lane.
    pub(crate) fn look(&mut self) -> Look {
        let number = self.enter(None);
        Look {
            from: self.floor,
            started: self.candidate.map(|candidate| candidate.started),
            wanted: self.head > self.floor,
            ended: self.candidate.is_some_and(|candidate| candidate.ended),
            number,
        }
    }

    /// Ends a look: with what it saw, or with nothing.
    pub(crate) fn observe(&mut self, look: &Look, seen: Option<FloorSeen>) {
        let low = self.leave(look.number);
        let Some(seen) = seen else { return };
        self.low = seen.floor.unwrap_or(self.head).min(self.head).min(low);
        if let Some(candidate) = &mut self.candidate
            // Not a candidate that another look has made meanwhile: what this one saw says nothing about it.
            && Some(candidate.started) == look.started
        {
            if look.ended || seen.running >= candidate.started {
                // What those transactions have committed is visible by now, and may lie below.
                let floor = seen.floor.map_or(candidate.floor, |live| live.min(candidate.floor)).min(low);
                self.floor = self.floor.max(floor);
                self.candidate = None;
            } else {
                candidate.ended = seen.writers.is_some_and(|oldest| oldest >= candidate.started);
            }
        }
        if self.candidate.is_none()
            && let Some(started) = seen.started
        {
            let floor = self.low.max(self.floor);
            if floor > self.floor {
                self.candidate = Some(Candidate { floor, started, ended: false });
            }
        }
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: FloorSeen = FloorSeen { floor: Some(50), running: 10, writers: Some(5), started: Some(20) };

    fn leased(last: i64, stopped: bool, deadline: Micros) -> Option<Scanned> {
        Some(Scanned { first: last, last, stopped, deadline })
    }

    fn cursor_at(head: i64) -> Cursor {
        let mut cursor = Cursor::new(true);
        let scan = cursor.begin(0);
        cursor.end(&scan, leased(head - 1, false, 100_000));
        cursor
    }

    /// A scan that finds nothing.
    fn scan(cursor: &mut Cursor, now: Micros) -> (i64, bool) {
        let scan = cursor.begin(now);
        cursor.end(&scan, None);
        (scan.from, scan.full)
    }

    fn observe(cursor: &mut Cursor, seen: FloorSeen) {
        let look = cursor.look();
        cursor.observe(&look, Some(seen));
    }

    #[test]
    fn claims_go_on_from_the_head_and_a_full_scan_comes_every_second() {
        let mut cursor = Cursor::new(true);
        let first = cursor.begin(0);
        assert!(first.full);
        cursor.end(&first, leased(9, false, 5_000_000));
        assert_eq!(scan(&mut cursor, 10), (10, false));
        assert!(scan(&mut cursor, 1_000_000).1);
        assert!(!scan(&mut cursor, 1_000_001).1);
    }

    #[test]
    fn a_lease_that_runs_out_brings_a_full_scan_forward_once() {
        let mut cursor = cursor_at(10);
        assert_eq!(cursor.wakes_at(), 100_000);
        assert!(!scan(&mut cursor, 99_999).1);
        assert!(scan(&mut cursor, 100_000).1);
        assert!(!scan(&mut cursor, 100_001).1);
    }

    #[test]
    fn a_scan_that_begins_during_a_full_one_is_full_too() {
        let mut cursor = cursor_at(1000);
        let due = cursor.begin(2_000_000);
        let joined = cursor.begin(2_000_001);
        assert_eq!((joined.from, joined.full), (0, true));
        cursor.end(&due, leased(7, true, 9_000_000));
        cursor.end(&joined, leased(8, true, 9_000_000));
        assert_eq!(scan(&mut cursor, 2_000_002), (8, false));
    }

    #[test]
    fn leases_that_have_run_out_are_looked_for_from_the_lowest_live_position_on() {
        let mut cursor = cursor_at(100);
        observe(&mut cursor, SEEN);
        assert_eq!((scan(&mut cursor, 100_000), cursor.leased().start), ((50, true), 50));
        cursor.lower(40);
        cursor.expect(200_000);
        assert_eq!(scan(&mut cursor, 200_000), (40, true));
        assert_eq!(scan(&mut cursor, 2_000_000), (0, true), "late commits are looked for from the floor on");
    }

    #[test]
    fn full_scans_that_are_costly_rest_in_proportion() {
        let mut cursor = cursor_at(100);
        cursor.rest(0, COSTLY - 1);
        assert_eq!(cursor.wakes_at(), 100_000);
        cursor.rest(0, 200_000);
        assert_eq!(cursor.wakes_at(), 600_000);
        assert!(!scan(&mut cursor, 599_999).1 && scan(&mut cursor, 600_000).1);
        assert_eq!(cursor.wakes_at(), 2_000_000);
        cursor.rewind();
        assert!(scan(&mut cursor, 600_001).1);
        cursor.rest(0, 9_000_000);
        cursor.rewind();
        assert_eq!(cursor.wakes_at(), LONGEST_REST_FOR_LEASES);
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
    fn a_message_made_ready_during_two_scans_is_not_passed_over_by_the_one_that_ends_last() {
        let mut cursor = cursor_at(10);
        let (first, second) = (cursor.begin(1), cursor.begin(2));
        cursor.end(&first, None);
        cursor.lower(4);
        cursor.end(&second, leased(30, false, 9_000_000));
        assert_eq!(cursor.begin(3).from, 4);
    }

    #[test]
    fn a_floor_is_wanted_only_below_the_head() {
        assert!(cursor_at(100).look().wanted);
        assert!(!cursor_at(0).look().wanted);
    }

    #[test]
    fn a_floor_is_believed_only_when_what_was_running_has_ended() {
        let mut cursor = cursor_at(100);
        observe(&mut cursor, SEEN);
        assert_eq!(cursor.floor(), 0);
        observe(&mut cursor, FloorSeen { running: 19, ..SEEN });
        assert_eq!(cursor.floor(), 0);
        observe(&mut cursor, FloorSeen { running: 20, ..SEEN });
        assert_eq!(cursor.floor(), 50);
    }

    #[test]
    fn a_floor_is_believed_one_look_after_the_last_writer_has_ended() {
        let mut cursor = cursor_at(100);
        observe(&mut cursor, SEEN);
        observe(&mut cursor, FloorSeen { writers: Some(19), ..SEEN });
        assert_eq!(cursor.floor(), 0);
        // The locks were read after the positions: what the last writer committed may be missing from them.
        observe(&mut cursor, FloorSeen { writers: Some(20), ..SEEN });
        assert_eq!(cursor.floor(), 0);
        observe(&mut cursor, FloorSeen { floor: Some(31), ..SEEN });
        assert_eq!(cursor.floor(), 31);
    }

    #[test]
    fn a_look_that_began_before_the_last_writer_ended_raises_no_floor() {
        let mut cursor = cursor_at(100);
        observe(&mut cursor, SEEN);
        let early = cursor.look();
        observe(&mut cursor, FloorSeen { writers: Some(20), ..SEEN });
        cursor.observe(&early, Some(SEEN));
        assert_eq!(cursor.floor(), 0);
    }

    #[test]
    fn a_late_commit_below_a_candidate_holds_the_floor_down() {
        let mut cursor = cursor_at(100);
        observe(&mut cursor, FloorSeen { floor: None, ..SEEN });
        observe(&mut cursor, FloorSeen { floor: Some(31), running: 25, writers: None, started: Some(26) });
        assert_eq!(cursor.floor(), 31);
    }

    #[test]
    fn an_empty_lane_has_its_floor_at_the_head_and_never_above() {
        let mut cursor = cursor_at(100);
        for running in [20, 30] {
            observe(&mut cursor, FloorSeen { floor: None, running, ..SEEN });
        }
        assert_eq!(cursor.floor(), 100);
        cursor.lower(60);
        assert_eq!(cursor.floor(), 60);
    }
}

//! The model: a line of items, and those of them that are leased. What each step needs, and what it changes.
//!
//! Invariants: a step either cannot happen in a state, and says why, or leads to one state or more; an item is in line,
//! or leased, or gone. The first comment in `main.rs` says which steps the calls consist of.

use crate::history::{Item, Time};

/// How many can write to a store at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Writers {
    /// Whatever is done is done at one instant.
    One,
    /// A place in line is drawn before the item can be seen there, and leases end one by one.
    Many,
}

/// A step of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'h> {
    Append(&'h [String]),
    Take(&'h Item),
    FindNothing,
    Complete(&'h str),
    Requeue(&'h str),
    /// A complete or a retry finds that this id is not leased.
    Miss(&'h str),
    /// Every lease ends: with one writer.
    Expire,
    /// Every lease is over, and ends before [`Step::Settle`]: with many writers.
    Lapse {
        set: Time,
    },
    Settle,
}

/// When a step happens.
pub(crate) struct Moment {
    /// The number of its call, and when that began.
    pub(crate) call: usize,
    pub(crate) began: Time,
    /// Something that ended at this time is still to come: nothing that began later can have happened yet.
    pub(crate) horizon: Time,
}

/// An item in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ready<'h> {
    payload: &'h str,
    attempts: u32,
    place: Place,
}

/// What is known about a place in line where many write: when it was drawn, and in whose turn. With one writer the
/// order of the line says it all, and this is the same for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Place {
    not_before: Time,
    not_after: Time,
    /// Items of one call draw their places in order.
    call: Option<usize>,
}

/// An item that is leased.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leased<'h> {
    payload: &'h str,
    attempts: u32,
    id: &'h str,
    /// Its time is over; it goes to the tail as soon as somebody has met it.
    lapsed: bool,
}

/// A time from which leases are over: when setting the clock began, and when that was certainly done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lapse {
    began: Time,
    set: Time,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<'h> {
    writers: Writers,
    /// In the order in which they appeared.
    ready: Vec<Ready<'h>>,
    /// In the order in which they were taken, which with one writer is the order of their old places.
    leased: Vec<Leased<'h>>,
    lapse: Option<Lapse>,
}

impl<'h> State<'h> {
    /// An empty queue.
    pub(crate) fn new(writers: Writers) -> Self {
        State { writers, ready: Vec::new(), leased: Vec::new(), lapse: None }
    }

    /// The states to which a step may lead, or why it cannot happen.
    pub(crate) fn after(&self, step: Step<'h>, moment: &Moment) -> Result<Vec<Self>, String> {
        let mut next = self.clone();
        match step {
            Step::Append(items) => {
                for payload in items {
                    next.line_up(payload, 0, next.place(Some(moment.call), moment.began, moment));
                }
            }
            Step::Take(item) => return next.taken(item, moment),
            Step::FindNothing => {
                if let Some(ready) = self.ready.first() {
                    return Err(format!("{} is ready", ready.payload));
                }
            }
            Step::Complete(id) => {
                next.end(id)?;
            }
            Step::Requeue(id) => {
                let lease = next.end(id)?;
                next.line_up(lease.payload, lease.attempts, next.place(Some(moment.call), moment.began, moment));
            }
            Step::Miss(id) => {
                if let Some(n) = next.leased.iter().position(|lease| lease.id == id) {
                    if !next.leased[n].lapsed {
                        return Err(format!("{} is leased under this id", next.leased[n].payload));
                    }
                    next.surface(n, moment);
                }
            }
            Step::Expire => {
                for lease in std::mem::take(&mut next.leased) {
                    next.line_up(lease.payload, lease.attempts, Place::default());
                }
            }
            Step::Lapse { set } => {
                next.leased.iter_mut().for_each(|lease| lease.lapsed = true);
                next.lapse = Some(Lapse { began: moment.began, set });
            }
            Step::Settle => {
                while let Some(n) = next.leased.iter().position(|lease| lease.lapsed) {
                    next.surface(n, moment);
                }
                next.lapse = None;
            }
        }
        Ok(vec![next])
    }

    /// The first in line is leased.
    fn taken(mut self, item: &'h Item, moment: &Moment) -> Result<Vec<Self>, String> {
        let Item { payload, id, attempts } = item;
        if let Some(n) = self.leased.iter().position(|lease| lease.payload == payload && lease.lapsed) {
            // It went to the tail some time ago; nothing depended on that until now.
            self.surface(n, moment);
        }
        let Some(n) = self.ready.iter().position(|ready| ready.payload == payload) else {
            return Err(format!("{payload} is not ready"));
        };
        if let Some(first) = (0..self.ready.len()).find(|first| self.comes_before(*first, n)) {
            return Err(format!("{} is before {payload}", self.ready[first].payload));
        }
        let taken = self.ready.remove(n);
        if taken.attempts + 1 != *attempts {
            return Err(format!("this is attempt {} of {payload}, not {attempts}", taken.attempts + 1));
        }
        for behind in &mut self.ready {
            behind.place.not_before = behind.place.not_before.max(taken.place.not_before);
        }
        self.leased.push(Leased { payload, attempts: *attempts, id, lapsed: false });
        let mut nexts = vec![self];
        if let Some(lapse) = nexts[0].lapse
            && moment.began <= lapse.set
        {
            // Whoever granted this lease may have read the clock before it was set.
            let mut lapsed = nexts[0].clone();
            lapsed.leased.iter_mut().filter(|lease| lease.id == id).for_each(|lease| lease.lapsed = true);
            nexts.push(lapsed);
        }
        Ok(nexts)
    }

    /// Whether one item in line certainly stands before another.
    fn comes_before(&self, one: usize, other: usize) -> bool {
        let (first, second) = (&self.ready[one].place, &self.ready[other].place);
        match self.writers {
            Writers::One => one < other,
            Writers::Many => {
                let same_call = first.call.is_some() && first.call == second.call;
                first.not_after < second.not_before || (same_call && one < other)
            }
        }
    }

    /// A place that is drawn between that time and now.
    fn place(&self, call: Option<usize>, not_before: Time, moment: &Moment) -> Place {
        match self.writers {
            Writers::One => Place::default(),
            Writers::Many => Place { not_before, not_after: moment.horizon, call },
        }
    }

    fn line_up(&mut self, payload: &'h str, attempts: u32, place: Place) {
        self.ready.push(Ready { payload, attempts, place });
    }

    /// An item whose lease is over appears in line.
    fn surface(&mut self, n: usize, moment: &Moment) {
        let lease = self.leased.remove(n);
        let since = self.lapse.map_or(moment.began, |lapse| lapse.began);
        self.line_up(lease.payload, lease.attempts, self.place(None, since, moment));
    }

    /// A lease ends by the will of a client.
    fn end(&mut self, id: &str) -> Result<Leased<'h>, String> {
        let n = self.leased.iter().position(|lease| lease.id == id);
        n.map(|n| self.leased.remove(n)).ok_or_else(|| "the id is not leased".to_owned())
    }

    /// The state in words.
    pub(crate) fn describe(&self) -> String {
        let ready: Vec<&str> = self.ready.iter().map(|ready| ready.payload).collect();
        let lease = |lease: &Leased<'_>| format!("{}{}", lease.payload, if lease.lapsed { " (over)" } else { "" });
        let leased: Vec<String> = self.leased.iter().map(lease).collect();
        format!("ready: [{}], leased: [{}]", ready.join(", "), leased.join(", "))
    }
}

impl Step<'_> {
    /// Whether it is only an observation, which changes nothing wherever it is made.
    pub(crate) fn only_looks(self) -> bool {
        matches!(self, Step::FindNothing | Step::Miss(_))
    }
}

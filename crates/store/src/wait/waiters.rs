//! The callers that wait for one topic, and the task that looks for them.
//!
//! Invariants: every call is looked for at least once before it is answered with nothing; a wake-up that arrives during a look
//! causes another look; callers are looked for together and served in the order in which they came; a caller that has gone is
//! never looked for again, and what was leased for it releases itself (`lease.rs`); the task runs only while callers wait; a
//! look that panics fails its callers and no others.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::error::{Error, Kind, Result, panicked};

/// How much longer a call waits then for the look to end: a machine that stalled for a while first goes on with the look.
const LAST_CHANCE: Duration = Duration::from_millis(100);

/// What a caller is answered: a lease, or one of these.
pub trait Reply: Send + 'static {
    /// The time is up, and nothing was there.
    fn nothing() -> Self;

    /// The time is up, and the look has not ended.
    fn overdue() -> Self;

    /// The look failed.
    fn failure(error: Error) -> Self;
}

impl<L: Send + 'static> Reply for Result<Option<L>> {
    fn nothing() -> Self {
        Ok(None)
    }

    fn overdue() -> Self {
        let message =
            "the database did not answer within the time of the wait; nothing was leased for this call, try again";
        Err(Error::new(Kind::Unavailable, message))
    }

    fn failure(error: Error) -> Self {
        Err(error)
    }
}

/// What callers wait for: how to look for it, and when there is reason to look.
pub trait Topic: Send + Sync + Sized + 'static {
    /// What a look needs besides the topic itself.
    type Home: Send + Sync + 'static;
    /// What a caller asks for.
    type Want: Clone + Send + Sync + 'static;
    /// What a caller gets.
    type Answer: Reply;

    /// Looks once, together for all callers of the round, and answers those for whom there is something. Returns whether
    /// the others should be looked for again at once.
    fn look(&self, home: &Arc<Self::Home>, round: &mut Round<'_, Self>) -> impl Future<Output = bool> + Send;

    /// Sleeps until there is reason to look for every caller, unless a wake-up comes first. An error is every caller's answer.
    fn rest(&self, home: &Arc<Self::Home>) -> impl Future<Output = Result<()>> + Send;

    /// How much later than its time a caller stops waiting for a look that does not end. A database that is only slow must not
    /// be given up: what it leases late would be released, and leased and released again.
    const OVERDUE: Duration = Duration::from_secs(2);

    /// Returns when callers may be looked for; until then their time does not run out.
    fn opened(&self, _home: &Arc<Self::Home>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Whether what one of them can take the other can take too: then a wake-up for one item concerns only the first of them.
    fn alike(_one: &Self::Want, _other: &Self::Want) -> bool {
        true
    }
}

/// The waiting callers of a topic.
pub struct Waiters<T: Topic> {
    /// The topic.
    pub topic: T,
    state: Mutex<State<T>>,
    /// Something for the task: a caller came or went, or was woken.
    changed: Notify,
    /// A look has ended.
    looked: Notify,
}

struct State<T: Topic> {
    /// In the order in which they came.
    waiting: Vec<Waiter<T>>,
    next_number: u64,
    /// Whether the task runs, and whether it looks.
    served: bool,
    looking: bool,
    looks: u64,
}

impl<T: Topic> State<T> {
    /// Removes callers. What they were marked for may still be there: other callers that can take it are looked for instead.
    fn remove(&mut self, removes: impl FnMut(&mut Waiter<T>) -> bool) -> Vec<Waiter<T>> {
        let removed: Vec<Waiter<T>> = self.waiting.extract_if(.., removes).collect();
        for gone in removed.iter().filter(|gone| gone.marked) {
            for waiter in self.waiting.iter_mut().filter(|waiter| T::alike(&gone.want, &waiter.want)) {
                waiter.marked = true;
            }
        }
        removed
    }
}

struct Waiter<T: Topic> {
    number: u64,
    want: T::Want,
    until: Instant,
    /// It is to be looked for.
    marked: bool,
    /// It is being looked for.
    looking: bool,
    /// It has been looked for.
    looked: bool,
    /// An enqueue is leasing a message for it.
    promised: bool,
    reply: oneshot::Sender<T::Answer>,
}

/// A call on its way to its answer. Its caller has gone when this is dropped before.
struct Call<'a, T: Topic> {
    waiters: &'a Waiters<T>,
    answer: oneshot::Receiver<T::Answer>,
    answered: bool,
}

impl<T: Topic> Call<'_, T> {
    async fn answered(mut self, until: Instant) -> T::Answer {
        // A caller that does not wait gets the time that the look needs.
        let mut limit = (until > Instant::now()).then(|| until + T::OVERDUE);
        let mut held_up_by = None;
        loop {
            let overdue = async {
                match limit {
                    Some(limit) => tokio::time::sleep_until(limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = &mut self.answer => {
                    self.answered = true;
                    return answer.unwrap_or_else(|_| T::Answer::failure(Error::new(Kind::Closed, "the store was closed")));
                }
                () = overdue => {}
            }
            let look = self.waiters.look_in_progress();
            if look.is_some() && look == held_up_by {
                return T::Answer::overdue();
            }
            held_up_by = look;
            limit = Some(Instant::now() + LAST_CHANCE);
        }
    }
}

impl<T: Topic> Drop for Call<'_, T> {
    fn drop(&mut self) {
        if !self.answered {
            // Once it is closed nothing is leased for this caller; what was leased before is dropped with the answer.
            self.answer.close();
            self.waiters.changed.notify_one();
        }
    }
}

/// A caller that is looked for.
pub struct Asked<W> {
    number: u64,
    answered: bool,
    /// What it asks for.
    pub want: W,
    /// Whether this is the first look for it.
    pub first: bool,
}

/// One look, and the answers that it gives.
pub struct Round<'a, T: Topic> {
    waiters: &'a Waiters<T>,
    /// The callers that are looked for, in the order in which they came.
    pub asked: Vec<Asked<T::Want>>,
    /// Answers that are not sent yet.
    given: Vec<(u64, T::Answer)>,
}

/// What the task does next.
enum Step<W> {
    Look(Vec<Asked<W>>),
    Park(Instant),
    End,
}

impl<T: Topic> Waiters<T> {
    /// No callers wait yet.
    pub fn new(topic: T) -> Arc<Self> {
        let state = State { waiting: Vec::new(), next_number: 0, served: false, looking: false, looks: 0 };
        Arc::new(Waiters { topic, state: Mutex::new(state), changed: Notify::new(), looked: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer, at the latest until then. None: a caller already waits that `refuse` names.
    pub async fn wait_unless(
        self: &Arc<Self>,
        home: &Arc<T::Home>,
        want: T::Want,
        until: Instant,
        refuse: impl Fn(&T::Want) -> bool,
    ) -> Option<T::Answer> {
        let (reply, answer) = oneshot::channel();
        let serve = {
            let mut state = self.state();
            if state.waiting.iter().any(|waiter| refuse(&waiter.want) && !waiter.reply.is_closed()) {
                return None;
            }
            let number = state.next_number;
            state.next_number += 1;
            let (marked, looking, looked, promised) = (true, false, false, false);
            state.waiting.push(Waiter { number, want, until, marked, looking, looked, promised, reply });
            !std::mem::replace(&mut state.served, true)
        };
        let call = Call { waiters: self, answer, answered: false };
        if serve {
            // A task of its own: it also serves the callers that come while this one waits, and outlives this one.
            tokio::spawn(serve_waiters(self.clone(), home.clone()));
        } else {
            self.changed.notify_one();
        }
        Some(call.answered(until).await)
    }

    /// Waits for an answer, at the latest until then.
    pub async fn wait(self: &Arc<Self>, home: &Arc<T::Home>, want: T::Want, until: Instant) -> T::Answer {
        let answer = self.wait_unless(home, want, until, |_| false).await;
        answer.unwrap_or_else(T::Answer::nothing)
    }

    /// How many callers wait for which this holds.
    pub fn count(&self, counts: impl Fn(&T::Want, bool) -> bool) -> usize {
        let state = self.state();
        state.waiting.iter().filter(|waiter| counts(&waiter.want, waiter.looked) && !waiter.reply.is_closed()).count()
    }

    /// Looks for every caller again.
    pub fn wake(&self) {
        self.wake_those(|_| true);
    }

    /// Looks again for every caller that this concerns.
    pub(crate) fn wake_those(&self, concerns: impl Fn(&T::Want) -> bool) {
        let mut state = self.state();
        for waiter in state.waiting.iter_mut().filter(|waiter| concerns(&waiter.want)) {
            waiter.marked = true;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// One item is there: looks for the first caller of each kind that can take it and is not about to be looked for anyway.
    pub(crate) fn wake_one(&self, concerns: impl Fn(&T::Want) -> bool) {
        let mut state = self.state();
        let mut woken: Vec<usize> = Vec::new();
        for n in 0..state.waiting.len() {
            let waiter = &state.waiting[n];
            let served = woken.iter().any(|known| T::alike(&state.waiting[*known].want, &waiter.want));
            if !waiter.marked && !served && concerns(&waiter.want) {
                state.waiting[n].marked = true;
                woken.push(n);
            }
        }
        drop(state);
        if !woken.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Ends the waits that this concerns as soon as each was looked for once.
    pub(crate) fn end_waits(&self, concerns: impl Fn(&T::Want) -> bool) {
        let now = Instant::now();
        for waiter in self.state().waiting.iter_mut().filter(|waiter| concerns(&waiter.want)) {
            waiter.until = waiter.until.min(now);
        }
        self.changed.notify_one();
    }

    /// Answers every caller, also those that are being looked for.
    pub fn answer_all(&self, answer: impl Fn() -> T::Answer) {
        let waiting = std::mem::take(&mut self.state().waiting);
        for waiter in waiting {
            drop(waiter.reply.send(answer()));
        }
        self.changed.notify_one();
    }

    /// The number of the look that goes on.
    fn look_in_progress(&self) -> Option<u64> {
        let state = self.state();
        state.looking.then_some(state.looks)
    }

    /// Waits until no look goes on that may lease something for a caller that has gone before.
    pub(crate) async fn look_ended(&self) {
        let Some(look) = self.look_in_progress() else { return };
        loop {
            let looked = self.looked.notified();
            if self.look_in_progress() != Some(look) {
                return;
            }
            looked.await;
        }
    }

    /// Promises an item to the first caller, if all callers are parked: a number for [`deliver`](Self::deliver) or
    /// [`take_back`](Self::take_back).
    pub(crate) fn promise(&self) -> Option<(u64, T::Want)> {
        let mut state = self.state();
        if state.looking || state.waiting.iter().any(|waiter| waiter.marked) {
            return None;
        }
        let first = state.waiting.iter_mut().find(|waiter| !waiter.promised && !waiter.reply.is_closed())?;
        first.promised = true;
        Some((first.number, first.want.clone()))
    }

    /// The promised item is not there, or was not leased.
    pub(crate) fn take_back(&self, number: u64) {
        if let Some(waiter) = self.state().waiting.iter_mut().find(|waiter| waiter.number == number) {
            waiter.promised = false;
        }
    }

    /// Gives an item to the caller to which it was promised, or to the next that asks for the same. Dropped if there is none.
    pub(crate) fn deliver(&self, number: u64, same: impl Fn(&T::Want) -> bool, mut answer: T::Answer) {
        loop {
            let taker = {
                let mut state = self.state();
                let promised = state.waiting.iter().find(|waiter| waiter.number == number);
                let taker = promised.or_else(|| state.waiting.iter().find(|waiter| same(&waiter.want)));
                let number = taker.map(|waiter| waiter.number);
                state.remove(|waiter| Some(waiter.number) == number).pop()
            };
            self.changed.notify_one();
            let Some(taker) = taker else { return };
            match taker.reply.send(answer) {
                Ok(()) => return,
                Err(back) => answer = back,
            }
        }
    }

    /// What to do next. Forgets callers that have gone, and answers those whose time is up.
    fn step(&self) -> Step<T::Want> {
        let now = Instant::now();
        let mut state = self.state();
        let late = state.remove(|waiter| waiter.reply.is_closed() || waiter.looked && waiter.until <= now);
        let mut asked = Vec::new();
        for waiter in state.waiting.iter_mut().filter(|waiter| waiter.marked) {
            (waiter.marked, waiter.looking) = (false, true);
            asked.push(Asked {
                number: waiter.number,
                answered: false,
                want: waiter.want.clone(),
                first: !waiter.looked,
            });
        }
        state.looking = !asked.is_empty();
        let step = match state.waiting.iter().map(|waiter| waiter.until).min() {
            _ if state.looking => Step::Look(asked),
            Some(until) => Step::Park(until),
            None => Step::End,
        };
        state.served = !matches!(step, Step::End);
        drop(state);
        for waiter in late {
            drop(waiter.reply.send(T::Answer::nothing()));
        }
        step
    }

    fn end_look(&self, again: bool) {
        let mut state = self.state();
        (state.looking, state.looks) = (false, state.looks + 1);
        for waiter in state.waiting.iter_mut().filter(|waiter| waiter.looking) {
            (waiter.looking, waiter.looked) = (false, true);
            waiter.marked |= again;
        }
        drop(state);
        self.looked.notify_waiters();
    }
}

impl<T: Topic> Round<'_, T> {
    /// The callers that have no answer yet, by their numbers in `asked`.
    pub fn open(&self) -> Vec<usize> {
        (0..self.asked.len()).filter(|n| !self.asked[*n].answered).collect()
    }

    /// Answers a caller; it is told when all answers are [sent](Round::send).
    pub fn answer(&mut self, n: usize, answer: T::Answer) {
        let asked = &mut self.asked[n];
        asked.answered = true;
        self.given.push((asked.number, answer));
    }

    /// Answers every caller that has no answer yet with an error.
    pub fn fail(&mut self, error: &Error) {
        for n in self.open() {
            self.answer(n, T::Answer::failure(error.duplicate()));
        }
    }

    /// Sends the answers given so far. The end of the look does the same.
    pub fn send(&mut self) {
        let mut given = std::mem::take(&mut self.given);
        given.sort_unstable_by_key(|(number, _)| *number);
        let is_answered =
            |waiter: &mut Waiter<T>| given.binary_search_by_key(&waiter.number, |(number, _)| *number).is_ok();
        let mut answered = self.waiters.state().remove(is_answered).into_iter().peekable();
        for (number, answer) in given {
            // The answer to a caller that is not there any more is dropped, and releases what it holds.
            if let Some(waiter) = answered.next_if(|waiter| waiter.number == number) {
                drop(waiter.reply.send(answer));
            }
        }
    }
}

/// Lets another task serve when this one ends without having been told to, as tasks do with their runtime.
struct Serving<'a, T: Topic>(Option<&'a Waiters<T>>);

impl<T: Topic> Drop for Serving<'_, T> {
    fn drop(&mut self) {
        if let Some(waiters) = self.0 {
            waiters.end_look(true);
            waiters.state().served = false;
        }
    }
}

async fn serve_waiters<T: Topic>(waiters: Arc<Waiters<T>>, home: Arc<T::Home>) {
    let mut serving = Serving(Some(&waiters));
    loop {
        waiters.topic.opened(&home).await;
        match waiters.step() {
            Step::Look(asked) => {
                let mut round = Round { waiters: &waiters, asked, given: Vec::new() };
                let looked = AssertUnwindSafe(waiters.topic.look(&home, &mut round)).catch_unwind().await;
                let again = looked.unwrap_or_else(|_| {
                    // What it leased was perhaps committed.
                    round.fail(&panicked().ambiguous());
                    false
                });
                round.send();
                waiters.end_look(again);
            }
            Step::Park(until) => tokio::select! {
                () = waiters.changed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
                rested = waiters.topic.rest(&home) => match rested {
                    Ok(()) => waiters.wake(),
                    Err(error) => waiters.answer_all(|| T::Answer::failure(error.duplicate())),
                },
            },
            Step::End => {
                serving.0 = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod simulation;

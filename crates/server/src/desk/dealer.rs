//! Leases that wait for messages of a queue, and one look for all of them.
//!
//! Invariants: a look asks only partitions that may have messages; no lease waits while any partition has messages; messages are
//! dealt one at a time in the order in which the leases came.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::select_all;
use futures_util::stream::FuturesUnordered;
use tenure_store::{Error, Kind, Lease, Leased, Message, Reply, Round, Topic, Watch, deal};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Desk, closing, tally};
use crate::fault::{Answer, Fault};

/// Messages that one look takes from one partition, unless a single lease wants more.
const PASS: usize = 4000;
/// A store that takes longer over a look hangs, and counts as failing.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon waiting leases look again at stores that failed.
const FAILING: Duration = Duration::from_millis(250);

/// The messages of a queue, in all its partitions.
#[derive(Default)]
pub(crate) struct Leases {
    /// One for each partition that could be watched so far.
    watches: Mutex<Vec<Option<Watch>>>,
}

/// A lease that a client asks for.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) client: String,
    pub(crate) batch: usize,
}

/// What a lease gets: messages of one partition.
pub(crate) struct Hand {
    desk: Arc<Desk>,
    pub(crate) part: u32,
    pub(crate) messages: Vec<Message>,
}

impl Leased for Hand {
    /// Releases them as if they had never been leased.
    async fn release(self) {
        let Hand { desk, part, messages } = self;
        let part = &desk.parts[part as usize];
        let fences: Vec<_> = messages.iter().map(Message::fence).collect();
        desk.ended(part, fences.iter().map(|fence| fence.id));
        let put_back = async {
            let (store, _) = part.open(&desk.name).await?;
            part.member.watched(store.put_back(&fences).await)
        };
        match put_back.await {
            Ok(_) => desk.returned(part, fences.len()),
            Err(error) => {
                let queue = &desk.name;
                tracing::warn!(%error, queue, "could not release messages of a client that has gone; they become available when their leases expire");
            }
        }
    }
}

/// The answer to a client.
pub(crate) struct Dealt(pub(crate) Answer<Lease<Hand>>);

impl Reply for Dealt {
    fn nothing() -> Self {
        Dealt(Err(Fault::retry("request timeout; no items are in the queue, try again")))
    }

    fn overdue() -> Self {
        Dealt(Err(Fault::retry("request timeout; the store did not answer in time, try again")))
    }

    fn failure(error: Error) -> Self {
        Dealt(Err(error.into()))
    }
}

impl Topic for Leases {
    type Home = Desk;
    type Want = Wanted;
    type Answer = Dealt;
    /// A request has a time-out, after which its client may be gone.
    const OVERDUE: Duration = Duration::from_millis(250);

    async fn look(&self, desk: &Arc<Desk>, round: &mut Round<'_, Self>) -> bool {
        if desk.is_closed() {
            for n in round.open() {
                round.answer(n, Dealt(Err(closing())));
            }
            return false;
        }
        // What becomes ready from here on is noticed, whatever the look misses.
        self.watch(desk).await;
        let more = desk.serve_all(round).await;
        if desk.take_failed() {
            // What failed just now fails again, and asking all the time would not help.
            round.send();
            tokio::time::sleep(FAILING).await;
            return true;
        }
        more
    }

    async fn rest(&self, desk: &Arc<Desk>) -> Result<(), Error> {
        let mut watches = self.watches.lock().await;
        let stirred = tokio::select! {
            n = desk.stirred(&mut watches) => Some(n),
            () = desk.retried() => None,
        };
        if let Some(n) = stirred {
            desk.state().tallies[n].stir();
        }
        Ok(())
    }

    #[cfg(feature = "test-hooks")]
    async fn opened(&self, desk: &Arc<Desk>) {
        desk.pass_gate().await.ok();
    }
}

impl Leases {
    /// Begins to watch the partitions that can be watched by now.
    async fn watch(&self, desk: &Desk) {
        let mut watches = self.watches.lock().await;
        watches.resize_with(desk.parts.len(), || None);
        for (n, part) in desk.parts.iter().enumerate().filter(|(_, part)| part.member.is_up()) {
            if watches[n].is_none()
                && let Ok((store, queue)) = part.open(&desk.name).await
            {
                watches[n] = Some(store.watch(&[queue.lanes[part.place]]));
                desk.state().tallies[n].stir();
            }
        }
    }
}

impl Desk {
    /// Sleeps until stores that fail are worth another look; for ever when all work.
    async fn retried(&self) {
        match self.parts.iter().all(|part| part.member.is_up()) {
            true => std::future::pending().await,
            false => tokio::time::sleep(FAILING).await,
        }
    }

    /// Recovers leases that were given out here as they run out, whether another lease waits or not, until it closes.
    pub(crate) async fn recover_on_time(self: Arc<Self>) {
        while !self.is_closed() {
            self.recover().await;
            let next = self.state().tallies.iter().filter_map(|tally| tally.leases.next()).min();
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                () = tokio::time::sleep_until(next.unwrap_or(far)) => {}
                () = self.leased.notified() => {}
            }
        }
    }

    /// Puts messages whose lease has run out to the tail.
    async fn recover(&self) {
        for (n, part) in self.parts.iter().enumerate() {
            if !self.state().tallies[n].leases.lapse(Instant::now()) {
                continue;
            }
            let began = Instant::now();
            let recovered = async {
                let (store, queue) = part.open(&self.name).await?;
                // Where messages keep their place, the look finds them there.
                if !queue.settings.tail_on_expiry {
                    return Ok(1);
                }
                part.member.within(PATIENCE, store.recover(queue.lanes[part.place])).await
            };
            let recovered = recovered.await;
            let tally = &mut self.state().tallies[n];
            tally.leases.rest(began.elapsed());
            match recovered {
                Ok(0) => {}
                Ok(count) => {
                    tally.unleased += count;
                    tally.stir();
                    self.leases.wake();
                }
                // The walk over all queues meets them again.
                Err(error) => tracing::warn!(%error, queue = self.name, "expired leases were not recovered"),
            }
        }
    }

    /// Serves the leases of a round once; whether another look may find more for the others.
    async fn serve_all(self: &Arc<Self>, round: &mut Round<'_, Leases>) -> bool {
        let assigned = {
            let state = self.state();
            let batches: Vec<usize> = round.asked.iter().map(|asked| asked.want.batch).collect();
            let up: Vec<bool> = self.parts.iter().map(|part| part.member.is_up()).collect();
            tally::assign(&state.tallies, &up, &batches)
        };
        let mut groups: Vec<Vec<usize>> = self.parts.iter().map(|_| Vec::new()).collect();
        for (lease, part) in assigned.into_iter().enumerate() {
            if let Some(part) = part {
                groups[part].push(lease);
            }
        }
        let wanted: Vec<usize> = round.asked.iter().map(|asked| asked.want.batch).collect();
        let groups = groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty());
        let mut served: FuturesUnordered<_> = groups.map(|(n, group)| self.serve(n, group, &wanted)).collect();
        while let Some(answers) = served.next().await {
            answers.into_iter().for_each(|(lease, answer)| round.answer(lease, Dealt(answer)));
            round.send();
        }
        // No lease waits while any partition has messages.
        let order = tally::order(&self.state().tallies);
        for n in order.into_iter().filter(|n| self.parts[*n].member.is_up()) {
            let left = round.open();
            if left.is_empty() {
                break;
            }
            let answers = self.serve(n, left, &wanted).await;
            answers.into_iter().for_each(|(lease, answer)| round.answer(lease, Dealt(answer)));
        }
        let left = round.open().len();
        left > 0 && left < round.asked.len() && self.state().tallies.iter().any(|tally| tally.maybe)
    }

    /// Takes from one partition for some leases, which want so many each, and deals. The answers to those who get something.
    async fn serve(
        self: &Arc<Self>,
        n: usize,
        leases: Vec<usize>,
        wanted: &[usize],
    ) -> Vec<(usize, Answer<Lease<Hand>>)> {
        let part = &self.parts[n];
        let stamp = self.state().tallies[n].stamp;
        let rooms: Vec<usize> = leases.iter().map(|lease| wanted[*lease]).collect();
        let largest = rooms.iter().copied().max().unwrap_or(0);
        let most = rooms.iter().sum::<usize>().min(PASS.max(largest));
        let taken = async {
            let (store, queue) = part.open(&self.name).await?;
            part.member.within(PATIENCE, store.take(queue.lanes[part.place], most)).await
        };
        let messages = match taken.await {
            Ok(messages) => messages,
            Err(error) => {
                tracing::warn!(%error, queue = self.name, partition = part.number, "nothing could be leased here");
                // This server will never lease from there again: the clients have to ask another one.
                if error.kind() == Kind::SchemaNewer {
                    return leases.into_iter().map(|lease| (lease, Err(Fault::too_old()))).collect();
                }
                let mut state = self.state();
                state.tallies[n].maybe &= error.kind() != Kind::Unavailable;
                state.failed = true;
                return Vec::new();
            }
        };
        if self.state().tallies[n].taken(most, &messages, stamp) {
            self.leased.notify_one();
        }
        let hands = leases.into_iter().zip(deal(messages, &rooms)).filter(|(_, hand)| !hand.is_empty());
        let hand = |messages| Hand { desk: self.clone(), part: part.number, messages };
        hands.map(|(lease, messages)| (lease, Ok(Lease::new(hand(messages))))).collect()
    }

    /// The first partition in which something may have become ready. One whose store fails is not asked.
    async fn stirred(&self, watches: &mut [Option<Watch>]) -> usize {
        let mut watched: Vec<usize> = Vec::new();
        let mut waits = Vec::new();
        for (n, watch) in watches.iter_mut().enumerate().filter(|(n, _)| self.parts[*n].member.is_up()) {
            if let Some(watch) = watch {
                watched.push(n);
                waits.push(Box::pin(watch.wait()));
            }
        }
        if waits.is_empty() {
            return std::future::pending().await;
        }
        watched[select_all(waits).await.1]
    }
}

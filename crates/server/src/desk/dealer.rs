//! The one who deals to the leases that wait at a desk.
//!
//! Invariants: he looks only where something may be; nobody waits while there is something anywhere; what he takes goes to
//! those who wait, one message at a time in the order in which they came.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tenure_store::{Kind, Watch, deal};
use tokio::time::Instant;

use super::{Desk, Waiting, closing, tally};
use crate::fault::Fault;

/// Messages that one pass takes from one partition, unless a single lease wants more.
const PASS: usize = 4000;
/// A store that takes longer over a look hangs, and counts as failing.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon waiting leases look again at stores that failed.
const FAILING: Duration = Duration::from_millis(250);

impl Desk {
    /// Deals to waiting leases until the desk closes.
    pub(crate) async fn deal(self: Arc<Self>) {
        let mut watches: Vec<Option<Watch>> = self.parts.iter().map(|_| None).collect();
        loop {
            if self.state().closed {
                return;
            }
            self.recover().await;
            self.turn_away();
            // What becomes ready from here on is noticed, whatever the pass misses.
            self.watch(&mut watches).await;
            while self.pass().await {}
            if std::mem::take(&mut self.state().failed) {
                // What failed just now fails again, and asking all the time would not help.
                tokio::time::sleep(FAILING).await;
                continue;
            }
            let stirred = tokio::select! {
                () = self.bell.notified() => None,
                n = self.stirred(&mut watches), if self.waiting() > 0 => Some(n),
                () = tokio::time::sleep_until(self.next()) => None,
            };
            if let Some(n) = stirred {
                self.state().tallies[n].stir();
            }
        }
    }

    /// Begins to watch the partitions that can be watched by now, once somebody waits.
    async fn watch(&self, watches: &mut [Option<Watch>]) {
        if self.waiting() == 0 {
            return;
        }
        for (n, part) in self.parts.iter().enumerate().filter(|(_, part)| part.member.is_up()) {
            if watches[n].is_none()
                && let Ok((store, queue)) = part.open(&self.name).await
            {
                watches[n] = Some(store.watch(&[queue.lanes[part.place]]));
                self.state().tallies[n].stir();
            }
        }
    }

    /// When the dealer has something to do, if nothing happens before.
    fn next(&self) -> Instant {
        let state = self.state();
        let patience = state.waiting.iter().map(|lease| lease.until).min().filter(|_| !state.paused);
        let lapse = state.tallies.iter().filter_map(|tally| tally.leases.next()).min();
        let failing = self.parts.iter().any(|part| !part.member.is_up()) && !state.waiting.is_empty();
        let retry = failing.then(|| Instant::now() + FAILING);
        let far = Instant::now() + Duration::from_secs(3600);
        patience.into_iter().chain(lapse).chain(retry).min().unwrap_or(far)
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
                // Where messages keep their place, the next look finds them there.
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
                }
                // Whoever looks after all queues meets them again.
                Err(error) => tracing::warn!(%error, queue = self.name, "expired leases were not recovered"),
            }
        }
    }

    /// Answers leases that may wait no longer, and forgets those whose client has gone.
    fn turn_away(&self) {
        let mut state = self.state();
        if state.paused {
            return;
        }
        let now = Instant::now();
        for lease in std::mem::take(&mut state.waiting) {
            if lease.reply.is_closed() {
                state.clients.remove(&lease.client);
            } else if lease.until <= now && lease.looked {
                state.clients.remove(&lease.client);
                drop(lease.reply.send(Err(Fault::retry("request timeout; no items are in the queue, try again"))));
            } else {
                state.waiting.push_back(lease);
            }
        }
    }

    /// Serves all waiting leases once; whether another pass may find more.
    async fn pass(self: &Arc<Self>) -> bool {
        let (leases, assigned) = {
            let mut state = self.state();
            if state.paused || state.closed || state.waiting.is_empty() {
                return false;
            }
            let leases = std::mem::take(&mut state.waiting);
            let batches: Vec<usize> = leases.iter().map(|lease| lease.batch).collect();
            let up: Vec<bool> = self.parts.iter().map(|part| part.member.is_up()).collect();
            (leases, tally::assign(&state.tallies, &up, &batches))
        };
        let count = leases.len();
        let mut groups: Vec<Vec<Waiting>> = self.parts.iter().map(|_| Vec::new()).collect();
        let mut left = Vec::new();
        for (lease, part) in leases.into_iter().zip(assigned) {
            match part {
                Some(part) => groups[part].push(lease),
                None => left.push(lease),
            }
        }
        let served = groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty());
        for rest in join_all(served.map(|(n, group)| self.serve(n, group))).await {
            left.extend(rest);
        }
        // Nobody waits while there is something anywhere.
        let order = tally::order(&self.state().tallies);
        for n in order {
            if left.is_empty() {
                break;
            }
            if self.parts[n].member.is_up() {
                left = self.serve(n, left).await;
            }
        }
        let mut state = self.state();
        // Closed meanwhile: nobody will come back for those in hand.
        if state.closed {
            for lease in left {
                drop(lease.reply.send(Err(closing())));
            }
            return false;
        }
        let more = !left.is_empty() && left.len() < count && state.tallies.iter().any(|tally| tally.maybe);
        for lease in left.into_iter().rev() {
            state.waiting.push_front(Waiting { looked: true, ..lease });
        }
        more
    }

    /// Takes from one partition for some leases, deals, and returns those who got nothing.
    async fn serve(self: &Arc<Self>, n: usize, leases: Vec<Waiting>) -> Vec<Waiting> {
        let part = &self.parts[n];
        let stamp = self.state().tallies[n].stamp;
        let largest = leases.iter().map(|lease| lease.batch).max().unwrap_or(0);
        let wanted = leases.iter().map(|lease| lease.batch).sum::<usize>().min(PASS.max(largest));
        let taken = async {
            let (store, queue) = part.open(&self.name).await?;
            part.member.within(PATIENCE, store.take(queue.lanes[part.place], wanted)).await
        };
        let messages = match taken.await {
            Ok(messages) => messages,
            Err(error) => {
                tracing::warn!(%error, queue = self.name, partition = part.number, "nothing could be leased here");
                let mut state = self.state();
                // This server will never lease from there again: the clients have to ask another one.
                if error.kind() == Kind::SchemaNewer {
                    for lease in leases {
                        state.clients.remove(&lease.client);
                        drop(lease.reply.send(Err(Fault::too_old())));
                    }
                    return Vec::new();
                }
                state.tallies[n].maybe &= error.kind() != Kind::Unavailable;
                state.failed = true;
                drop(state);
                return leases;
            }
        };
        self.state().tallies[n].taken(wanted, &messages, stamp);
        let rooms: Vec<usize> = leases.iter().map(|lease| lease.batch).collect();
        let mut left = Vec::new();
        for (lease, hand) in leases.into_iter().zip(deal(messages, &rooms)) {
            if hand.is_empty() {
                left.push(lease);
                continue;
            }
            self.state().clients.remove(&lease.client);
            if let Err(Ok((part, messages))) = lease.reply.send(Ok((part.number, hand))) {
                self.give_back(part, messages);
            }
        }
        left
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

//! The databases behind a server: opened when they are first needed, again and again while they cannot be.
//!
//! Invariants: a store that fails is left alone for a while, longer each time, up to five seconds; whoever needs it
//! meanwhile is told at once instead of waiting for a connection that will not come; nobody else is held up by it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::Rng as _;
use tenure_store::{Clock, Error, Kind, Store};

/// How long a store rests after its first failure, and at most.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Where everything is kept when nobody says where.
pub(crate) const DEFAULT_DSN: &str = "sqlite:tenure.db";

/// A database that a server may use.
#[derive(Clone, PartialEq)]
pub struct StoreOptions {
    /// What it is called in queues' placements, in health and in metrics. It must not change once queues live there.
    pub name: String,
    /// Where it is.
    pub dsn: String,
    /// Its share of every new queue's partitions, relative to the others.
    pub affinity: f64,
}

impl fmt::Debug for StoreOptions {
    /// Without the DSN, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreOptions { name, affinity, .. } = self;
        f.debug_struct("StoreOptions").field("name", name).field("affinity", affinity).finish_non_exhaustive()
    }
}

/// One of a server's stores.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) affinity: f64,
    dsn: String,
    pub(crate) clock: Clock,
    opening: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    store: Option<Store>,
    failures: u32,
    rests_until: Option<Instant>,
}

/// All of a server's stores. The first is home: it knows the queues and the identities.
pub(crate) struct Stores(Vec<Arc<Member>>);

impl Stores {
    pub(crate) fn new(options: &[StoreOptions], clock: &Clock) -> Self {
        let member = |options: &StoreOptions| Member {
            name: options.name.clone(),
            affinity: options.affinity,
            dsn: options.dsn.clone(),
            clock: clock.clone(),
            opening: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        };
        Stores(options.iter().map(|options| Arc::new(member(options))).collect())
    }

    /// Stores that are open already.
    pub(crate) fn open(store: Store) -> Self {
        let member = Member {
            name: "main".to_owned(),
            affinity: 1.0,
            dsn: String::new(),
            clock: Clock::database(),
            opening: tokio::sync::Mutex::default(),
            state: Mutex::new(State { store: Some(store), ..State::default() }),
        };
        Stores(vec![Arc::new(member)])
    }

    pub(crate) fn all(&self) -> &[Arc<Member>] {
        &self.0
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Member>> {
        self.0.iter().find(|member| member.name == name)
    }

    pub(crate) fn home(&self) -> &Arc<Member> {
        &self.0[0]
    }

    /// How many of so many partitions each store gets: by affinity, every partition somewhere, the first at home, because
    /// dead letters go to partition 0 and are then moved in one transaction.
    pub(crate) fn shares(&self, partitions: u32) -> Vec<u32> {
        let affinities: Vec<f64> = self.0.iter().map(|member| member.affinity).collect();
        share(&affinities, partitions)
    }
}

/// The method of largest remainders, with at least one for the first.
fn share(affinities: &[f64], partitions: u32) -> Vec<u32> {
    let sum: f64 = affinities.iter().sum();
    let exact: Vec<f64> = affinities.iter().map(|affinity| affinity / sum * f64::from(partitions)).collect();
    let mut shares: Vec<u32> = exact.iter().map(|exact| *exact as u32).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()));
    let left = partitions.saturating_sub(shares.iter().sum());
    for n in order.into_iter().cycle().take(left as usize) {
        shares[n] += 1;
    }
    if shares[0] == 0
        && let Some(richest) = shares.iter_mut().max()
    {
        *richest -= 1;
        shares[0] = 1;
    }
    shares
}

impl Member {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is worth a try: it works, or it has rested long enough.
    pub(crate) fn is_up(&self) -> bool {
        self.state().rests_until.is_none_or(|until| until <= Instant::now())
    }

    /// The store, if it is open: for those who only want to know.
    pub(crate) fn opened(&self) -> Option<Store> {
        self.state().store.clone()
    }

    /// Ends the use of the store: everything is in its file afterwards, if it has one.
    pub(crate) async fn close(&self) {
        let Some(store) = self.opened() else { return };
        if let Err(error) = store.close().await {
            tracing::warn!(store = self.name, %error, "the store was not closed in an orderly way");
        }
    }

    /// The store, opened now if it was not.
    pub(crate) async fn store(&self) -> Result<Store, Error> {
        if !self.is_up() {
            return Err(self.away());
        }
        if let Some(store) = self.opened() {
            return Ok(store);
        }
        let _opening = self.opening.lock().await;
        if let Some(store) = self.opened() {
            return Ok(store);
        }
        if !self.is_up() {
            return Err(self.away());
        }
        let opened = async {
            let store = Store::connect_with_clock(&self.dsn, self.clock.clone()).await?;
            store.install().await?;
            Ok(store)
        };
        let opened = self.watched(opened.await);
        if let Ok(store) = &opened {
            self.state().store = Some(store.clone());
        }
        opened
    }

    fn away(&self) -> Error {
        let message = format!("the store '{}' cannot be reached: it is tried again in a moment", self.name);
        Error::new(Kind::Unavailable, message)
    }

    /// An act that must not take for ever; one that does is a failure of this store.
    pub(crate) async fn within<T>(
        &self,
        patience: Duration,
        act: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let hangs = |_| Err(Error::new(Kind::Unavailable, format!("the store '{}' does not answer", self.name)));
        self.watched(tokio::time::timeout(patience, act).await.unwrap_or_else(hangs))
    }

    /// Takes note of how an act on this store ended.
    pub(crate) fn watched<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(error) if error.kind() == Kind::Unavailable => self.rest(error),
            Err(_) => {}
            Ok(_) => self.works(),
        }
        result
    }

    fn works(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.failures) > 0 {
            state.rests_until = None;
            tracing::info!(store = self.name, "the store works again");
        }
    }

    fn rest(&self, error: &Error) {
        let mut state = self.state();
        // One outage is one failure, however many were on their way when it came.
        if state.rests_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        let rest = FIRST_REST.mul_f64(1.5_f64.powi(state.failures.min(10) as i32)).min(LONGEST_REST);
        let rest = rest.mul_f64(rand::rng().random_range(0.8..1.2));
        state.failures += 1;
        state.rests_until = Some(Instant::now() + rest);
        tracing::warn!(store = self.name, %error, ?rest, "the store fails: its partitions are out of rotation");
    }

    /// Ends its rest: an operator knows that it works again.
    pub(crate) fn wake(&self) {
        let mut state = self.state();
        (state.failures, state.rests_until) = (0, None);
    }

    /// How often it has failed since it last worked.
    pub(crate) fn failures(&self) -> u32 {
        self.state().failures
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn every_partition_has_a_store_and_the_first_is_at_home() {
        assert_eq!(share(&[1.0], 7), [7]);
        assert_eq!(share(&[1.0, 1.0], 5), [3, 2]);
        assert_eq!(share(&[3.0, 1.0], 4), [3, 1]);
        assert_eq!(share(&[1.0, 9.0], 1), [1, 0]);
        assert_eq!(share(&[1.0, 1.0, 1.0], 2).iter().sum::<u32>(), 2);
        assert_eq!(share(&[0.1, 0.1, 99.8], 1000).iter().sum::<u32>(), 1000);
    }
}

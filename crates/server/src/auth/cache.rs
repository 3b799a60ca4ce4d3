//! What this process remembers of keys and permissions, and for how long it believes it.
//!
//! Invariants:
//! - Everything is dropped as soon as the database's count of identity changes is not the one that was seen last. It is
//!   asked for at most every two seconds, and nothing is believed when the last answer is older than four: so what
//!   another process revokes is refused here within seconds.
//! - An answer of the database is kept only if nothing was dropped since the question was sent: it may be older than
//!   the change that everything was dropped for.
//! - A key is never believed for longer than it is valid. The database's clock decides, and the clock of this process
//!   may differ from it: in the last minute of a key's life the database is asked each time.
//! - Memory is bounded: there are so many entries at most, and names that callers make up are not kept.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lru::LruCache;
use tenure_store::{Error, Kind, Micros};

use super::Caller;
use super::key::KeyHash;
use super::permission::{Permission, Permissions};
use crate::fault::Fault;

/// How many keys, refused keys and sets of permissions are remembered, each.
const MOST: NonZeroUsize = NonZeroUsize::MIN.saturating_add(9_999);
/// How long a key or a set of permissions is believed, as long as nothing has changed.
const KEEP: Duration = Duration::from_secs(5 * 60);
/// How long a refused key is refused without a question.
const KEEP_REFUSED: Duration = Duration::from_secs(30);
/// How far this process's clock may lag behind the database's without a key being believed for too long: a minute.
const CLOCK_MARGIN: Micros = 60 * 1_000_000;
/// How often the database is asked whether anything has changed.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long the last answer may be relied on while somebody else asks again.
const RELY_ON: Duration = Duration::from_secs(4);
/// How long an answer is waited for. Everybody waits with the one who asks.
const PATIENCE: Duration = Duration::from_secs(5);
/// No namespace has a longer name: what callers merely claim to be one is not remembered.
const LONGEST_NAMESPACE: usize = 256;

/// Why a well-formed key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Unknown,
    Expired,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::unauthorized(match refusal {
            Refusal::Unknown => "api key does not exist",
            Refusal::Expired => "api key has expired",
        })
    }
}

/// Whose key it is, and until when.
pub(super) struct Owner {
    pub(super) caller: Caller,
    pub(super) expires_at: Option<Micros>,
}

/// Keys and permissions of many callers.
pub(super) struct Cache {
    state: Mutex<State>,
    /// Held by the one who asks whether anything has changed.
    asking: tokio::sync::Mutex<()>,
}

struct State {
    owners: LruCache<KeyHash, (Owner, Instant)>,
    refusals: LruCache<KeyHash, (Refusal, Instant)>,
    /// By user and namespace.
    permissions: LruCache<(String, String), (Permissions, Instant)>,
    /// How often everything was dropped.
    generation: u64,
    /// The last answer about changes, and when the question was sent.
    seen: Option<(i64, Instant)>,
    /// When the last question ended, and whether it was answered.
    ended: Option<(Instant, bool)>,
}

impl Cache {
    pub(super) fn new() -> Self {
        let state = State {
            owners: LruCache::new(MOST),
            refusals: LruCache::new(MOST),
            permissions: LruCache::new(MOST),
            generation: 0,
            seen: None,
            ended: None,
        };
        Cache { state: Mutex::new(state), asking: tokio::sync::Mutex::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops everything.
    pub(super) fn forget(&self) {
        self.state().forget();
    }

    /// Whether what is remembered may be used without a look at the database.
    pub(super) fn is_current(&self) -> bool {
        self.state().age(Instant::now()).is_some_and(|age| age < ASK_EVERY)
    }

    /// Makes sure that what is remembered may be used, by asking, or by waiting for whoever asks.
    ///
    /// `version` reads the database's count of identity changes; it is polled only when it is needed.
    pub(super) async fn refresh(&self, version: impl Future<Output = Result<i64, Error>>) -> Result<(), Error> {
        let arrived = Instant::now();
        let age = self.state().age(arrived);
        let _asking = match age {
            Some(age) if age < ASK_EVERY => return Ok(()),
            Some(age) if age < RELY_ON => match self.asking.try_lock() {
                Ok(asking) => asking,
                Err(_) => return Ok(()),
            },
            _ => self.asking.lock().await,
        };
        // A question that ended while we waited was ours too. Without this, all who wait for a database that does not
        // answer would ask it one after the other.
        let ended = self.state().ended;
        if let Some((at, answered)) = ended
            && at >= arrived
        {
            return if answered { Ok(()) } else { Err(unanswered()) };
        }
        let asked = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, version).await.unwrap_or_else(|_| Err(unanswered()));
        self.state().learn(asked, answer.as_ref().ok().copied());
        answer.map(drop)
    }

    /// To be noted before the database is asked for something that is to be kept.
    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Whose key that is, or why it is refused; none: ask the database.
    pub(super) fn key(&self, hash: &KeyHash) -> Option<Result<Caller, Refusal>> {
        self.state().key(hash, Instant::now(), wall_clock())
    }

    /// Keeps whose key that is. Whether this is news.
    pub(super) fn keep_owner(&self, generation: u64, hash: KeyHash, owner: Owner) -> bool {
        let mut state = self.state();
        state.generation != generation || state.owners.put(hash, (owner, Instant::now())).is_none()
    }

    /// Keeps that the key is refused.
    pub(super) fn keep_refusal(&self, generation: u64, hash: KeyHash, refusal: Refusal) {
        let mut state = self.state();
        state.owners.pop(&hash);
        if state.generation == generation {
            state.refusals.put(hash, (refusal, Instant::now()));
        }
    }

    /// What the user may do by the bindings in that namespace; none: ask the database.
    pub(super) fn permissions(&self, user: &str, namespace: &str) -> Option<Permissions> {
        self.state().permissions(user, namespace, Instant::now())
    }

    /// Keeps what the user may do by the bindings in that namespace.
    pub(super) fn keep_permissions(&self, generation: u64, user: &str, namespace: &str, permissions: Permissions) {
        let mut state = self.state();
        if state.generation == generation && namespace.len() <= LONGEST_NAMESPACE {
            state.permissions.put((user.to_owned(), namespace.to_owned()), (permissions, Instant::now()));
        }
    }

    /// Whether bindings in any of the namespaces permit it; none: ask the database.
    pub(super) fn permits(&self, user: &str, namespaces: &[&str], permission: Permission) -> Option<bool> {
        let mut state = self.state();
        for namespace in namespaces {
            if state.permissions(user, namespace, Instant::now())?.contains(permission) {
                return Some(true);
            }
        }
        Some(false)
    }
}

impl State {
    fn forget(&mut self) {
        self.owners.clear();
        self.refusals.clear();
        self.permissions.clear();
        self.generation += 1;
    }

    /// How old the last answer about changes is.
    fn age(&self, now: Instant) -> Option<Duration> {
        self.seen.map(|(_, asked)| now.saturating_duration_since(asked))
    }

    /// Takes note of how the question ended that was sent at `asked`.
    fn learn(&mut self, asked: Instant, version: Option<i64>) {
        self.ended = Some((Instant::now(), version.is_some()));
        let Some(version) = version else { return };
        // Not "greater": a database that was restored from a backup counts from an earlier number.
        if self.seen.is_none_or(|(known, _)| known != version) {
            self.forget();
        }
        self.seen = Some((version, asked));
    }

    fn key(&mut self, hash: &KeyHash, now: Instant, wall_clock: Micros) -> Option<Result<Caller, Refusal>> {
        if let Some((owner, kept)) = self.owners.get(hash) {
            if now.saturating_duration_since(*kept) < KEEP {
                let sure = owner.expires_at.is_none_or(|at| at.saturating_sub(wall_clock) > CLOCK_MARGIN);
                return sure.then(|| Ok(owner.caller.clone()));
            }
            self.owners.pop(hash);
        }
        let (refusal, kept) = self.refusals.get(hash)?;
        (now.saturating_duration_since(*kept) < KEEP_REFUSED).then_some(Err(*refusal))
    }

    fn permissions(&mut self, user: &str, namespace: &str, now: Instant) -> Option<Permissions> {
        if namespace.len() > LONGEST_NAMESPACE {
            return None;
        }
        let (permissions, kept) = self.permissions.get(&(user.to_owned(), namespace.to_owned()))?;
        (now.saturating_duration_since(*kept) < KEEP).then_some(*permissions)
    }
}

fn unanswered() -> Error {
    Error::new(Kind::Unavailable, "the database did not say in time whether keys or roles have changed: repeat later")
}

/// The clock of this process; the end of time when it cannot be read, so that no key with an end is believed.
fn wall_clock() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.ok().and_then(|since| Micros::try_from(since.as_micros()).ok()).unwrap_or(Micros::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is meant to panic")]

    use super::*;

    fn caller(user: &str) -> Caller {
        Caller { user: user.to_owned(), scope: None }
    }

    fn with_key(expires_at: Option<Micros>) -> (Cache, KeyHash) {
        let (cache, hash) = (Cache::new(), KeyHash::for_test(1));
        assert!(cache.keep_owner(cache.generation(), hash, Owner { caller: caller("ann"), expires_at }));
        (cache, hash)
    }

    /// Makes the last answer about changes so old.
    fn age(cache: &Cache, seconds: u64) {
        let asked = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        cache.state().seen = Some((7, asked));
    }

    async fn never() -> Result<i64, Error> {
        panic!("nobody needs to ask the database");
    }

    #[test]
    fn a_key_is_believed_for_five_minutes_and_a_refusal_for_half_a_minute() {
        let (cache, hash) = with_key(None);
        let (now, mut state) = (Instant::now(), cache.state());
        let minutes = |n: u64| now + Duration::from_secs(60 * n);
        assert_eq!(state.key(&hash, minutes(4), 0), Some(Ok(caller("ann"))));
        assert_eq!(state.key(&hash, minutes(6), 0), None);
        drop(state);
        cache.keep_refusal(cache.generation(), hash, Refusal::Unknown);
        let mut state = cache.state();
        assert_eq!(state.key(&hash, now + Duration::from_secs(20), 0), Some(Err(Refusal::Unknown)));
        assert_eq!(state.key(&hash, minutes(1), 0), None);
    }

    #[test]
    fn in_the_last_minute_of_a_key_and_after_it_the_database_is_asked() {
        let minute = CLOCK_MARGIN;
        let (cache, hash) = with_key(Some(10 * minute));
        let mut state = cache.state();
        let now = Instant::now();
        assert_eq!(state.key(&hash, now, 8 * minute), Some(Ok(caller("ann"))));
        for wall_clock in [9 * minute, 10 * minute, 11 * minute, Micros::MAX] {
            assert_eq!(state.key(&hash, now, wall_clock), None);
        }
    }

    #[test]
    fn a_key_that_is_looked_up_again_is_no_news_and_can_still_be_refused() {
        let (cache, hash) = with_key(Some(0));
        let owner = Owner { caller: caller("ann"), expires_at: Some(0) };
        assert!(!cache.keep_owner(cache.generation(), hash, owner));
        cache.keep_refusal(cache.generation(), hash, Refusal::Expired);
        assert_eq!(cache.key(&hash), Some(Err(Refusal::Expired)));
    }

    #[test]
    fn what_was_asked_before_everything_was_dropped_is_not_kept() {
        let (cache, hash) = (Cache::new(), KeyHash::for_test(1));
        let generation = cache.generation();
        cache.forget();
        assert!(cache.keep_owner(generation, hash, Owner { caller: caller("ann"), expires_at: None }));
        cache.keep_refusal(generation, KeyHash::for_test(2), Refusal::Unknown);
        cache.keep_permissions(generation, "ann", "mail", Permissions::default());
        assert_eq!(cache.key(&hash), None);
        assert_eq!(cache.key(&KeyHash::for_test(2)), None);
        assert_eq!(cache.permissions("ann", "mail"), None);
    }

    #[test]
    fn permissions_of_several_namespaces_add_up_once_all_are_known() {
        let cache = Cache::new();
        let permits = |permission| cache.permits("ann", &["mail", "_system"], permission);
        let lease = Permissions::of_names(&["queue.lease".to_owned()]);
        cache.keep_permissions(cache.generation(), "ann", "mail", lease);
        assert_eq!(permits(Permission::QueueLease), Some(true));
        assert_eq!(permits(Permission::QueueClear), None);
        let clear = Permissions::of_names(&["queue.clear".to_owned()]);
        cache.keep_permissions(cache.generation(), "ann", "_system", clear);
        assert_eq!(permits(Permission::QueueClear), Some(true));
        assert_eq!(permits(Permission::QueueStats), Some(false));
    }

    #[test]
    fn names_that_no_namespace_can_have_take_no_memory() {
        let (cache, long) = (Cache::new(), "n".repeat(LONGEST_NAMESPACE + 1));
        cache.keep_permissions(cache.generation(), "ann", &long, Permissions::default());
        assert_eq!(cache.permissions("ann", &long), None);
        assert_eq!(cache.state().permissions.len(), 0);
    }

    #[tokio::test]
    async fn a_new_number_of_changes_drops_everything_and_the_same_number_nothing() {
        let (cache, hash) = with_key(None);
        age(&cache, 3);
        assert!(!cache.is_current());
        cache.refresh(async { Ok(7) }).await.unwrap();
        assert!(cache.is_current() && cache.key(&hash).is_some());
        age(&cache, 3);
        // Lower, as after a restore: any other number means that something has changed.
        cache.refresh(async { Ok(6) }).await.unwrap();
        assert_eq!(cache.key(&hash), None);
    }

    #[tokio::test]
    async fn the_database_is_asked_at_most_every_two_seconds() {
        let cache = Cache::new();
        cache.refresh(async { Ok(1) }).await.unwrap();
        cache.refresh(never()).await.unwrap();
    }

    #[tokio::test]
    async fn while_one_asks_the_others_go_on_with_what_is_young_and_wait_with_what_is_old() {
        let cache = Cache::new();
        let _asking = cache.asking.lock().await;
        age(&cache, 3);
        cache.refresh(never()).await.unwrap();
        age(&cache, 5);
        tokio::select! {
            biased;
            _ = cache.refresh(never()) => panic!("it must wait for the one who asks"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test]
    async fn all_who_waited_for_a_question_share_its_failure() {
        let cache = Cache::new();
        let fails = async {
            tokio::task::yield_now().await;
            Err::<i64, _>(Error::new(Kind::Unavailable, "no connection"))
        };
        let (first, second) = tokio::join!(cache.refresh(fails), cache.refresh(never()));
        assert!(first.is_err() && second.is_err());
        // The next one asks again.
        cache.refresh(async { Ok(1) }).await.unwrap();
    }
}

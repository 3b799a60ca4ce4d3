//! Extensions of leases.
//!
//! Invariant: an extension does not wait for a message that another transaction has locked. A caller may complete a message in a
//! transaction of its own and leave that open for as long as it likes. An extension that waited for it kept the rows of all other
//! leases in its statement locked and unextended meanwhile, and their messages were run twice.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::ops::finish::Verb;
use crate::ops::queue::check_duration;
use crate::store::Store;
use crate::types::{Extension, Fence, Micros};

/// How long [`Store::extend`] asks again for messages that another transaction has locked: as long as a statement may take.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long it rests before it asks again, at first and at most: the lock is usually another extension's, which ends at once.
const FIRST_REST: Duration = Duration::from_millis(2);
const LONGEST_REST: Duration = Duration::from_millis(100);

impl Store {
    /// Extends leases from their deadline, or from now if that has passed. Answers with the new deadline; none: the
    /// lease is no longer yours. A message with a key is leased with its key, so the lease of the whole key is extended, once
    /// for all its messages here, as by [`key_extend`](Store::key_extend).
    ///
    /// # Errors
    /// `Contended` when other transactions keep some of the messages locked for 30 s.
    pub async fn extend(&self, fences: &[Fence], extra: Duration) -> Result<Vec<Option<Micros>>> {
        let asked = Instant::now();
        let mut extensions = self.extend_unlocked(fences, extra).await?;
        let mut rest = FIRST_REST;
        loop {
            let locked: Vec<usize> = (0..fences.len()).filter(|n| extensions[*n] == Extension::Locked).collect();
            if locked.is_empty() {
                break;
            }
            if asked.elapsed() > LONGEST_WAIT {
                let message = format!("{} messages are locked by other transactions: end those first", locked.len());
                return Err(Error::new(Kind::Contended, message));
            }
            tokio::time::sleep(rest).await;
            rest = (rest * 2).min(LONGEST_REST);
            let again: Vec<Fence> = locked.iter().map(|n| fences[*n]).collect();
            for (n, extension) in locked.into_iter().zip(self.extend_unlocked(&again, extra).await?) {
                extensions[n] = extension;
            }
        }
        let until = |extension| if let Extension::Until(until) = extension { Some(until) } else { None };
        Ok(extensions.into_iter().map(until).collect())
    }

    /// As [`extend`](Store::extend), but does not wait for messages that another transaction has locked: the caller asks again
    /// for these, and knows meanwhile which other leases were extended.
    pub async fn extend_unlocked(&self, fences: &[Fence], extra: Duration) -> Result<Vec<Extension>> {
        check_duration("the extension", extra)?;
        let finished = self.finish_raw(fences, |_| Verb::Extend(extra)).await?;
        let found = |until: Option<Micros>| until.map_or(Extension::Lost, Extension::Until);
        let mut extensions: Vec<_> = finished.into_iter().map(|finished| found(finished.leased_until)).collect();
        // Only those pay for this that were not extended as messages without a key.
        let missed: Vec<usize> = (0..fences.len()).filter(|n| extensions[*n] == Extension::Lost).collect();
        if missed.is_empty() {
            return Ok(extensions);
        }
        let held = self.held(&missed.iter().map(|n| fences[*n]).collect::<Vec<_>>()).await?;
        let mut keyed: Vec<(usize, i64)> = Vec::new();
        for (n, held) in missed.into_iter().zip(held) {
            match held {
                Some(Some(token)) => keyed.push((n, token)),
                Some(None) => extensions[n] = Extension::Locked,
                None => {}
            }
        }
        let tokens: Vec<i64> = keyed.iter().map(|(_, token)| *token).collect::<BTreeSet<_>>().into_iter().collect();
        let extended: HashMap<i64, _> = tokens.iter().copied().zip(self.key_extend(&tokens, extra).await?).collect();
        keyed.into_iter().for_each(|(n, token)| extensions[n] = found(extended[&token]));
        Ok(extensions)
    }
}

//! Activities: leased one at a time, kept by renewal, ended with a completion for the instance that waits.
//!
//! Invariants: an activity ends only under the lease that it was fetched with; its completion enters the inbox in the same
//! commit; an activity of a session goes to the session's owner while that one's lease lasts, and to nobody else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::clock::micros;
use crate::combine::Flush;
use crate::db::{Conn, decode};
use crate::error::{Result, invalid};
use crate::ops::queue::check_duration;
use crate::ops::turn::new_token;
use crate::sql::{SESSION_PRUNE, SESSION_RENEW, WORK_ABANDON, WORK_ACK, WORK_ENQUEUE, WORK_FETCH, WORK_RENEW};
use crate::store::{Shared, Store, after};
use crate::types::{NewWork, Work, WorkClaim, WorkFilter, WorkToken};
use crate::value::{Column, Row, Value};
use crate::wait::lease::Held;
use crate::wait::prefetch::KEPT;

/// An activity that ends, and the message that tells its instance so.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) token: WorkToken,
    /// Instance and item.
    pub(crate) completion: Option<(String, String)>,
    /// What its worker will ask for next.
    pub(crate) next: Option<Arc<WorkClaim>>,
}

impl Ended {
    fn bytes(&self) -> usize {
        self.completion.as_ref().map_or(0, |(instance, item)| instance.len() + item.len())
    }
}

impl Store {
    /// Adds an activity. A repeat with the same nonce, while the activity waits, adds nothing.
    pub async fn work_enqueue(&self, work: NewWork, nonce: i64) -> Result<()> {
        let (tag, session) = (work.tag.clone(), work.session.is_some());
        let activity = work.activity.as_ref();
        let text = |text: Option<&String>| text.map_or(Value::Null, |text| text.as_str().into());
        let params = [
            self.clock().value(),
            Value::Int(nonce),
            text(activity.map(|activity| &activity.instance)),
            activity.map(|activity| activity.execution).into(),
            activity.map(|activity| activity.id).into(),
            text(work.session.as_ref()),
            text(work.tag.as_ref()),
            Value::Text(work.item),
        ];
        self.db().write(move |conn| Box::pin(async move { conn.execute(WORK_ENQUEUE, &params).await })).await?;
        self.shared().hub.work_ready(tag.as_deref(), session);
        Ok(())
    }

    /// Leases an activity: at once if there is one, else as soon as there is, else none when the wait is over.
    pub async fn work_fetch(&self, claim: &WorkClaim) -> Result<Option<Work>> {
        check_duration("the lease", claim.lease)?;
        if claim.filter.tags.len() > WorkFilter::TAGS {
            return Err(invalid(format!("a worker can name at most {} tags", WorkFilter::TAGS)));
        }
        let shared = self.shared();
        let work = &shared.hub.work;
        if let Some(kept) = shared.prefetch.take(claim) {
            if claim.session.is_some() {
                work.topic.end_waits_without_sessions(&shared.hub);
            }
            return Ok(Some(kept.keep().it));
        }
        let until = work.topic.patience(claim, after(claim.wait));
        let held = work.wait(shared, claim.clone(), until).await?;
        Ok(held.map(|held| held.keep().it))
    }

    /// Ends an activity; with a completion, which is an instance and what to tell it. Whether the lease was still there.
    ///
    /// A worker that will fetch again at once can say so: what it will get is then leased in the same commit.
    pub async fn work_ack(
        &self,
        token: WorkToken,
        completion: Option<(String, String)>,
        next: Option<Arc<WorkClaim>>,
    ) -> Result<bool> {
        let ended = Ended { token, completion, next };
        let bytes = ended.bytes();
        Ok(self.combiners().work_acks.call(vec![ended], bytes).await?[0])
    }

    /// Gives an activity back: it can be fetched again, at once or after `delay`, and this fetch counts or not. A fetch that
    /// does not count gives its session back too, if it claimed it. Whether the lease was still there.
    pub async fn work_abandon(&self, token: WorkToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        self.shared().abandon_work(token, delay, uncount).await
    }

    /// Keeps an activity's lease until `lease` from now. Whether it was still there.
    pub async fn work_renew(&self, token: WorkToken, lease: Duration) -> Result<bool> {
        let params = [self.clock().value(), Value::Int(token.id), Value::Int(token.token), Value::Int(micros(lease))];
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.query(WORK_RENEW, &params).await?;
                rows.first().map_or(Ok(0), |row| row.fields(WORK_RENEW.name).int())
            })
        });
        Ok(act.await? > 0)
    }

    /// Keeps the sessions of these owners until `lease` from now, except those idle for longer than `idle`. How many.
    pub async fn session_renew(&self, owners: Vec<String>, lease: Duration, idle: Duration) -> Result<usize> {
        let fixed = [self.clock().value(), Value::Int(micros(lease)), Value::Int(micros(idle))];
        let owners: Column = owners.into_iter().collect();
        let act = self
            .db()
            .write(move |conn| Box::pin(async move { Ok(conn.each(SESSION_RENEW, &fixed, &[owners]).await?.len()) }));
        act.await
    }

    /// Forgets sessions whose lease has run out and that have nothing to do. How many.
    pub async fn session_prune(&self) -> Result<usize> {
        let params = [self.clock().value()];
        let act = self.db().write(move |conn| Box::pin(async move { conn.execute(SESSION_PRUNE, &params).await }));
        Ok(usize::try_from(act.await?).unwrap_or(usize::MAX))
    }
}

impl Shared {
    /// Leases activities for so many fetches that ask for the same.
    pub(crate) async fn take_work(&self, claim: &WorkClaim, count: usize) -> Result<Vec<Work>> {
        let (clock, claim) = (self.hub.clock.value(), claim.clone());
        let act =
            self.hub.db.write(move |conn| Box::pin(async move { take_work(conn, clock, &claim, count).await })).await;
        let (work, sessions) = act?;
        self.hub.sessions.store(sessions, Ordering::Relaxed);
        Ok(work)
    }

    pub(crate) async fn abandon_work(&self, token: WorkToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        let params = [
            self.hub.clock.value(),
            Value::Int(token.id),
            Value::Int(token.token),
            Value::Int(micros(delay.unwrap_or_default())),
            Value::Bool(uncount),
            token.claimed.filter(|_| uncount).into(),
        ];
        let act = self.hub.db.write(move |conn| {
            Box::pin(async move {
                let rows = conn.query(WORK_ABANDON, &params).await?;
                rows.first().map_or(Ok(0), |row| row.fields(WORK_ABANDON.name).int())
            })
        });
        let done = act.await? > 0;
        if done {
            self.hub.work_in(delay.unwrap_or_default());
        }
        Ok(done)
    }

    /// What the workers of ended activities will ask for, and how many of them: only where no session can matter, and no
    /// more than will be fetched at once.
    fn wanted_next(&self, ended: &[Ended]) -> (WorkClaim, usize) {
        let claims = || ended.iter().filter_map(|ended| ended.next.as_deref());
        let Some(first) = claims().find(|_| !self.hub.sessions.load(Ordering::Relaxed)) else {
            return (WorkClaim::default(), 0);
        };
        let same = claims().filter(|claim| claim.lease == first.lease && claim.filter == first.filter).count();
        (first.clone(), self.prefetch.room(first, same))
    }

    /// Keeps activities for the fetches that are sure to come, and releases what no fetch came for.
    fn keep(self: &Arc<Self>, claim: &WorkClaim, work: Vec<Work>) {
        if work.is_empty() {
            return;
        }
        self.prefetch.put(claim, work.into_iter().map(|work| Held::lease(self, work)));
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            drop(shared.prefetch.stale(KEPT));
        });
    }
}

/// Up to so many activities, and whether there are any of sessions. A statement may return fewer than there are: it is asked
/// again while it says so.
async fn take_work(conn: &mut Conn<'_>, clock: Value, claim: &WorkClaim, count: usize) -> Result<(Vec<Work>, bool)> {
    let owner = claim.session.as_ref().map(|(owner, _)| owner.as_str());
    let mut taken: Vec<Work> = Vec::with_capacity(count);
    loop {
        let (token, wanted) = (new_token(), (count - taken.len()) as i64);
        let mut params = vec![
            clock.clone(),
            Value::Int(token),
            Value::Int(micros(claim.lease)),
            owner.into(),
            Value::Int(claim.session.as_ref().map_or(0, |(_, lease)| micros(*lease))),
        ];
        params.extend(bind_filter(&claim.filter));
        params.push(Value::Int(wanted));
        let began = Instant::now();
        let rows = conn.query(WORK_FETCH, &params).await?;
        let (mut found, mut sessions) = (0, false);
        for work in decode(WORK_FETCH, &rows, |row| {
            let (id, token) = (row.int_or_null()?, row.int_or_null()?);
            let (attempts, item) = (row.int_or_null()?, row.text_or_null()?);
            let seen = row.int_or_null()?.zip(row.int_or_null()?);
            (found, sessions) = (row.int()?, row.bool()?);
            let (in_session, claimed) = (row.bool()?, row.int_or_null()?);
            let token = id.zip(token).map(|(id, token)| WorkToken { id, token, claimed });
            Ok(token.zip(item).map(|(token, item)| Work {
                token,
                attempts: attempts.unwrap_or(0),
                item,
                in_session,
                seen,
                took: began.elapsed(),
            }))
        })? {
            taken.extend(work);
        }
        if found < wanted || taken.len() >= count {
            return Ok((taken, sessions));
        }
    }
}

/// Ends merged activities, and leases those that their workers will ask for. Not repeated here: the caller knows how long
/// its leases last.
pub(crate) fn ended_flush(shared: Arc<Shared>) -> Flush<Ended, bool> {
    Arc::new(move |ended| {
        let shared = shared.clone();
        Box::pin(async move {
            let (claim, count) = shared.wanted_next(&ended);
            let token = new_token();
            let mut fixed = vec![shared.hub.clock.value(), Value::Int(count as i64), Value::Int(token)];
            fixed.push(Value::Int(micros(claim.lease)));
            fixed.extend(bind_filter(&claim.filter));
            fixed.push(Value::Bool(shared.hub.sessions.load(Ordering::Relaxed)));
            let completions = || ended.iter().map(|ended| ended.completion.as_ref());
            let list = vec![
                ended.iter().map(|ended| ended.token.id).collect::<Column>(),
                ended.iter().map(|ended| ended.token.token).collect(),
                completions().map(|completion| completion.map(|(instance, _)| instance.clone())).collect(),
                completions().map(|completion| completion.map(|(_, item)| item.clone())).collect(),
                Column::ordinals(ended.len()),
            ];
            let act = shared.hub.db.write(move |conn| {
                Box::pin(async move {
                    let began = Instant::now();
                    read_ended(&conn.act(WORK_ACK, &fixed, &[list]).await?, began)
                })
            });
            let (done, next) = act.await?;
            shared.keep(&claim, next);
            let mut answers = vec![false; ended.len()];
            for at in done {
                if let Some(answer) = answers.get_mut(at) {
                    *answer = true;
                }
                if let Some((instance, _)) = ended.get(at).and_then(|ended| ended.completion.as_ref()) {
                    shared.hub.turn_ready(instance);
                }
            }
            Ok(answers)
        })
    })
}

/// Which were done, and what was leased besides.
fn read_ended(rows: &[Row], began: Instant) -> Result<(Vec<usize>, Vec<Work>)> {
    let (mut done, mut next) = (Vec::new(), Vec::new());
    decode(WORK_ACK, rows, |row| {
        let (part, id, token, attempts) = (row.int()?, row.int()?, row.int_or_null()?, row.int_or_null()?);
        match token.zip(attempts).filter(|_| part == 1) {
            None => done.push(usize::try_from(id).unwrap_or(usize::MAX)),
            Some((token, attempts)) => {
                let token = WorkToken { id, token, claimed: None };
                let item = row.text()?;
                let seen = row.int_or_null()?.zip(row.int_or_null()?);
                next.push(Work { token, attempts, item, in_session: false, seen, took: began.elapsed() });
            }
        }
        Ok(())
    })?;
    Ok((done, next))
}

/// The parameters of a filter: all, untagged, and the tags.
fn bind_filter(filter: &WorkFilter) -> Vec<Value> {
    let tags = filter.tags.iter().map(|tag| tag.as_str().into());
    let tags = tags.chain(std::iter::repeat(Value::Null)).take(WorkFilter::TAGS);
    [Value::Bool(filter.any), Value::Bool(filter.untagged)].into_iter().chain(tags).collect()
}

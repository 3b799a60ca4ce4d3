//! Activities: leased one at a time, kept by renewal, ended with a completion for the instance that waits.
//!
//! Invariants: an activity ends only under the lease that it was fetched with; its completion enters the inbox in the same
//! commit; an activity of a session goes to the session's owner while that one's lease lasts, and to nobody else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::bell::Look;
use crate::clock::micros;
use crate::combine::Flush;
use crate::db::decode;
use crate::error::{Result, invalid};
use crate::ops::queue::check_duration;
use crate::ops::turn::{NOTHING, new_token, nothing_yet};
use crate::receipt::Receipt;
use crate::sql::{SESSION_PRUNE, SESSION_RENEW, WORK_ABANDON, WORK_ACK, WORK_ENQUEUE, WORK_FETCH, WORK_RENEW};
use crate::store::{Shared, Store, after};
use crate::types::{NewWork, Work, WorkClaim, WorkFilter, WorkToken};
use crate::value::{Column, Row, Value};

/// An activity that ends, and the message that tells its instance so.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) token: WorkToken,
    /// Instance and item.
    pub(crate) completion: Option<(String, String)>,
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
        let hub = &self.shared().hub;
        let class = (claim.filter.clone(), claim.session.is_some());
        let look = || async {
            let (reply, answer) = oneshot::channel();
            // A task of its own: a lease that its caller no longer waits for is given back, not left to run out.
            let (shared, claim) = (self.shared().clone(), claim.clone());
            tokio::spawn(async move {
                let looked = shared.look_for_work(&claim).await;
                if let Err(Ok(Look::Found(work))) = reply.send(looked) {
                    shared.give_work_back(work);
                }
            });
            let back = |look| {
                if let Look::Found(work) = look {
                    self.shared().give_work_back(work);
                }
            };
            Receipt::new(answer, back).wait().await
        };
        hub.work.wait(hub, &class, after(claim.wait), look).await
    }

    /// Ends an activity; with a completion, which is an instance and what to tell it. Whether the lease was still there.
    pub async fn work_ack(&self, token: WorkToken, completion: Option<(String, String)>) -> Result<bool> {
        let ended = Ended { token, completion };
        let bytes = ended.bytes();
        Ok(self.ended().call(vec![ended], bytes).await?[0])
    }

    /// Gives an activity back: it can be fetched again, at once or after `delay`, and this fetch counts or not. Whether the
    /// lease was still there.
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
    async fn look_for_work(&self, claim: &WorkClaim) -> Result<Look<Work>> {
        let token = new_token();
        let owner = claim.session.as_ref().map(|(owner, _)| owner.as_str());
        let mut params = vec![
            self.hub.clock.value(),
            Value::Int(token),
            Value::Int(micros(claim.lease)),
            owner.into(),
            Value::Int(claim.session.as_ref().map_or(0, |(_, lease)| micros(*lease))),
            Value::Bool(claim.filter.any),
            Value::Bool(claim.filter.untagged),
        ];
        let tags = claim.filter.tags.iter().map(|tag| tag.as_str().into());
        params.extend(tags.chain(std::iter::repeat(Value::Null)).take(WorkFilter::TAGS));
        let act = self.hub.db.write(move |conn| {
            Box::pin(async move {
                let began = Instant::now();
                read_work(token, &conn.query(WORK_FETCH, &params).await?, began)
            })
        });
        act.await
    }

    async fn abandon_work(&self, token: WorkToken, delay: Option<Duration>, uncount: bool) -> Result<bool> {
        let params = [
            self.hub.clock.value(),
            Value::Int(token.id),
            Value::Int(token.token),
            Value::Int(micros(delay.unwrap_or_default())),
            Value::Bool(uncount),
        ];
        let act = self.hub.db.write(move |conn| Box::pin(async move { conn.execute(WORK_ABANDON, &params).await }));
        let done = act.await? > 0;
        if done {
            self.hub.work_in(delay.unwrap_or_default());
        }
        Ok(done)
    }

    fn give_work_back(self: &Arc<Self>, work: Work) {
        let shared = self.clone();
        tokio::spawn(async move {
            if let Err(error) = shared.abandon_work(work.token, None, true).await {
                tracing::debug!(%error, "an activity was not given back: its lease will run out");
            }
        });
    }
}

fn read_work(token: i64, rows: &[Row], began: Instant) -> Result<Look<Work>> {
    let mut looks = decode(WORK_FETCH, rows, |row| {
        let part = row.int()?;
        let (id, n) = (row.int_or_null()?, row.int_or_null()?);
        if part == NOTHING {
            return Ok(nothing_yet((id, n != Some(0))));
        }
        let token = WorkToken { id: id.unwrap_or(0), token };
        Ok(Look::Found(Work { token, attempts: n.unwrap_or(0), item: row.text()?, took: began.elapsed() }))
    })?;
    Ok(looks.pop().unwrap_or(Look::Nothing { next: None, blocked: false }))
}

/// Ends merged activities. Not repeated here: the caller knows how long its leases last.
pub(crate) fn ended_flush(shared: Arc<Shared>) -> Flush<Ended, bool> {
    Arc::new(move |ended| {
        let shared = shared.clone();
        Box::pin(async move {
            let fixed = [shared.hub.clock.value()];
            let completions = || ended.iter().map(|ended| ended.completion.as_ref());
            let columns = [
                ended.iter().map(|ended| ended.token.id).collect::<Column>(),
                ended.iter().map(|ended| ended.token.token).collect(),
                completions().map(|completion| completion.map(|(instance, _)| instance.clone())).collect(),
                completions().map(|completion| completion.map(|(_, item)| item.clone())).collect(),
            ];
            let act = shared.hub.db.write(move |conn| {
                Box::pin(async move {
                    let rows = conn.each(WORK_ACK, &fixed, &columns).await?;
                    decode(WORK_ACK, &rows, |row| row.int())
                })
            });
            let done = act.await?;
            let mut answers = vec![false; ended.len()];
            for n in done {
                let at = usize::try_from(n).unwrap_or(usize::MAX);
                if let Some(answer) = answers.get_mut(at) {
                    *answer = true;
                }
                if ended.get(at).is_some_and(|ended| ended.completion.is_some()) {
                    shared.hub.turn_in(Duration::ZERO);
                }
            }
            Ok(answers)
        })
    })
}

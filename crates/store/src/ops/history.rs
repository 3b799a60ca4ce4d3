//! Histories: what happened in an execution of an instance, in the order of numbers that its writer gives.

use std::sync::Arc;

use crate::combine::Flush;
use crate::db::decode;
use crate::error::{Error, Kind, Result};
use crate::ops::check_text;
use crate::ops::turn::EVENT;
use crate::sql::{HISTORY_APPEND, HISTORY_READ, KV_GET, KV_LIST};
use crate::store::{Shared, Store};
use crate::types::{History, HistoryEvent, Known};
use crate::value::{Column, Row, Value};

/// A question about an instance; those asked at the same time share a statement.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    instance: String,
    execution: Option<i64>,
    known: Option<Known>,
    /// Events after this one, where nothing is known.
    last: i64,
    /// The version of the custom status last seen.
    seen: i64,
}

/// The history, with the custom status if there is a newer one.
pub(crate) type Told = Option<History>;

impl Store {
    /// The history of an execution, or of the latest one; only what follows `known`, where that is still what is asked for.
    /// None when nothing was ever sent to such an instance.
    pub async fn history_read(
        &self,
        instance: &str,
        execution: Option<i64>,
        known: Option<&Known>,
    ) -> Result<Option<History>> {
        let instance = instance.to_owned();
        let question = Question { instance, execution, known: known.cloned(), last: 0, seen: 0 };
        let mut told = self.combiners().questions.call(vec![question], 0).await?;
        Ok(told.pop().flatten())
    }

    /// An instance's custom status and its version, if that is newer than the one last seen.
    pub async fn instance_status(&self, instance: &str, seen: i64) -> Result<Option<(Option<String>, i64)>> {
        let question = Question { instance: instance.to_owned(), execution: None, known: None, last: i64::MAX, seen };
        let mut told = self.combiners().questions.call(vec![question], 0).await?;
        Ok(told.pop().flatten().and_then(|history| history.status))
    }

    /// Appends events to an execution, for tests and repairs. One that is already there is an error, and then nothing is
    /// appended.
    pub async fn history_append(&self, instance: &str, execution: i64, events: Vec<HistoryEvent>) -> Result<()> {
        check_text("the instance's id", instance, 4096)?;
        let fixed = [self.clock().value(), instance.into(), Value::Int(execution), Value::Int(events.len() as i64)];
        let (ids, data): (Vec<_>, Vec<_>) = events.into_iter().map(|event| (event.id, event.data)).unzip();
        let lists = [vec![ids.into_iter().collect(), data.into_iter().collect()]];
        let act = self
            .db()
            .write(move |conn| Box::pin(async move { conn.act(HISTORY_APPEND, &fixed, &lists).await.map(drop) }));
        act.await.map_err(|error| match error.kind() {
            Kind::AlreadyExists => {
                let message = format!("instance '{instance}', execution {execution} already has one of these events");
                Error::new(Kind::AlreadyExists, message).with_source(error)
            }
            _ => error,
        })
    }

    /// A value of an instance, as its running execution sees it.
    pub async fn kv_get(&self, instance: &str, key: &str) -> Result<Option<String>> {
        let params = [instance.into(), key.into()];
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let row = conn.query_opt(KV_GET, &params).await?;
                row.map_or(Ok(None), |row| row.fields(KV_GET.name).text_or_null())
            })
        });
        act.await
    }

    /// All values of an instance, as its running execution sees them.
    pub async fn kv_list(&self, instance: &str) -> Result<Vec<(String, String)>> {
        let params = [instance.into()];
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let all = decode(KV_LIST, &conn.query(KV_LIST, &params).await?, |row| {
                    let key = row.text()?;
                    Ok(row.text_or_null()?.map(|value| (key, value)))
                })?;
                Ok(all.into_iter().flatten().collect())
            })
        });
        act.await
    }
}

/// Answers merged questions.
pub(crate) fn question_flush(shared: Arc<Shared>) -> Flush<Question, Told> {
    Arc::new(move |questions| {
        let shared = shared.clone();
        Box::pin(async move {
            let known = |read: fn(&Known) -> i64| -> Column {
                questions.iter().map(|question| question.known.as_ref().map(read)).collect()
            };
            let last = |question: &Question| question.known.as_ref().map_or(question.last, |known| known.last);
            let columns = [
                questions.iter().map(|question| question.instance.clone()).collect::<Column>(),
                questions.iter().map(|question| question.execution).collect(),
                known(|known| known.born),
                known(|known| known.execution),
                questions.iter().map(last).collect(),
                questions.iter().map(|question| question.seen).collect(),
            ];
            let count = questions.len();
            let act = shared
                .hub
                .db
                .read(move |conn| Box::pin(async move { tell(&conn.each(HISTORY_READ, &[], &columns).await?, count) }));
            act.await
        })
    })
}

fn tell(rows: &[Row], count: usize) -> Result<Vec<Told>> {
    let mut told: Vec<Told> = vec![None; count];
    decode(HISTORY_READ, rows, |row| {
        let (n, part, id) = (row.int()?, row.int()?, row.int()?);
        let (execution, version, newer) = (row.int_or_null()?, row.int_or_null()?, row.bool_or_null()?);
        let Some(told) = usize::try_from(n).ok().and_then(|n| told.get_mut(n)) else { return Ok(()) };
        if part == EVENT {
            if let Some(history) = told {
                history.events.push(HistoryEvent { id, data: row.text()? });
            }
            return Ok(());
        }
        let custom = row.text_or_null()?;
        let status = version.filter(|_| newer == Some(true)).map(|version| (custom, version));
        *told = Some(History { born: id, execution: execution.unwrap_or(1), events: Vec::new(), status });
        Ok(())
    })?;
    for history in told.iter_mut().flatten() {
        history.events.sort_unstable_by_key(|event| event.id);
    }
    Ok(told)
}

//! Histories: what happened in an execution of an instance, in the order of numbers that its writer gives.

use crate::db::decode;
use crate::error::{Error, Kind, Result};
use crate::ops::check_text;
use crate::ops::turn::EVENT;
use crate::sql::{HISTORY_APPEND, HISTORY_READ, KV_GET, KV_LIST};
use crate::store::Store;
use crate::types::{History, HistoryEvent, Known};
use crate::value::Value;

impl Store {
    /// The history of an execution, or of the latest one; only what follows `known`, where that is still what is asked for.
    /// None when nothing was ever sent to such an instance.
    pub async fn history_read(
        &self,
        instance: &str,
        execution: Option<i64>,
        known: Option<&Known>,
    ) -> Result<Option<History>> {
        let params = [
            instance.into(),
            execution.into(),
            known.map(|known| known.born).into(),
            known.map(|known| known.execution).into(),
            known.map(|known| known.last).into(),
        ];
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let mut history = None;
                let mut events = Vec::new();
                decode(HISTORY_READ, &conn.query(HISTORY_READ, &params).await?, |row| {
                    let (part, id, n) = (row.int()?, row.int()?, row.int_or_null()?);
                    if part == EVENT {
                        events.push(HistoryEvent { id, data: row.text()? });
                    } else {
                        history = Some((id, n.unwrap_or(1)));
                    }
                    Ok(())
                })?;
                events.sort_unstable_by_key(|event| event.id);
                Ok(history.map(|(born, execution)| History { born, execution, events }))
            })
        });
        act.await
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

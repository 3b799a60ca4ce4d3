//! Copies what duroxide's own SQLite provider kept.
//!
//! Invariants: the source is only read. A batch of instances with everything that belongs to them is one transaction, and
//! an instance that the copy made is known by its `born`, which is computed from its id: whatever stops a copy, the next
//! run goes on behind the last batch, and nothing is ever there twice.

mod source;

use std::collections::HashMap;
use std::path::Path;

use crate::db::{Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::ops::copy::source::{Batch, Event, Listed, Rows, Source, event, totals};
use crate::sql::{HISTORY_WHOLE, INSTANCE_BORN, INSTANCE_TALLY};
use crate::store::Store;
use crate::text::stored;
use crate::types::{CopyProgress, CopyReport};
use crate::value::Column;

impl Store {
    /// Copies everything out of a database of duroxide's own SQLite provider: instances, executions, histories,
    /// messages, activities, values and sessions. Locks are not copied, so whatever was running will be run again;
    /// attempts stay counted. The file is only read, as it is when the copy begins: stop the programs that use it first.
    ///
    /// It can be repeated: what an earlier run copied is skipped. `progress` is told after every transaction.
    ///
    /// # Errors
    /// `Schema` when the file is not duroxide's, or is of an older version; `AlreadyExists` when an instance is already
    /// here that no copy made. After a retryable error, run it again.
    pub async fn copy_duroxide(
        &self,
        file: &Path,
        mut progress: impl FnMut(CopyProgress) + Send,
    ) -> Result<CopyReport> {
        let mut source = Source::open(file).await?;
        let mut done = begin(&source.totals().await?);
        let mut report = CopyReport::default();
        progress(done);
        loop {
            let page = source.next_page().await?;
            if page.is_empty() {
                break;
            }
            for batch in page {
                let step = advance(done, &batch);
                self.copy_batch(&source, batch, &mut report).await?;
                done = step;
                progress(done);
            }
        }
        let (strays, sessions) = source.rest().await?;
        let rest = self
            .db()
            .transact(move |conn| Box::pin(async move { Ok((put(conn, strays).await?, put(conn, sessions).await?)) }));
        let (strays, sessions) = rest.await?;
        report.activities += strays;
        report.sessions = sessions;
        self.shared().hub.wake_all();
        Ok(report)
    }

    /// Compares a copy with its source: every event of every history, byte for byte, and the number of rows of every
    /// table. How many events there are. It belongs right after the copy, before programs run on either side: what they
    /// do makes the two differ.
    ///
    /// # Errors
    /// `Damaged` with the first event that differs or is missing, or the first table that has more or fewer rows.
    pub async fn verify_duroxide_copy(
        &self,
        file: &Path,
        mut progress: impl FnMut(CopyProgress) + Send,
    ) -> Result<u64> {
        let mut source = Source::open(file).await?;
        let theirs = source.totals().await?;
        let mut done = begin(&theirs);
        progress(done);
        loop {
            let page = source.next_page().await?;
            if page.is_empty() {
                break;
            }
            for batch in page {
                done = advance(done, &batch);
                let ids: Vec<String> = batch.into_iter().map(|listed| listed.id).collect();
                let ours = self.events_of(&ids).await?;
                compare(source.events(ids).await?, ours)?;
                progress(done);
            }
        }
        let act = self.db().read(move |conn| {
            Box::pin(async move { decode(INSTANCE_TALLY, &conn.query(INSTANCE_TALLY, &[]).await?, totals) })
        });
        let ours = act.await?.into_iter().next().unwrap_or_default();
        compare_counts(&theirs, &ours)?;
        Ok(done.events_done)
    }

    async fn copy_batch(&self, source: &Source, batch: Vec<Listed>, report: &mut CopyReport) -> Result<()> {
        let all = batch.len();
        let ids = self.not_copied(batch).await?;
        report.skipped += (all - ids.len()) as u64;
        if ids.is_empty() {
            return Ok(());
        }
        let batch = source.batch(ids).await?;
        let copied = CopyReport {
            instances: report.instances + batch.instances.len(),
            executions: report.executions + batch.executions.len(),
            events: report.events + batch.events.len(),
            messages: report.messages + batch.messages.len(),
            activities: report.activities + batch.activities.len(),
            values: report.values + batch.values.len(),
            ..*report
        };
        self.db().transact(move |conn| Box::pin(async move { import(conn, batch).await })).await?;
        *report = copied;
        Ok(())
    }

    /// Those instances that no earlier run has copied.
    async fn not_copied(&self, batch: Vec<Listed>) -> Result<Vec<String>> {
        let columns = [batch.iter().map(|listed| stored(&listed.id).into_owned()).collect::<Column>()];
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let rows = conn.each(INSTANCE_BORN, &[], &columns).await?;
                decode(INSTANCE_BORN, &rows, |row| Ok((row.text()?, row.int()?)))
            })
        });
        let here: HashMap<String, i64> = act.await?.into_iter().collect();
        let mut missing = Vec::with_capacity(batch.len());
        for Listed { id, .. } in batch {
            let born = here.get(&*stored(&id)).copied();
            match born {
                None => missing.push(id),
                Some(born) if born == mark(&id) => {}
                Some(_) => {
                    let message = format!("the target already has an instance '{id}': copy into an empty schema");
                    return Err(Error::new(Kind::AlreadyExists, message));
                }
            }
        }
        Ok(missing)
    }

    async fn events_of(&self, ids: &[String]) -> Result<Vec<Event>> {
        let columns = [ids.iter().map(|id| stored(id).into_owned()).collect::<Column>()];
        let act = self.db().read(move |conn| {
            Box::pin(async move {
                let rows = conn.each(HISTORY_WHOLE, &[], &columns).await?;
                decode(HISTORY_WHOLE, &rows, |row| event(row, |id| id))
            })
        });
        act.await
    }
}

/// The `born` of a copied instance: a number that its id always gives, in every version of this program. FNV-1a,
/// without the two bits that the kernel needs for itself.
fn mark(text: &str) -> i64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    (text.bytes().fold(0xcbf2_9ce4_8422_2325, step) >> 2) as i64
}

fn begin(totals: &CopyReport) -> CopyProgress {
    CopyProgress { instances_done: 0, instances_total: totals.instances, events_done: 0, events_total: totals.events }
}

fn advance(done: CopyProgress, batch: &[Listed]) -> CopyProgress {
    CopyProgress {
        instances_done: done.instances_done + batch.len() as u64,
        events_done: done.events_done + batch.iter().map(|listed| listed.events).sum::<u64>(),
        ..done
    }
}

/// Writes a batch, all or nothing.
async fn import(conn: &mut Conn<'_>, batch: Batch) -> Result<()> {
    let wanted = batch.instances.len();
    if put(conn, batch.instances).await? != wanted {
        // Somebody made one of them after they were looked for.
        let message = "another copy into this target is running, or a program: stop it, then run this one again";
        return Err(Error::new(Kind::Contended, message));
    }
    for rows in [batch.executions, batch.events, batch.messages, batch.activities, batch.values] {
        put(conn, rows).await?;
    }
    Ok(())
}

/// Writes rows. How many the statement returned, for those that return what is new.
async fn put(conn: &mut Conn<'_>, mut rows: Rows) -> Result<u64> {
    let mut returned = 0;
    while let Some(columns) = rows.next_part() {
        returned += conn.each(rows.statement(), &[], &columns).await?.len() as u64;
    }
    Ok(returned)
}

/// Finds the first event that the two sides do not have in common.
fn compare(mut theirs: Vec<Event>, mut ours: Vec<Event>) -> Result<()> {
    theirs.sort_unstable();
    ours.sort_unstable();
    for at in 0..theirs.len().max(ours.len()) {
        let ((instance, execution, id), what) = match (theirs.get(at), ours.get(at)) {
            (Some(theirs), Some(ours)) if theirs == ours => continue,
            (Some((place, _)), Some((other, _))) if place == other => (place, "is not the same in the target"),
            (Some((place, _)), Some((other, _))) if place > other => (other, "is in the target, but not in the source"),
            (Some((place, _)), _) => (place, "is missing in the target"),
            (None, Some((place, _))) => (place, "is in the target, but not in the source"),
            (None, None) => continue,
        };
        let instance = crate::text::original(instance.clone());
        let message = format!(
            "instance '{instance}', execution {execution}, event {id} {what}: copy into an empty schema, and verify \
             before a program runs"
        );
        return Err(Error::new(Kind::Damaged, message));
    }
    Ok(())
}

fn compare_counts(theirs: &CopyReport, ours: &CopyReport) -> Result<()> {
    let counts = [
        ("instances", theirs.instances, ours.instances),
        ("executions", theirs.executions, ours.executions),
        ("events", theirs.events, ours.events),
        ("messages", theirs.messages, ours.messages),
        ("activities", theirs.activities, ours.activities),
        ("values", theirs.values, ours.values),
        ("sessions", theirs.sessions, ours.sessions),
    ];
    match counts.into_iter().find(|(_, theirs, ours)| theirs != ours) {
        None => Ok(()),
        Some((what, theirs, ours)) => {
            let message = format!(
                "the source has {theirs} {what} and the target {ours}: copy into an empty schema, and verify before a \
                 program runs"
            );
            Err(Error::new(Kind::Damaged, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: i64, data: &str) -> Event {
        (("a".to_owned(), 1, id), data.to_owned())
    }

    #[test]
    fn an_instance_is_marked_with_the_same_number_for_ever() {
        assert_eq!(mark(""), 0x32fc_a739_2108_88c9);
        assert_eq!(mark("a"), 0x2bd8_f713_2180_7b23);
        assert!(mark("order-1") > 0 && mark("order-1") != mark("order-2"));
    }

    #[test]
    fn the_first_difference_is_named_whatever_it_is() {
        let whole = || vec![event(1, "x"), event(2, "y"), event(3, "z")];
        assert!(compare(whole(), whole()).is_ok());
        let said = |ours| compare(whole(), ours).expect_err("they differ").to_string();
        assert!(said(vec![event(1, "x"), event(3, "z")]).contains("execution 1, event 2 is missing"));
        assert!(said(vec![event(1, "x"), event(2, "Y"), event(3, "z")]).contains("event 2 is not the same"));
        assert!(said(vec![event(0, "w"), event(1, "x")]).contains("event 0 is in the target, but not in the source"));
        assert!(
            said(vec![event(1, "x"), event(2, "y"), event(3, "z"), event(4, "")]).contains("event 4 is in the target")
        );
    }
}

//! The messages that are finished and remembered.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::{Store, count};
use crate::types::ArchivedMessage;

/// The messages that are finished and remembered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// # let store = tenure::Store::connect(":memory:").await?;
/// # store.install().await?;
/// # let queue = store.queues().create("mail").await?.id;
/// # let worker = store.workers().register(Some(queue), "host-1", 8080).await?.id;
/// # let id = store.messages().insert(queue, worker, &"hello".into(), None).await?;
/// # store.messages().dequeue_atomic(queue, worker, 10, 30, 5).await?;
/// let archived = store.archive().archive_message(id, worker).await?.expect("this worker holds it");
/// assert_eq!(store.archive().list(10, 0).await?, [archived]);
/// assert_eq!(store.archive().count_dlq(0).await?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ArchiveTable {
    pub(crate) store: Store,
}

impl ArchiveTable {
    /// Its name in the database.
    pub fn table_name(&self) -> &'static str {
        "archive"
    }

    /// A finished message by its id.
    ///
    /// # Errors
    /// `MessageNotFound`.
    pub async fn get(&self, id: i64) -> Result<ArchivedMessage> {
        let archived = self.store.kernel.archive_get(id).await?;
        archived.map(ArchivedMessage::from).ok_or(Error::MessageNotFound { id })
    }

    /// Finished messages, newest first.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list(&self, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(false, 0, None, limit, offset).await
    }

    /// How many there are.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count(&self) -> Result<i64> {
        Ok(count(self.store.kernel.census(Duration::ZERO).await?.archived))
    }

    /// Completes a message and keeps it. None when it is not there, or not held by this worker.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive_message(&self, msg_id: i64, worker_id: i64) -> Result<Option<ArchivedMessage>> {
        let fences = self.store.messages().fences(&[msg_id], worker_id).await?;
        Ok(self.store.kernel.archive(&fences).await?.remove(0).map(ArchivedMessage::from))
    }

    /// The same for many. Which of them were archived.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn archive_batch(&self, msg_ids: &[i64], worker_id: i64) -> Result<Vec<i64>> {
        let fences = self.store.messages().fences(msg_ids, worker_id).await?;
        let archived = self.store.kernel.archive(&fences).await?;
        Ok(archived.into_iter().flatten().map(|archived| archived.id).collect())
    }

    /// Dead messages that were delivered at least `max_attempts` times, newest first; 0: all of them.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list_dlq(&self, max_attempts: i32, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(true, max_attempts, None, limit, offset).await
    }

    /// How many those are.
    ///
    /// # Errors
    /// Only the database's own.
    pub async fn count_dlq(&self, max_attempts: i32) -> Result<i64> {
        Ok(count(self.store.kernel.archive_tally(true, max_attempts.into(), None).await?))
    }

    /// Messages that a worker held last, newest first.
    ///
    /// # Errors
    /// `ValidationFailed` for a negative limit or offset.
    pub async fn list_by_worker(&self, worker_id: i64, limit: i64, offset: i64) -> Result<Vec<ArchivedMessage>> {
        self.page(false, 0, Some(worker_id), limit, offset).await
    }

    async fn page(
        &self,
        dead_only: bool,
        attempts: i32,
        worker: Option<i64>,
        limit: i64,
        offset: i64,
    ) -> Result<Vec<ArchivedMessage>> {
        for (what, number) in [("limit", limit), ("offset", offset)] {
            if number < 0 {
                return Err(Error::invalid(format!("the {what} is {number}: it cannot be negative")));
            }
        }
        let page = self.store.kernel.archive_page(dead_only, attempts.into(), worker, limit, offset);
        Ok(page.await?.into_iter().map(ArchivedMessage::from).collect())
    }
}

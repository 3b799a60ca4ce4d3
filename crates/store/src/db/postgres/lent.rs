//! A pooled connection for the length of one act, and the time limit of every statement on it.
//!
//! Invariants: a connection goes back to the pool only when every statement on it was answered and no transaction is open
//! on it. Otherwise it is closed: the next caller would wait behind the unanswered statement, or run inside the open
//! transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool::managed::Object;
use deadpool_postgres::ClientWrapper;

use super::connect::Connector;
use crate::error::{Error, Kind};

/// A connection of the pool, closed instead of returned when it is in an unknown state.
pub(super) struct Lent {
    object: Option<Object<Connector>>,
    /// Set while a statement is unanswered, and for good when its caller has left or its time was up.
    unanswered: AtomicBool,
    /// Set while a transaction is open.
    open: AtomicBool,
    limit: Duration,
}

impl Lent {
    pub(super) fn new(object: Object<Connector>, limit: Duration) -> Self {
        Lent { object: Some(object), unanswered: AtomicBool::new(false), open: AtomicBool::new(false), limit }
    }

    pub(super) fn client(&self) -> &ClientWrapper {
        self.object.as_ref().expect("a lent connection is given up only when it is dropped")
    }

    /// Waits for the answer to a statement, but not longer than the time limit.
    pub(super) async fn answer<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failed> {
        self.answer_within(self.limit, statement).await
    }

    /// The same with a time limit of its own.
    pub(super) async fn answer_within<T>(
        &self,
        limit: Duration,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failed> {
        self.unanswered.store(true, Ordering::Relaxed);
        let answer = answer(limit, statement).await;
        match &answer {
            // The server is frozen or the network is gone, so the idle connections are no better.
            Err(Failed::Silent(_)) => {
                if let Some(pool) = self.object.as_ref().and_then(Object::pool) {
                    pool.retain(|_, _| false);
                }
            }
            // This server takes no writes any more: the next connection goes to one that does.
            Err(Failed::Said(error)) if is_read_only(error) => {}
            _ => self.unanswered.store(false, Ordering::Relaxed),
        }
        answer
    }

    /// Notes that a transaction is open, or no longer.
    pub(super) fn in_transaction(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }
}

fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&tokio_postgres::error::SqlState::READ_ONLY_SQL_TRANSACTION)
}

impl Drop for Lent {
    fn drop(&mut self) {
        if (*self.unanswered.get_mut() || *self.open.get_mut())
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}

/// Why a statement has no result.
pub(super) enum Failed {
    /// No answer came within the time limit.
    Silent(Duration),
    /// The server refused, or the connection broke.
    Said(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Failed::Said(error)
    }
}

/// Waits for the answer to a statement on a connection that is not ours to close.
pub(super) async fn answer<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failed> {
    match tokio::time::timeout(limit, statement).await {
        Ok(answer) => answer.map_err(Failed::Said),
        Err(_) => Err(Failed::Silent(limit)),
    }
}

/// The error for a statement that was not answered in time.
pub(super) fn silent(limit: Duration) -> Error {
    let message = format!("PostgreSQL did not answer a statement within {limit:?}: it is frozen or cannot be reached");
    Error::new(Kind::Unavailable, message)
}

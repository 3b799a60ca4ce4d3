//! Why a command failed: a sentence, and below it what can be done about it.
//!
//! Invariant: what a server says is shown as it is; advice stands beside it and never replaces it.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// Why a command failed.
#[derive(Debug)]
pub struct CliError {
    message: String,
    hints: Vec<String>,
    cause: Cause,
}

#[derive(Debug, PartialEq)]
enum Cause {
    /// Whoever answers the protocol said no, with this code.
    Refused(i32),
    /// Nobody reads what is printed any more.
    ClosedPipe,
    Other,
}

impl CliError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        CliError { message: message.into(), hints: Vec::new(), cause: Cause::Other }
    }

    /// A refusal, in the server's own words.
    pub(crate) fn refused(code: i32, message: String) -> Self {
        let hints = advice(code, &message).map(str::to_owned).into_iter().collect();
        CliError { message, hints, cause: Cause::Refused(code) }
    }

    /// What is printed cannot be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        let cause = if error.kind() == io::ErrorKind::BrokenPipe { Cause::ClosedPipe } else { Cause::Other };
        CliError { cause, ..CliError::new(format!("the output cannot be written: {error}")) }
    }

    /// Says besides what to do, or what was done before.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Whether a lease ended because there was nothing to lease.
    pub(crate) fn is_empty_queue(&self) -> bool {
        self.cause == Cause::Refused(454) && self.message.starts_with("request timeout;")
    }

    /// Whether the reader of the output has gone, as in `| head`: that is no failure of ours.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.cause == Cause::ClosedPipe
    }
}

/// What people can do about a refusal.
fn advice(code: i32, message: &str) -> Option<&'static str> {
    match code {
        400 if message.starts_with("queue does not exist;") => {
            Some("`tenure queue list` shows the queues, `tenure queue create` makes one")
        }
        401 => Some("give a valid key with --key or TENURE_KEY"),
        403 => Some("the key (--key, TENURE_KEY) has no role that allows this here"),
        454 => Some("try again in a moment"),
        500 => Some("the log of the server says why; a command that asks a store itself has none"),
        501 => Some("the server does not know this call: is it older than this command?"),
        _ => None,
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hints.iter().try_for_each(|hint| write!(f, "\n  {hint}"))
    }
}

impl StdError for CliError {}

impl From<tenure_store::Error> for CliError {
    fn from(error: tenure_store::Error) -> Self {
        CliError::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stands_as_it_is_with_advice_below() {
        let error = CliError::refused(401, "api key has expired".to_owned()).with_hint("3 messages were stored");
        assert_eq!(
            error.to_string(),
            "api key has expired\n  give a valid key with --key or TENURE_KEY\n  3 messages were stored"
        );
    }

    #[test]
    fn an_empty_queue_is_told_from_other_refusals_that_may_pass() {
        let said = |code, message: &str| CliError::refused(code, message.to_owned()).is_empty_queue();
        assert!(said(454, "request timeout; no items are in the queue, try again"));
        assert!(!said(454, "queue is overloaded; try again later"));
        assert!(!said(400, "request timeout; no items are in the queue, try again"));
    }

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_full_disk() {
        assert!(CliError::output(&io::ErrorKind::BrokenPipe.into()).is_closed_pipe());
        assert!(!CliError::output(&io::ErrorKind::StorageFull.into()).is_closed_pipe());
    }
}

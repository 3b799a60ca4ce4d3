//! What a call is refused with: a code and a message that clients compare, and what only the log may know.
//!
//! Invariant: what a database says never reaches the wire.

use std::error::Error as StdError;
use std::fmt;

use tenure_store::{Error, Kind};

use crate::wire::Reply;

/// Why a call was not carried out.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: u16,
    pub(crate) message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What a call is answered with.
pub(crate) type Answer<T = Reply> = Result<T, Fault>;

impl Fault {
    fn new(code: u16, message: impl Into<String>) -> Self {
        Fault { code, message: message.into(), source: None }
    }

    /// The request cannot be right.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Fault::new(400, message)
    }

    /// Nobody knows this caller.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Fault::new(401, message)
    }

    /// The caller may not.
    pub(crate) fn forbidden() -> Self {
        Fault::new(403, "access denied")
    }

    /// It cannot be done here: go elsewhere, or create what is missing.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Fault::new(453, message)
    }

    /// Not now: the same request may work later.
    pub(crate) fn retry(message: impl Into<String>) -> Self {
        Fault::new(454, message)
    }

    /// The body, or what the caller wants it to be, cannot be understood.
    pub(crate) fn content(message: impl Into<String>) -> Self {
        Fault::new(455, message)
    }

    /// No RPC has this path.
    pub(crate) fn unknown_path(path: &str) -> Self {
        Fault::new(501, format!("no such method; {path}"))
    }

    /// The request did not arrive whole.
    pub(crate) fn transport(message: impl Into<String>) -> Self {
        Fault::new(512, message)
    }

    /// Something that nobody has thought of: the caller learns nothing, the log everything.
    pub(crate) fn internal(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Fault { source: Some(source.into()), ..Fault::new(500, "Internal Error") }
    }

    /// The same, as something that may work later; the log still learns what it was.
    pub(crate) fn into_retry(self, message: &str) -> Self {
        Fault { source: self.source, ..Fault::retry(message) }
    }

    /// The server is going away.
    pub(crate) fn shutting_down() -> Self {
        Fault::failed("service is shutting down")
    }

    /// A newer version has changed the tables: another server may be new enough. The log says which migration it is.
    pub(crate) fn too_old() -> Self {
        Fault::failed("service is too old for its database; upgrade it")
    }

    /// The text that goes with the code.
    fn code_text(&self) -> &'static str {
        match self.code {
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            453 => "Request Failed",
            454 => "Retry Request",
            455 => "Client Content Error",
            501 => "Not Implemented",
            512 => "Transport Error",
            _ => "Internal Service Error",
        }
    }

    /// The body of the answer.
    pub(crate) fn reply(&self) -> Reply {
        Reply {
            code: self.code.into(),
            code_text: self.code_text().to_owned(),
            message: self.message.clone(),
            ..Reply::default()
        }
    }

    /// What the log may know besides.
    pub(crate) fn source(&self) -> Option<&(dyn StdError + Send + Sync)> {
        self.source.as_deref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

impl From<Error> for Fault {
    /// A database that is away now may be back in a moment; anything else nobody has thought of.
    fn from(error: Error) -> Self {
        let fault = match error.kind() {
            Kind::Overloaded => Fault::retry("queue is overloaded; try again later"),
            // What the kernel says itself may be shown, and nothing of what a database says.
            Kind::InvalidInput if error.source().is_none() => Fault::bad(format!("request is invalid; {error}")),
            Kind::InvalidInput => Fault::bad("request is invalid; it holds a text that cannot be stored"),
            Kind::SchemaNewer => Fault::too_old(),
            _ if error.is_retryable() => Fault::retry("internal error, try your request again"),
            _ => Fault::new(500, "Internal Error"),
        };
        Fault { source: Some(Box::new(error)), ..fault }
    }
}

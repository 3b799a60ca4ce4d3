//! Every provider validation of duroxide, on SQLite.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;
mod validations;

validations::suite!(crate::support::Backend::Sqlite);

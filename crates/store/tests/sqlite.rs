//! Every case of the conformance suite, on SQLite.

mod support;

async fn open() -> tenure_store::conformance::Harness {
    support::file("sqlite:").await
}

tenure_store::suite!(crate::open);

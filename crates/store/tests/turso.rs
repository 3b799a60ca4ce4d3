//! Every case of the conformance suite, on the embedded Turso engine.

mod support;

async fn open() -> tenure_store::conformance::Harness {
    support::file("turso://").await
}

tenure_store::suite!(crate::open);

//! Every case of the conformance suite, on PostgreSQL.

mod support;

async fn open() -> tenure_store::conformance::Harness {
    support::postgres().await
}

tenure_store::suite!(crate::open);

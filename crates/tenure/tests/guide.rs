//! The blocks of the guide that are no Rust: those are doctests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use tenure::{Admin, Consumer, Store};

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_the_guide_runs() {
    let guide = include_str!("../../../docs/guide/library.md");
    let (_, block) = guide.split_once("```sql\n").unwrap();
    let (sql, rest) = block.split_once("```").unwrap();
    assert!(!rest.contains("```sql"), "this test runs the first block only");
    // The block of Rust is a doctest of the crate, and the diagram is not run: a block of another kind must be run by a test.
    let fences: Vec<_> =
        guide.lines().filter_map(|line| line.strip_prefix("```")).filter(|kind| !kind.is_empty()).collect();
    assert_eq!(fences, ["text", "rust", "sql"]);
    assert!(
        !include_str!("../../../docs/guide/choosing-a-backend.md").contains("```"),
        "no test runs blocks of this chapter"
    );
    let dsn = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test tenure`, which starts a throw-away server");
    let schema = format!("guide_{}", std::process::id());
    let store = Store::connect(&format!("{dsn}?schema={schema}")).await.unwrap();
    store.install().await.unwrap();
    Admin::on(&store).create_queue("mail").await.unwrap();
    let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = sql.replace("tenure.", &format!("{schema}."));
    assert_eq!(completed(&client, &sql).await, ["f"], "there is no message 4711");
    let mail = Consumer::on(&store, "mail", "host", 1).await.unwrap().dequeue().await.unwrap();
    assert_eq!(mail.len(), 1, "one has a key, one a delay");
    assert_eq!(mail[0].payload.as_bytes(), br#"{"to": "ada", "path": "C:\\dir"}"#);
    let metrics = Admin::on(&store).get_queue_metrics("mail").await.unwrap();
    assert_eq!((metrics.total_messages, metrics.locked_messages), (3, 1));
    // With the id and the attempt of the lease.
    let held = sql.replace("4711, 1", &format!("{}, {}", mail[0].id, mail[0].read_ct));
    assert_eq!(completed(&client, &held).await, ["t"]);
    assert_eq!(completed(&client, &held).await, ["f"], "it is done already");
}

/// Runs the statements, and answers with what `complete` said.
async fn completed(client: &tokio_postgres::Client, sql: &str) -> Vec<String> {
    let answers = client.simple_query(sql).await.unwrap();
    let rows = answers.iter().filter_map(|answer| match answer {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    rows.filter(|row| row.columns()[0].name() == "complete").map(|row| row.get(0).unwrap().to_owned()).collect()
}

//! Every statement prepares on every backend, pairs agree, and no file lies unused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tenure_store::conformance::statements;

type Described = BTreeMap<&'static str, (Option<usize>, Vec<String>)>;

async fn described(harness: tenure_store::conformance::Harness) -> Described {
    let all = statements::describe(&harness.store).await;
    all.into_iter().map(|(name, params, columns)| (name, (params, columns))).collect()
}

/// Acts that are computed in Rust on SQLite and in the statement on PostgreSQL, and the fetch that need not send what the
/// caller knows, which only saves something over a wire: their shapes differ on purpose.
const DIFFERENT: [&str; 3] = ["message/enqueue", "message/schedule", "turn/fetch"];

#[tokio::test]
async fn pairs_agree_in_parameters_and_columns() {
    let postgres = described(support::postgres().await).await;
    let sqlite = described(support::file("sqlite:").await).await;
    for (name, (params, columns)) in &postgres {
        let Some((sqlite_params, sqlite_columns)) = sqlite.get(name) else { continue };
        if DIFFERENT.contains(name) {
            continue;
        }
        assert_eq!(columns, sqlite_columns, "{name}: columns");
        // The ordinal that only one of the two wants is the last parameter.
        let (params, sqlite_params) = (params.unwrap(), sqlite_params.unwrap());
        assert!(params.abs_diff(sqlite_params) <= 1, "{name}: {params} and {sqlite_params} parameters");
    }
}

#[tokio::test]
async fn turso_prepares_every_statement_with_the_same_columns_as_sqlite() {
    let sqlite = described(support::file("sqlite:").await).await;
    let turso = described(support::file("turso://").await).await;
    assert_eq!(sqlite.keys().collect::<Vec<_>>(), turso.keys().collect::<Vec<_>>());
    for (name, (_, columns)) in sqlite {
        assert_eq!(columns.len(), turso[name].1.len(), "{name}");
    }
}

#[test]
fn every_file_is_a_statement_and_every_statement_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    let mut files = BTreeSet::new();
    for folder in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        let noun = folder.file_name().unwrap().to_str().unwrap().to_owned();
        if noun == "migrations" || noun == "schema" || noun == "duroxide" {
            continue;
        }
        for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()) {
            let file = file.to_str().unwrap().trim_end_matches(".sql").to_owned();
            files.insert(format!("{noun}/{}", file.trim_end_matches(".pg").trim_end_matches(".sqlite")));
        }
    }
    let known: BTreeSet<String> = statements::names().into_iter().map(str::to_owned).collect();
    assert_eq!(files, known);
}

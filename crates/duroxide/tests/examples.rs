//! The example program runs unchanged on SQLite and on PostgreSQL; it asserts what it prints.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples before it runs tests, next to the folder of the test programs.
fn orders(dsn: &str) {
    let tests = std::env::current_exe().unwrap();
    let program: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples/orders");
    let output = Command::new(program).arg(dsn).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("a parcel of apple and pear for 9: approved"), "{printed}");
    assert!(printed.contains("2 days counted"), "{printed}");
}

#[test]
fn the_example_runs_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    orders(&format!("sqlite:{}", folder.path().join("orders.db").display()));
}

#[test]
fn the_example_runs_unchanged_on_postgres() {
    let server = std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test`, which starts a throw-away server");
    orders(&format!("{server}?schema=orders_{}", std::process::id()));
}

//! Rules that matter are tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::path::{Path, PathBuf};

use tenure_store::conformance::statements;

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 30, "the sources were not found");
    found
}

#[test]
fn files_stay_short() {
    for (path, text) in sources() {
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        assert!(lines <= 600, "{} has {lines} lines without its tests: split it", path.display());
    }
}

#[test]
fn functions_stay_short() {
    for (path, text) in sources() {
        let mut began = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let code = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let code = code.trim_start_matches("async ");
            if code.starts_with("fn ") && line.ends_with('{') && began.is_none() {
                began = Some((number, indent));
            } else if let Some((start, depth)) = began
                && line.trim() == "}"
                && indent == depth
            {
                let length = number - start;
                assert!(length <= 70, "{}:{} has {length} lines: split it", path.display(), start + 1);
                began = None;
            }
        }
    }
}

#[test]
fn only_the_adapters_name_a_driver() {
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, text) in sources() {
        let inside = path.canonicalize().unwrap().strip_prefix(kernel.canonicalize().unwrap()).map(PathBuf::from);
        let Ok(inside) = inside else { continue };
        let allowed = inside.starts_with("db") || ["dsn.rs", "value.rs"].iter().any(|file| inside == Path::new(file));
        if !allowed {
            for driver in ["tokio_postgres", "rusqlite::", "deadpool", "turso::Connection", "turso::Value"] {
                assert!(!text.contains(driver), "{} names {driver}", inside.display());
            }
        }
    }
}

#[test]
fn acts_swallow_no_errors() {
    for (path, text) in sources() {
        let shown = path.display().to_string();
        if shown.contains("store/src/ops") || shown.contains("store/src/db") {
            for (number, line) in text.lines().enumerate() {
                let swallowed = line.contains(".ok();") || line.contains("let _ =");
                assert!(!swallowed, "{shown}:{}: an error is swallowed", number + 1);
            }
        }
    }
}

#[test]
fn dialects_part_in_few_places() {
    let mut branches = 0;
    for (path, text) in sources() {
        if path.display().to_string().contains("store/src/ops") {
            branches += text.matches("Dialect::Postgres").count();
        }
    }
    assert!(branches <= 5, "{branches} branches on the dialect in the acts: put the difference into the SQL");
}

#[test]
fn statements_ask_for_the_time_in_one_way() {
    // A function of the database has no parameter for the time.
    for (name, text) in statements::texts().into_iter().filter(|(name, _)| !name.starts_with("migrations")) {
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        for clock in ["now()", "current_timestamp", "clock_timestamp", "unixepoch", "datetime(", "strftime"] {
            assert!(!code.contains(clock), "{name} uses {clock}: write {{now}}");
        }
        assert!(!code.contains("select *") || name.contains("promote"), "{name}: name the columns");
    }
}

#[test]
fn only_sqlite_texts_have_several_statements() {
    for (name, text) in statements::texts() {
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        let several = name.ends_with(".pg") && !name.starts_with("migrations") && statements::step_count(&code) > 1;
        assert!(!several, "{name} is more than one statement");
        let literal = code.split('\'').skip(1).step_by(2).any(|literal| literal.contains(';'));
        assert!(!literal, "{name}: no literal may hold a semicolon, where texts are split");
    }
}

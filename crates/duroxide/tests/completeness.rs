//! The list of validations is the one of duroxide: nothing is left out, and nothing is listed that is no more.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod validations;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::validations::{LIST, SHORT_POLLERS};

type Names = BTreeMap<String, BTreeSet<String>>;

/// The folder of duroxide's validations, wherever Cargo keeps them.
fn folder() -> PathBuf {
    // Only what this machine builds: the packages of other systems were never downloaded.
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let duroxide = packages.iter().find(|package| package["name"] == "duroxide").unwrap();
    Path::new(duroxide["manifest_path"].as_str().unwrap()).with_file_name("src").join("provider_validation")
}

/// What duroxide has: every public function that takes a factory or a provider, by file.
fn published() -> Names {
    let mut published = Names::new();
    for path in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&path).unwrap();
        for item in text.split("\npub async fn ").skip(1) {
            let signature = item.split('{').next().unwrap();
            let name = signature.split(['<', '(']).next().unwrap();
            if signature.contains("ProviderFactory") || signature.contains("dyn Provider") {
                let category = path.file_stem().unwrap().to_str().unwrap().to_owned();
                published.entry(category).or_default().insert(name.to_owned());
            }
        }
    }
    published
}

/// What we know of: what is run, and what is not run with a reason.
fn known() -> Names {
    let mut known = Names::new();
    for (category, cases) in LIST.iter().chain(&[("long_polling", SHORT_POLLERS)]) {
        for case in *cases {
            let new = known.entry((*category).to_owned()).or_default().insert((*case).to_owned());
            assert!(new, "{category}::{case} is listed twice");
        }
    }
    known
}

#[test]
fn every_validation_of_duroxide_is_listed() {
    let (published, known) = (published(), known());
    let none = BTreeSet::new();
    let mut complaints = Vec::new();
    for category in published.keys().chain(known.keys()).collect::<BTreeSet<_>>() {
        let theirs = published.get(category).unwrap_or(&none);
        let ours = known.get(category).unwrap_or(&none);
        complaints.extend(theirs.difference(ours).map(|name| format!("{category}::{name} is not in our list")));
        complaints.extend(ours.difference(theirs).map(|name| format!("{category}::{name} is not in duroxide")));
        if theirs.len() != ours.len() {
            complaints.push(format!("{category}: duroxide has {}, our list {}", theirs.len(), ours.len()));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(published.len(), 20, "categories");
    assert_eq!(published.values().map(BTreeSet::len).sum::<usize>(), 233, "validations");
}

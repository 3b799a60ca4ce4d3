//! Every example runs to its end and says what it should, as a new user would see it.

use std::process::Command;

#[test]
fn every_example_runs_and_says_what_it_should() {
    let program = std::env::current_exe().expect("a test has a path");
    let folder = program.ancestors().nth(2).expect("tests lie in target/<profile>/deps").join("examples");
    for (name, says) in [
        ("basic", "in the archive: 1"),
        ("delayed", "ms: at a time"),
        ("batch", "2000000 pixels out"),
        ("keys", "order-1: created, paid, sent"),
        ("transaction", "after the rollback: 0 messages\norder 2 is shipped"),
        ("run", "196 completed, 20 tried again, 4 buried"),
        (
            "dead_letters",
            "died after 3 attempts: failed in attempt 3, the last one: the printer is on fire\nreplayed: 1",
        ),
    ] {
        let output = Command::new(folder.join(name))
            .env_remove("TENURE_DSN")
            .output()
            .unwrap_or_else(|error| panic!("{name} is not built ({error}): run `cargo build -p tenure --examples`"));
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name} failed: {complained}");
        assert!(said.contains(says), "{name} says {said}");
    }
}

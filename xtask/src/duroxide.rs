//! The benchmark of the duroxide provider: ours, the rivals and the free store that marks the ceiling, under duroxide's own
//! stress tests, in turns, on one PostgreSQL; medians, ratios and floors.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tenure_cluster::{Cluster, Durability};

use crate::cargo::{Cargo, Result, root};

/// What a run prints: orchestrations a second, success in percent, true latency.
#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    success: f64,
    p50: f64,
}

/// A scenario on PostgreSQL and its floors: of the ceiling, of the better rival, of half the better rival's latency.
struct Scenario {
    name: &'static str,
    of_ceiling: Option<f64>,
    of_rival: Option<f64>,
    halves_latency: bool,
}

const fn scenario(name: &'static str, of_ceiling: Option<f64>, of_rival: Option<f64>) -> Scenario {
    Scenario { name, of_ceiling, of_rival, halves_latency: false }
}

const POSTGRES: [Scenario; 7] = [
    scenario("A", Some(0.92), None),
    scenario("B", Some(0.92), None),
    scenario("C", None, Some(2.0)),
    scenario("D", None, Some(2.0)),
    scenario("S", None, Some(2.0)),
    Scenario { name: "L", of_ceiling: None, of_rival: Some(2.0), halves_latency: true },
    scenario("large", None, Some(2.0)),
];
const SQLITE: [&str; 3] = ["C", "D", "S"];

/// Runs the scenarios that are named, or all.
pub(crate) fn bench(only: &[String], rounds: usize, seconds: u64) -> Result<()> {
    let bench = Bench::build(rounds, seconds)?;
    let manifest = root().join("bench/duroxide/rivals/Cargo.toml");
    Cargo::new(&["build", "--release", "--manifest-path"]).args(&[&manifest]).run()?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut missed = 0;
    for scenario in POSTGRES.iter().filter(|scenario| wanted(scenario.name)) {
        missed += bench.postgres(scenario)?;
    }
    if wanted("sequential") {
        let took = bench.once(&bench.ours, &["tenure", "sequential"], "sequential")?.rate;
        missed += verdict(&format!("sequential: {took:.2} ms an activity"), took <= 5.0);
    }
    if wanted("idle") {
        let queries = bench.idle()?;
        missed += verdict(&format!("idle: {queries:.2} queries a second"), queries <= 2.0);
    }
    for name in SQLITE.into_iter().filter(|name| wanted(&format!("sqlite-{name}"))) {
        missed += bench.sqlite(name)?;
    }
    if missed == 0 { Ok(()) } else { Err(format!("{missed} floors were missed").into()) }
}

/// Runs duroxide's stress tests on our provider alone, on both backends.
pub(crate) fn stress(seconds: u64) -> Result<()> {
    let bench = Bench::build(1, seconds)?;
    let mut missed = 0;
    for Scenario { name, .. } in &POSTGRES {
        let database = format!("stress_{}", name.to_lowercase());
        let on_postgres = bench.once(&bench.ours, &["tenure", name], &database)?;
        let on_sqlite = bench.in_file(&bench.ours, &["tenure", name])?;
        for (backend, figures) in [("postgres", on_postgres), ("sqlite", on_sqlite)] {
            let text = format!("{name:5} {backend:8} {:7.1} orch/s {:6.2} %", figures.rate, figures.success);
            missed += verdict(&text, figures.success >= 100.0);
        }
    }
    if missed == 0 { Ok(()) } else { Err(format!("{missed} runs were not wholly successful").into()) }
}

/// Prints a line; 1 if it tells of a missed floor.
fn verdict(text: &str, holds: bool) -> usize {
    println!("{} {text}", if holds { "ok  " } else { "MISS" });
    usize::from(!holds)
}

struct Bench {
    cluster: Cluster,
    ours: PathBuf,
    rivals: PathBuf,
    seconds: u64,
    rounds: usize,
}

impl Bench {
    /// Builds our program and starts a server.
    fn build(rounds: usize, seconds: u64) -> Result<Self> {
        Cargo::new(&["build", "--release", "--package", "tenure-bench-duroxide"]).run()?;
        Ok(Bench {
            cluster: Cluster::start(Durability::Full)?,
            ours: root().join("target/release/tenure-bench-duroxide"),
            rivals: root().join("bench/duroxide/rivals/target/release/rivals"),
            seconds,
            rounds,
        })
    }

    fn postgres(&self, scenario: &Scenario) -> Result<usize> {
        let name = scenario.name;
        let mut arms = vec![(&self.rivals, "pg"), (&self.rivals, "pg-opt"), (&self.ours, "tenure")];
        // The free store knows only what the stress tests need.
        if name != "large" {
            arms.push((&self.ours, "ceiling"));
        }
        let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
        for round in 0..self.rounds {
            for (program, which) in &arms {
                let database = format!("{}_{}_{round}", which.replace('-', "_"), name.to_lowercase());
                runs.entry(which).or_default().push(self.once(program, &[which, name], &database)?);
            }
        }
        let medians: BTreeMap<&str, Figures> = runs.iter().map(|(which, runs)| (*which, median(runs))).collect();
        for (which, figures) in &medians {
            let Figures { rate, success, p50 } = figures;
            println!("     {name:5} {which:8} {rate:7.1} orch/s  {success:6.2} %  p50 {p50:7.1} ms");
        }
        let (ours, pg, opt) = (medians["tenure"], medians["pg"], medians["pg-opt"]);
        let better = pg.rate.max(opt.rate);
        let mut missed = verdict(&format!("{name}: success {:.2} %", ours.success), ours.success >= 100.0);
        if let (Some(floor), Some(ceiling)) = (scenario.of_ceiling, medians.get("ceiling")) {
            let ratio = ours.rate / ceiling.rate;
            missed += verdict(&format!("{name}: {ratio:.3} of the ceiling (floor {floor})"), ratio >= floor);
        }
        let ratio = ours.rate / better;
        match scenario.of_rival {
            Some(floor) => {
                missed += verdict(&format!("{name}: {ratio:.2} x the better rival (floor {floor})"), ratio >= floor);
            }
            None => println!("     {name}: {ratio:.2} x the better rival"),
        }
        if scenario.halves_latency {
            let ratio = ours.p50 / pg.p50.min(opt.p50);
            missed += verdict(&format!("{name}: {ratio:.2} of the better rival's p50 (at most 0.5)"), ratio <= 0.5);
        }
        Ok(missed)
    }

    fn sqlite(&self, name: &str) -> Result<usize> {
        let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
        for _ in 0..self.rounds {
            for (program, which) in [(&self.rivals, "sqlite"), (&self.ours, "tenure")] {
                runs.entry(which).or_default().push(self.in_file(program, &[which, name])?);
            }
        }
        let (ours, theirs) = (median(&runs["tenure"]), median(&runs["sqlite"]));
        println!("     sqlite-{name}: {:.1} orch/s, duroxide's own {:.1}", ours.rate, theirs.rate);
        let ratio = ours.rate / theirs.rate;
        let missed = verdict(&format!("sqlite-{name}: success {:.2} %", ours.success), ours.success >= 100.0);
        Ok(missed + verdict(&format!("sqlite-{name}: {ratio:.2} x duroxide's own (floor 2)"), ratio >= 2.0))
    }

    /// One run on a fresh SQLite file.
    fn in_file(&self, program: &PathBuf, args: &[&str]) -> Result<Figures> {
        let folder = std::env::temp_dir().join(format!("tenure-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let figures = self.figures(program, args, &format!("sqlite:{}", folder.join("d.db").display()));
        std::fs::remove_dir_all(&folder)?;
        figures
    }

    /// One run on a fresh database of its own.
    fn once(&self, program: &PathBuf, args: &[&str], database: &str) -> Result<Figures> {
        let dsn = self.cluster.create_database(database)?;
        self.cluster.ask("checkpoint")?;
        let figures = self.figures(program, args, &dsn);
        self.cluster.ask(&format!("drop database {database} with (force)"))?;
        figures
    }

    fn figures(&self, program: &PathBuf, args: &[&str], dsn: &str) -> Result<Figures> {
        let output = Command::new(program).args(args).arg(self.seconds.to_string()).arg(dsn).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> =
            text.lines().last().unwrap_or_default().split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers.as_slice() {
            [rate, success, p50, _] => Ok(Figures { rate: *rate, success: *success, p50: *p50 }),
            _ => Err(format!("{args:?} failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// Queries a second of an idle runtime: every statement of ours is a transaction of its own.
    fn idle(&self) -> Result<f64> {
        // Its transactions would be counted too: 20 or more after the tables have been made.
        self.cluster.ask("alter system set autovacuum = off")?;
        self.cluster.ask("select pg_reload_conf()")?;
        let dsn = self.cluster.create_database("idle")?;
        let seconds = 20;
        let mut program = Command::new(&self.ours);
        program.args(["tenure", "idle", &seconds.to_string(), &dsn]).stdout(Stdio::piped());
        let mut running = program.spawn()?;
        let transactions = || -> Result<f64> {
            // The server's own counters come in up to a second late.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            let text = "select xact_commit + xact_rollback from pg_stat_database where datname = 'idle'";
            Ok(self.cluster.ask(text)?.parse()?)
        };
        let mut before = 0.0;
        let mut queries = None;
        for line in BufReader::new(running.stdout.take().ok_or("no output")?).lines() {
            match line?.as_str() {
                "ready" => before = transactions()?,
                "over" => queries = Some((transactions()? - before) / f64::from(seconds)),
                _ => {}
            }
        }
        running.wait()?;
        queries.ok_or_else(|| "the idle runtime ended early".into())
    }
}

fn median(runs: &[Figures]) -> Figures {
    let middle = |read: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(read).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    // One run with a failure is a failure.
    let success = runs.iter().map(|run| run.success).fold(100.0, f64::min);
    Figures { rate: middle(|run| run.rate), success, p50: middle(|run| run.p50) }
}

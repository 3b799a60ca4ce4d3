//! The scenarios, and the faults that a seed plans for each.

use std::fmt;
use std::time::Duration;

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::proxy::Mode;

/// Where messages are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// One PostgreSQL behind a proxy.
    Postgres,
    /// A primary and a synchronous standby, each behind a proxy.
    Pair,
    /// A SQLite file.
    Sqlite,
    /// A SQLite file on a disk that is soon full.
    SmallDisk,
}

/// A database, its users, and the faults that hit them.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) kept: Kept,
    /// Whether processes use the library.
    pub(crate) library: bool,
    /// How many servers there are.
    pub(crate) servers: usize,
    /// Whether processes are killed and stopped.
    processes: bool,
    store: &'static [Kind],
}

/// A kind of fault of the store or of the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Restart,
    Terminate,
    FreezeDatabase,
    Cut,
    HalfOpen,
    Mute,
    Stall,
    FreezeNetwork,
    FailOver,
    HoldLock,
    FillDisk,
}

/// All of them, in the order in which they are run.
pub(crate) const SCENARIOS: [Scenario; 7] = [
    Scenario {
        name: "postgres-library",
        kept: Kept::Postgres,
        library: true,
        servers: 0,
        processes: true,
        store: &[Kind::Restart, Kind::Terminate, Kind::FreezeDatabase],
    },
    Scenario {
        name: "postgres-network",
        kept: Kept::Postgres,
        library: true,
        servers: 0,
        processes: false,
        store: &[Kind::Cut, Kind::HalfOpen, Kind::Mute, Kind::Stall, Kind::FreezeNetwork],
    },
    Scenario {
        name: "postgres-server",
        kept: Kept::Postgres,
        library: false,
        servers: 2,
        processes: true,
        store: &[
            Kind::Restart,
            Kind::Terminate,
            Kind::Cut,
            Kind::HalfOpen,
            Kind::Mute,
            Kind::Stall,
            Kind::FreezeNetwork,
            Kind::FreezeDatabase,
        ],
    },
    Scenario {
        name: "failover",
        kept: Kept::Pair,
        library: true,
        servers: 1,
        processes: false,
        store: &[Kind::FailOver],
    },
    Scenario {
        name: "sqlite-library",
        kept: Kept::Sqlite,
        library: true,
        servers: 0,
        processes: true,
        store: &[Kind::HoldLock],
    },
    Scenario {
        name: "sqlite-server",
        kept: Kept::Sqlite,
        library: false,
        servers: 1,
        processes: true,
        store: &[Kind::HoldLock],
    },
    Scenario {
        name: "full-disk",
        kept: Kept::SmallDisk,
        library: true,
        servers: 1,
        processes: true,
        store: &[Kind::FillDisk, Kind::FillDisk, Kind::HoldLock],
    },
];

/// How the old primary goes, in turn.
const GOING: [Going; 3] = [Going::Killed, Going::Frozen, Going::Unreachable];

/// How the old primary goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// All its processes are killed.
    Killed,
    /// All its processes are stopped.
    Frozen,
    /// Connections to it stay open, and nothing passes.
    Unreachable,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillWorker(usize),
    StopWorker(usize, Duration),
    KillServer(usize),
    StopServer(usize, Duration),
    RestartServer(usize),
    RestartDatabase(Duration),
    TerminateBackends,
    FreezeDatabase(Duration),
    Network(Mode, Duration),
    FailOver(Going),
    HoldLock(Duration),
    FillDisk(Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::KillWorker(slot) => write!(f, "kill worker {slot}"),
            Fault::StopWorker(slot, time) => write!(f, "stop worker {slot} for {time:?}"),
            Fault::KillServer(slot) => write!(f, "kill server {slot}"),
            Fault::StopServer(slot, time) => write!(f, "stop server {slot} for {time:?}"),
            Fault::RestartServer(slot) => write!(f, "restart server {slot}"),
            Fault::RestartDatabase(away) => write!(f, "crash the database and restart it after {away:?}"),
            Fault::TerminateBackends => write!(f, "terminate all backends"),
            Fault::FreezeDatabase(time) => write!(f, "freeze the database for {time:?}"),
            Fault::Network(mode, time) => write!(f, "network {mode:?} for {time:?}"),
            Fault::FailOver(going) => write!(f, "fail over, the old primary is {going:?}"),
            Fault::HoldLock(time) => write!(f, "hold the write lock for {time:?}"),
            Fault::FillDisk(time) => write!(f, "fill the disk for {time:?}"),
        }
    }
}

/// The faults of a run, each with the time since its beginning: those of processes, and those of the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) processes: Vec<(Duration, Fault)>,
    pub(crate) store: Vec<(Duration, Fault)>,
    /// How long the load goes on: until the last fault is over, and then without faults.
    pub(crate) length: Duration,
}

/// How long everything runs before the first fault.
const CALM: Duration = Duration::from_secs(3);
/// How long everything runs after the last fault. Where rows are locked, the order of a lane is compared only from 10 s after a
/// fault on.
pub(crate) const SETTLED: Duration = Duration::from_secs(10);
const CALM_AFTER: Duration = Duration::from_secs(18);
/// How long the load goes on after a fail-over before the next one.
const BETWEEN_FAIL_OVERS: u64 = 12_000;

impl Scenario {
    /// The same seed plans the same faults.
    pub(crate) fn plan(&self, seed: u64, length: Duration, workers: usize) -> Plan {
        let name = self.name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut random = StdRng::seed_from_u64(seed ^ name);
        let mut plan = Plan { processes: Vec::new(), store: Vec::new(), length: CALM_AFTER };
        let mut at = CALM + ms(random.random_range(0..2000));
        while self.processes && at < length {
            let fault = self.process_fault(&mut random, workers);
            plan.processes.push((at, fault));
            at += ms(random.random_range(2000..4500));
        }
        let mut at = CALM;
        let first = random.random_range(0..self.store.len());
        let kinds = if self.store == [Kind::FailOver] { GOING.len() } else { self.store.len() };
        // In turn and not by chance, and for longer than asked if need be: every run has each of them.
        for turn in 0.. {
            if at >= length && turn >= kinds {
                break;
            }
            let fault = store_fault(self.store[(first + turn) % self.store.len()], turn, &mut random);
            plan.store.push((at, fault));
            let gap = if matches!(fault, Fault::FailOver(_)) { BETWEEN_FAIL_OVERS } else { 1500 };
            at += lasts(fault) + ms(gap + random.random_range(0..2000));
        }
        plan.length += at.max(length);
        plan
    }

    fn process_fault(&self, random: &mut StdRng, workers: usize) -> Fault {
        let time = ms(random.random_range(500..6000));
        let of_server = self.servers > 0 && (!self.library || random.random_bool(0.3));
        match random.random_range(0..10) {
            0..4 if of_server => Fault::KillServer(random.random_range(0..self.servers)),
            4..7 if of_server => Fault::StopServer(random.random_range(0..self.servers), time),
            7..9 if of_server => Fault::RestartServer(random.random_range(0..self.servers)),
            0..6 => Fault::KillWorker(random.random_range(0..workers)),
            _ => Fault::StopWorker(random.random_range(0..workers), time),
        }
    }
}

fn store_fault(kind: Kind, turn: usize, random: &mut StdRng) -> Fault {
    let time = ms(random.random_range(500..6000));
    match kind {
        Kind::Restart => Fault::RestartDatabase(time / 3),
        Kind::Terminate => Fault::TerminateBackends,
        Kind::FreezeDatabase => Fault::FreezeDatabase(time),
        Kind::Cut => Fault::Network(Mode::Cut, time / 4),
        Kind::HalfOpen => Fault::Network(Mode::HalfOpen, time),
        Kind::Mute => Fault::Network(Mode::Mute, time / 2),
        Kind::Stall => Fault::Network(Mode::Stall(ms(random.random_range(50..800))), time),
        Kind::FreezeNetwork => Fault::Network(Mode::Freeze, time),
        Kind::FailOver => Fault::FailOver(GOING[turn % GOING.len()]),
        // Up to 18 s: longer than any call may wait for the lock.
        Kind::HoldLock => Fault::HoldLock(time * 3),
        Kind::FillDisk => Fault::FillDisk(time),
    }
}

fn lasts(fault: Fault) -> Duration {
    match fault {
        Fault::RestartDatabase(time)
        | Fault::FreezeDatabase(time)
        | Fault::Network(_, time)
        | Fault::HoldLock(time)
        | Fault::FillDisk(time) => time,
        _ => Duration::ZERO,
    }
}

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CALM_AFTER, Fault, GOING, Plan, SCENARIOS};

    #[test]
    fn same_seed_plans_the_same_faults() {
        for scenario in SCENARIOS {
            let plan = |seed| scenario.plan(seed, Duration::from_secs(60), 6);
            assert_eq!(plan(7), plan(7));
            assert_ne!(plan(7), plan(8));
        }
    }

    #[test]
    fn short_run_has_every_kind_of_fault() {
        for scenario in SCENARIOS {
            for seed in 0..50 {
                let Plan { store, length, .. } = scenario.plan(seed, Duration::from_secs(1), 6);
                let kinds: Vec<_> = store.iter().map(|(_, fault)| std::mem::discriminant(fault)).collect();
                let goings = GOING.iter().filter(|going| store.iter().any(|(_, f)| *f == Fault::FailOver(**going)));
                let expected = if scenario.name == "failover" { 3 } else { scenario.store.len() };
                assert!(kinds.len() >= expected, "{}: {store:?}", scenario.name);
                assert_eq!(goings.count(), if scenario.name == "failover" { 3 } else { 0 });
                assert!(store.iter().all(|(at, _)| *at + CALM_AFTER < length));
            }
        }
    }
}

//! One scenario: load, faults, healing, drain, and what is left.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tenure_chaos::history::{Event, Item, Recorder, Rules, State, micros};
use tenure_store::{Outcome, Settings, Store};
use tokio::sync::Mutex;

use crate::Result;
use crate::http::Client;
use crate::job::{Job, KEPT, KEYED, LEASE, LOOPED, PLAIN, Role, WEB, WIDE};
use crate::process::{LIBRARY, Server, Slot};
use crate::proxy::Mode;
use crate::scenario::{Fault, Kept, Plan, SETTLED, Scenario};
use crate::store::Database;

/// How long a process may take to end when it is asked to.
const ENDING: Duration = Duration::from_secs(45);
/// Worker processes that are clients of each server.
const CLIENTS: usize = 2;
/// How long the drain may take.
const DRAINING: Duration = Duration::from_secs(60);
/// A clock that was moved by more than this makes a history worthless.
const STEPPED: Duration = Duration::from_millis(100);

/// Everything that runs.
struct World {
    recorder: Recorder,
    database: Mutex<Database>,
    slots: Mutex<Vec<Slot>>,
    servers: Mutex<Vec<Server>>,
}

/// Runs a scenario, and leaves its history in the folder. Whether it could be run here.
pub(crate) async fn run(scenario: &Scenario, seed: u64, length: Duration, folder: &Path) -> Result<bool> {
    let plan = scenario.plan(seed, length, workers(scenario));
    let Some(database) = Database::start(scenario.kept, plan.length).await? else { return Ok(false) };
    let recorder = Recorder::open(folder, "nemesis")?;
    let (began, wall) = (Instant::now(), SystemTime::now());
    write_rules(&recorder, scenario, &database);
    prepare(scenario, &database, &recorder).await?;
    let (dsn, is_postgres) = (database.dsn(), database.is_postgres());
    let servers = tokio::task::block_in_place(|| {
        (0..scenario.servers).map(|number| Server::start(number, &dsn, folder)).collect::<Result<Vec<_>>>()
    })?;
    if let Some(server) = servers.first() {
        create_web_queues(&server.address(), &recorder).await?;
    }
    let job = |role: Role, server: Option<&Server>| Job {
        role,
        process: String::new(),
        folder: folder.to_owned(),
        place: server.map_or_else(|| dsn.clone(), Server::address),
        server: server.map(|server| server.name().to_owned()),
        seed,
        limit: if is_postgres { Duration::from_secs(12) } else { Duration::from_secs(13) },
    };
    let mut jobs: Vec<Job> = Vec::new();
    if scenario.library {
        jobs.extend(LIBRARY.map(|role| job(role, None)));
    }
    for server in &servers {
        jobs.extend((0..CLIENTS).map(|_| job(Role::Http, Some(server))));
    }
    show(&plan);
    let drains: Vec<Job> = [
        scenario.library.then(|| job(Role::Drain, None)),
        servers.first().map(|server| job(Role::HttpDrain, Some(server))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let slots =
        jobs.into_iter().enumerate().map(|(number, job)| Slot::start(job, number)).collect::<Result<Vec<_>>>()?;
    let world = Arc::new(World {
        recorder,
        database: Mutex::new(database),
        slots: Mutex::new(slots),
        servers: Mutex::new(servers),
    });
    world.suffer(plan).await?;
    world.finale(drains).await?;
    let drift = wall.elapsed().unwrap_or_default().abs_diff(began.elapsed());
    if drift > STEPPED {
        return Err(format!("the machine's clock was moved by {drift:?} during the run: run it again").into());
    }
    Ok(true)
}

/// How many worker processes a scenario has.
fn workers(scenario: &Scenario) -> usize {
    CLIENTS * scenario.servers + if scenario.library { LIBRARY.len() } else { 0 }
}

fn write_rules(recorder: &Recorder, scenario: &Scenario, database: &Database) {
    // On SQLite writers come one after the other, and no row is locked; a server gives messages of clients that have
    // gone back uncounted.
    let settles = database.is_postgres() || scenario.servers > 0;
    let settle = settles.then_some(micros(SETTLED));
    recorder.write(Event::Rules(Rules { slack: 100_000, late: 3_000_000, settle }));
}

fn show(plan: &Plan) {
    let mut all: Vec<_> = plan.processes.iter().chain(&plan.store).collect();
    all.sort_by_key(|(at, _)| *at);
    for (at, fault) in all {
        println!("  {:>6.1} s  {fault}", at.as_secs_f64());
    }
}

/// Creates the tables and the queues of the library.
async fn prepare(scenario: &Scenario, database: &Database, recorder: &Recorder) -> Result<()> {
    let store = Store::connect(&database.direct()).await?;
    store.install().await?;
    if !scenario.library {
        return Ok(());
    }
    for (name, keeps) in [(PLAIN, false), (KEPT, true), (LOOPED, false), (KEYED, true)] {
        let retain_completed = keeps.then_some(Duration::from_secs(3600));
        let settings = Settings { lease: LEASE, max_attempts: Some(30), retain_completed, ..Settings::default() };
        store.queue_create(name, settings).await?;
        recorder.write(Event::Queue { name: name.to_owned(), keeps });
    }
    Ok(())
}

async fn create_web_queues(address: &str, recorder: &Recorder) -> Result<()> {
    let mut client = Client::new(address);
    for (name, partitions) in [(WEB, 1), (WIDE, 3)] {
        let lease = format!("{}s", LEASE.as_secs());
        let body = json!({
            "queue_name": name, "lease_timeout": lease, "expire_timeout": "1h", "requested_partitions": partitions,
        });
        client.done("queues.create", &body).await?;
        recorder.write(Event::Queue { name: name.to_owned(), keeps: false });
    }
    Ok(())
}

impl World {
    /// Both tracks of faults, side by side.
    async fn suffer(self: &Arc<Self>, plan: Plan) -> Result<()> {
        let began = tokio::time::Instant::now();
        let end = began + plan.length;
        let track = |faults: Vec<(Duration, Fault)>| {
            let world = self.clone();
            tokio::spawn(async move {
                for (at, fault) in faults {
                    tokio::time::sleep_until(began + at).await;
                    world.strike(fault).await.map_err(|error| format!("{fault}: {error}"))?;
                }
                Ok::<_, String>(())
            })
        };
        let (processes, store) = (track(plan.processes), track(plan.store));
        let (processes, store) = (processes.await?, store.await?);
        processes.and(store)?;
        tokio::time::sleep_until(end).await;
        Ok(())
    }

    async fn strike(&self, fault: Fault) -> Result<()> {
        self.recorder.write(Event::Fault { what: fault.to_string() });
        match fault {
            Fault::KillWorker(slot) => {
                let mut slots = self.slots.lock().await;
                slots[slot].kill(&self.recorder)?;
                slots[slot].restart()?;
            }
            Fault::StopWorker(slot, time) => self.slots.lock().await[slot].stop(&self.recorder, time).await?,
            Fault::KillServer(slot) => {
                let mut servers = self.servers.lock().await;
                servers[slot].kill(&self.recorder)?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                tokio::task::block_in_place(|| servers[slot].restart(&self.recorder))?;
            }
            Fault::StopServer(slot, time) => self.servers.lock().await[slot].stop(&self.recorder, time).await?,
            Fault::RestartServer(slot) => {
                let mut servers = self.servers.lock().await;
                tokio::task::block_in_place(|| servers[slot].terminate(&self.recorder))?;
                tokio::task::block_in_place(|| servers[slot].restart(&self.recorder))?;
            }
            Fault::RestartDatabase(away) => self.database.lock().await.restart(away)?,
            Fault::TerminateBackends => self.database.lock().await.terminate()?,
            Fault::FreezeDatabase(time) => self.database.lock().await.freeze(time).await?,
            Fault::Network(mode, time) => {
                self.database.lock().await.network(mode);
                tokio::time::sleep(time).await;
                self.database.lock().await.network(Mode::Pass);
            }
            Fault::FailOver(going) => self.database.lock().await.fail_over(going).await?,
            Fault::HoldLock(time) => self.hold_lock(time).await?,
            Fault::FillDisk(time) => self.database.lock().await.fill(time).await?,
        }
        self.recorder.write(Event::Fault { what: format!("over: {fault}") });
        Ok(())
    }

    /// Another process holds SQLite's write lock.
    async fn hold_lock(&self, time: Duration) -> Result<()> {
        let file = self.database.lock().await.file()?.to_owned();
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.arg("hold-lock").arg(file).arg(time.as_millis().to_string());
        let status = tokio::task::block_in_place(|| command.status())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the process that holds the lock ended with {status}").into())
        }
    }

    /// Lets everything heal, ends the workers, drains the queues, and records what is left.
    async fn finale(&self, drains: Vec<Job>) -> Result<()> {
        self.recorder.write(Event::Ending);
        let mut slots = self.slots.lock().await;
        slots.iter_mut().for_each(Slot::ask_to_end);
        let ended = Instant::now() + ENDING;
        for slot in slots.iter_mut() {
            tokio::task::block_in_place(|| slot.end(&self.recorder, ended.saturating_duration_since(Instant::now())))?;
        }
        slots.clear();
        let draining = drains.into_iter().enumerate().map(|(number, job)| Slot::start(job, number));
        let mut draining = draining.collect::<Result<Vec<_>>>()?;
        let store = Store::connect(&self.database.lock().await.direct()).await?;
        let until = Instant::now() + DRAINING;
        while !is_empty(&store).await? && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        draining.iter_mut().for_each(Slot::ask_to_end);
        for slot in &mut draining {
            tokio::task::block_in_place(|| slot.end(&self.recorder, ENDING))?;
        }
        self.record_what_is_left(&store).await
    }

    async fn record_what_is_left(&self, store: &Store) -> Result<()> {
        const PAGE: i64 = 1000;
        let found = |payload: &[u8], id: i64, state: State| {
            let uid =
                serde_json::from_slice::<Item>(payload).map_or_else(|_| format!("unreadable {id}"), |item| item.uid);
            self.recorder.write(Event::Final { uid, id, state });
        };
        let mut offset = 0;
        loop {
            let page = store.archive_page(false, 0, None, PAGE, offset).await?;
            for archived in &page {
                let state = if archived.outcome == Outcome::Completed { State::Completed } else { State::Dead };
                found(&archived.payload, archived.id, state);
            }
            offset += PAGE;
            if page.is_empty() {
                break;
            }
        }
        for queue in store.queue_list("", None, 100).await? {
            for lane in queue.lanes {
                for state in [tenure_store::State::Live, tenure_store::State::Scheduled] {
                    for message in store.message_list(lane, state, 0, 10_000).await? {
                        found(&message.payload, message.identity(), State::Live);
                    }
                }
            }
        }
        Ok(())
    }
}

async fn is_empty(store: &Store) -> Result<bool> {
    for queue in store.queue_list("", None, 100).await? {
        for lane in queue.lanes {
            let stats = store.lane_stats(lane).await?;
            if stats.ready + stats.leased + stats.scheduled > 0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Why a scenario cannot be run here, for those that need more than processes.
pub(crate) fn needs(kept: Kept) -> &'static str {
    match kept {
        Kept::SmallDisk => "a small file system of its own: `mount -t tmpfs` must be allowed",
        Kept::Postgres | Kept::Pair | Kept::Sqlite => "nothing",
    }
}

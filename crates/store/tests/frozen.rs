//! Processes that are stopped with SIGSTOP, on PostgreSQL: what they have locked comes back although their connections
//! stay open. This program starts itself again as the process to stop, so it brings its own `main`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tenure_store::{Claim, End, NewMessage, Queue, Settings, Store};

const LEASE: Duration = Duration::from_secs(3);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("claim") => runtime.block_on(claim(&args[2])),
        Some("finish") => runtime.block_on(finish(&args[2])),
        _ => {
            runtime.block_on(async {
                in_one_round(stopped_process_gives_up_its_open_transaction).await;
                in_one_round(stopped_process_gives_up_an_answer_it_does_not_read).await;
            });
            println!("2 passed, 0 failed");
        }
    }
}

/// Runs a case until it succeeds. When this machine stalls, the server ends the child's session before the test has seen its state,
/// or the messages are claimed late.
async fn in_one_round(case: impl AsyncFn() -> Result<(), String>) {
    let mut rounds = Vec::new();
    while rounds.len() < 4 {
        match case().await {
            Ok(()) => return,
            Err(found) => rounds.push(found),
        }
    }
    panic!("in every round: {rounds:?}");
}

async fn connect(dsn: &str) -> (Store, Queue) {
    let store = Store::connect(dsn).await.unwrap();
    let queue = store.queue_get("jobs").await.unwrap();
    (store, queue)
}

/// Tells the parent that the child has prepared its statements, and waits until the parent has locked the table. A child that
/// is stopped while it prepares a statement has locked no rows.
async fn ready() {
    let ready = std::env::var("READY_FILE").unwrap();
    std::fs::write(&ready, "").unwrap();
    let started = Instant::now();
    while !go_file(Path::new(&ready)).exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the parent has gone");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Beside the file that tells that the child is ready.
fn go_file(ready: &Path) -> PathBuf {
    ready.with_extension("go")
}

/// The child: claims one message, then all others.
async fn claim(dsn: &str) {
    let (store, queue) = connect(dsn).await;
    store.claim(Claim::from_queue(&queue, 1)).await.unwrap();
    ready().await;
    store.claim(Claim::from_queue(&queue, 100)).await.unwrap();
}

/// The child: claims two messages and ends them in different ways, in one transaction of several statements; then again.
async fn finish(dsn: &str) {
    let (store, queue) = connect(dsn).await;
    for round in 0..2 {
        let messages = store.claim(Claim::from_queue(&queue, 2)).await.unwrap();
        let bury = End::Bury { reason: "test".to_owned() };
        let ends = vec![(messages[0].fence(), End::Complete), (messages[1].fence(), bury)];
        if round == 1 {
            ready().await;
        }
        store.finish_in_order(ends).await.unwrap();
    }
}

/// Starts a child, locks the table when it is ready, and lets it go on; stops it when it waits for the lock. The child's statement then
/// locks its rows, and the child sends no other.
async fn stopped_child(act: &str, schema: &str, dsn: &str) -> Result<(Stopped, Session), String> {
    let ready = Path::new(env!("CARGO_TARGET_TMPDIR")).join(schema);
    for file in [ready.clone(), go_file(&ready)] {
        // From an earlier run with the same process id.
        std::fs::remove_file(file).ok();
    }
    let session = Session::start(schema).await;
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([act, &format!("{dsn}&application_name={schema}&pool_size=1")]).env("READY_FILE", &ready);
    let child = child.spawn().unwrap();
    let started = Instant::now();
    while !ready.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the child did not get ready");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    session.lock().await;
    std::fs::write(go_file(&ready), "").unwrap();
    let waiting = session.wait_until("wait_event_type = 'Lock'").await;
    let child = Stopped::stop(child);
    session.unlock().await;
    waiting.map(|()| (child, session))
}

/// Two sessions of the test: one holds locks, the other looks at the child's. A transaction would always see the first
/// state that it has looked at.
struct Session {
    locks: tokio_postgres::Client,
    looks: tokio_postgres::Client,
    schema: String,
}

async fn client() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Session {
    async fn start(schema: &str) -> Self {
        Session { locks: client().await, looks: client().await, schema: schema.to_owned() }
    }

    /// Keeps every other session from changing messages until [`unlock`](Session::unlock).
    async fn lock(&self) {
        let lock = format!("begin; lock table {}.message in exclusive mode", self.schema);
        self.locks.batch_execute(&lock).await.unwrap();
    }

    async fn unlock(&self) {
        self.locks.batch_execute("rollback").await.unwrap();
    }

    /// Waits until a session of the child is in this state; an error if it is not, because the server has ended the session.
    async fn wait_until(&self, state: &str) -> Result<(), String> {
        let text = format!("select count(*) from pg_stat_activity where application_name = $1 and {state}");
        let started = Instant::now();
        while self.looks.query_one(&text, &[&self.schema]).await.unwrap().get::<_, i64>(0) == 0 {
            if started.elapsed() > Duration::from_secs(30) {
                return Err(format!("no session of the child reached {state}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// A stopped child; continued and ended when the test ends.
struct Stopped(Child);

impl Stopped {
    fn stop(child: Child) -> Self {
        signal("-STOP", &child);
        Stopped(child)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn signal(name: &str, child: &Child) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

async fn queue_of(dsn: &str, messages: Vec<NewMessage>) -> (Store, Queue) {
    let store = Store::connect(dsn).await.unwrap();
    store.install().await.unwrap();
    let queue = store.queue_create("jobs", Settings { lease: LEASE, ..Settings::default() }).await.unwrap();
    for message in messages {
        store.enqueue(&queue, None, vec![message]).await.unwrap();
    }
    (store, queue)
}

/// How long it takes until so many messages can be claimed.
async fn claimable_after(store: &Store, queue: &Queue, count: usize) -> Duration {
    let started = Instant::now();
    let mut claimed = 0;
    while claimed < count {
        assert!(started.elapsed() < Duration::from_secs(60), "{claimed} of {count} messages after a minute");
        let claim =
            Claim { wait: Duration::from_millis(200), lease: Some(LEASE * 100), ..Claim::from_queue(queue, 10) };
        claimed += store.claim(claim).await.unwrap().len();
    }
    started.elapsed()
}

/// Whether the messages were hidden for less than this.
fn short_enough(hidden: Duration, limit: Duration) -> Result<(), String> {
    if hidden < limit { Ok(()) } else { Err(format!("the messages were hidden for {hidden:?}")) }
}

async fn stopped_process_gives_up_its_open_transaction() -> Result<(), String> {
    let schema = support::unique();
    let dsn = format!("{}?schema={schema}", support::postgres_dsn());
    let (store, queue) = queue_of(&dsn, (0..4).map(|_| NewMessage::new("x")).collect()).await;
    let (child, session) = stopped_child("finish", &schema, &dsn).await?;
    session.wait_until("state = 'idle in transaction'").await?;
    let hidden = claimable_after(&store, &queue, 2).await;
    drop(child);
    short_enough(hidden, Duration::from_secs(15))
}

async fn stopped_process_gives_up_an_answer_it_does_not_read() -> Result<(), String> {
    let schema = support::unique();
    let dsn = format!("{}?schema={schema}&tcp_user_timeout=3000", support::postgres_dsn());
    // More than the sockets' buffers hold: the server cannot send it all, so it does not commit either.
    let messages = (0..41).map(|_| NewMessage::new(vec![b'x'; 500_000])).collect();
    let (store, queue) = queue_of(&dsn, messages).await;
    let (child, session) = stopped_child("claim", &schema, &dsn).await?;
    session.wait_until("wait_event = 'ClientWrite'").await?;
    let hidden = claimable_after(&store, &queue, 41).await;
    drop(child);
    short_enough(hidden, Duration::from_secs(20))
}

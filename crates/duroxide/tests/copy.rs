//! Copies out of a file of duroxide's own SQLite provider: everything is there, once, and differences are found.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[allow(dead_code, reason = "only the address of the server is needed here")]
mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::providers::{
    DispatcherCapabilityFilter, Provider, ProviderAdmin, SemverRange, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, EventKind};
use rusqlite::{Connection, params};
use semver::Version;
use tempfile::TempDir;
use tenure_duroxide::{Kind, TenureProvider};
use tenure_store::{CopyProgress, CopyReport};

/// What duroxide 0.1.32 creates (`create_schema` in its `providers/sqlite.rs`): their schema, not ours.
const SCHEMA: &str = "
    create table instances (
        instance_id text primary key, orchestration_name text not null, orchestration_version text,
        current_execution_id integer not null default 1, custom_status text,
        custom_status_version integer not null default 0, created_at timestamp default current_timestamp,
        updated_at timestamp default current_timestamp, parent_instance_id text references instances(instance_id));
    create table executions (
        instance_id text not null, execution_id integer not null, status text not null default 'Running', output text,
        duroxide_version_major integer, duroxide_version_minor integer, duroxide_version_patch integer,
        started_at timestamp default current_timestamp, completed_at timestamp,
        primary key (instance_id, execution_id));
    create table history (
        instance_id text not null, execution_id integer not null, event_id integer not null, event_type text not null,
        event_data text not null, created_at timestamp default current_timestamp,
        primary key (instance_id, execution_id, event_id));
    create table orchestrator_queue (
        id integer primary key autoincrement, instance_id text not null, work_item text not null,
        visible_at timestamp default current_timestamp, lock_token text, locked_until timestamp,
        attempt_count integer not null default 0 check (attempt_count >= 0),
        created_at timestamp default current_timestamp);
    create table worker_queue (
        id integer primary key autoincrement, work_item text not null, visible_at integer not null default 0,
        lock_token text, locked_until timestamp, attempt_count integer not null default 0 check (attempt_count >= 0),
        created_at timestamp default current_timestamp, instance_id text, execution_id text, activity_id integer,
        session_id text, tag text);
    create table instance_locks (
        instance_id text primary key, lock_token text not null, locked_until integer not null,
        locked_at integer not null);
    create table sessions (
        session_id text primary key, worker_id text not null, locked_until integer not null,
        last_activity_at integer not null);
    create table kv_store (
        instance_id text not null, key text not null, value text not null,
        last_updated_at_ms integer not null default 0, primary key (instance_id, key));
    create table kv_delta (
        instance_id text not null, key text not null, value text, last_updated_at_ms integer not null,
        primary key (instance_id, key));";

/// An instance, an output and a value that hold what PostgreSQL cannot store in a text.
const NUL: &str = "nul\0id";
const NUL_OUTPUT: &str = "a\0b";
const NUL_VALUE: &str = "x\0y\u{1}z";

const LOCK: Duration = Duration::from_secs(30);
const HOUR: i64 = 3_600_000;

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A file of duroxide that is in use, and what was written into its histories.
struct Source {
    db: Connection,
    histories: Vec<(String, u64, Vec<Event>)>,
}

impl Source {
    fn new(path: &Path) -> Self {
        let db = Connection::open(path).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.execute_batch(SCHEMA).unwrap();
        let mut source = Source { db, histories: Vec::new() };
        source.add_done();
        source.add_running();
        source.add_odd_ones();
        source
    }

    fn instance(&self, id: &str, execution: i64, parent: Option<&str>) {
        let text = "insert into instances (instance_id, orchestration_name, orchestration_version,
            current_execution_id, parent_instance_id) values (?1, 'Order', '1.2.3', ?2, ?3)";
        self.db.execute(text, params![id, execution, parent]).unwrap();
    }

    /// An execution, pinned to version 0.1.`patch`.
    fn execution(&self, id: &str, execution: u64, status: &str, output: Option<&str>, patch: Option<i64>) {
        let text = "insert into executions (instance_id, execution_id, status, output, duroxide_version_major,
            duroxide_version_minor, duroxide_version_patch, started_at, completed_at)
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1704164645123, ?8)";
        let (major, minor) = (patch.map(|_| 0), patch.map(|_| 1));
        let completed = (status != "Running").then_some(1_704_164_646_456_i64);
        let row = params![id, execution as i64, status, output, major, minor, patch, completed];
        self.db.execute(text, row).unwrap();
    }

    fn history(&mut self, id: &str, execution: u64, kinds: Vec<EventKind>) {
        let event = |(n, kind)| Event::with_event_id(n, id, execution, None, kind);
        let events: Vec<Event> = (1..).zip(kinds).map(event).collect();
        for event in &events {
            let text = "insert into history (instance_id, execution_id, event_id, event_type, event_data)
                values (?1, ?2, ?3, 'whatever', ?4)";
            let data = serde_json::to_string(event).unwrap();
            self.db.execute(text, params![id, execution as i64, event.event_id() as i64, data]).unwrap();
        }
        self.histories.push((id.to_owned(), execution, events));
    }

    /// A locked message.
    fn message(&self, id: &str, visible_at: i64, attempts: i64, item: &WorkItem) {
        let text = "insert into orchestrator_queue (instance_id, work_item, visible_at, lock_token, locked_until,
            attempt_count) values (?1, ?2, ?3, 'lock', ?4, ?5)";
        let item = serde_json::to_string(item).unwrap();
        self.db.execute(text, params![id, item, visible_at, now() + HOUR, attempts]).unwrap();
    }

    fn value(&self, table: &str, id: &str, key: &str, value: Option<&str>) {
        let text = format!("insert into {table} (instance_id, key, value, last_updated_at_ms) values (?1, ?2, ?3, 77)");
        self.db.execute(&text, params![id, key, value]).unwrap();
    }

    /// An instance that continued as new and completed.
    fn add_done(&mut self) {
        self.instance("done", 2, None);
        let text = "update instances set custom_status = 'halfway', custom_status_version = 4,
            created_at = '2024-01-02 03:04:05', updated_at = 1704164646456 where instance_id = 'done'";
        self.db.execute(text, []).unwrap();
        self.execution("done", 1, "ContinuedAsNew", Some("again"), Some(30));
        self.execution("done", 2, "Completed", Some("fin"), Some(32));
        self.history("done", 1, vec![started(), EventKind::OrchestrationContinuedAsNew { input: "again".into() }]);
        self.history("done", 2, vec![started(), EventKind::OrchestrationCompleted { output: "fin".into() }]);
        self.value("kv_store", "done", "total", Some("7"));
    }

    /// One that runs, in somebody's hands: a timer, a completion that was fetched twice, an activity of a session.
    fn add_running(&mut self) {
        self.instance("runs", 1, None);
        self.instance("runs::child", 1, Some("runs"));
        self.execution("runs", 1, "Running", None, Some(32));
        self.execution("runs::child", 1, "Running", None, None);
        let fire_at_ms = (now() + HOUR) as u64;
        let child = EventKind::SubOrchestrationScheduled {
            name: "Order".into(),
            instance: "runs::child".into(),
            input: String::new(),
        };
        self.history("runs", 1, vec![started(), child, EventKind::TimerCreated { fire_at_ms }]);
        self.history("runs::child", 1, vec![started()]);
        let timer = WorkItem::TimerFired { instance: "runs".into(), execution_id: 1, id: 3, fire_at_ms };
        self.message("runs", now() + HOUR, 0, &timer);
        self.message("runs", now() - 10_000, 2, &completion());
        let text = "insert into worker_queue (work_item, visible_at, lock_token, locked_until, attempt_count,
            instance_id, execution_id, activity_id, session_id, tag)
            values (?1, ?2, 'lock', ?3, 1, 'runs', 1, 2, 's-1', 'gpu')";
        let item = serde_json::to_string(&activity("runs", Some("s-1"), Some("gpu"))).unwrap();
        self.db.execute(text, params![item, now() - 10_000, now() + HOUR]).unwrap();
        self.db.execute("insert into instance_locks values ('runs', 'lock', ?1, 1)", [now() + HOUR]).unwrap();
        self.db.execute("insert into sessions values ('s-1', 'worker-1', ?1, ?2)", [now() + HOUR, now()]).unwrap();
        self.value("kv_store", "runs", "a", Some("1"));
        self.value("kv_store", "runs", "b", Some("2"));
        self.value("kv_delta", "runs", "a", None);
        self.value("kv_delta", "runs", "c", Some("3"));
    }

    /// Texts with a NUL; a start that nobody has seen; events without an instance; an activity of nobody.
    fn add_odd_ones(&mut self) {
        self.instance(NUL, 1, None);
        self.execution(NUL, 1, "Completed", Some(NUL_OUTPUT), None);
        self.history(NUL, 1, vec![started(), EventKind::OrchestrationCompleted { output: NUL_OUTPUT.into() }]);
        self.value("kv_store", NUL, "k", Some(NUL_VALUE));
        self.message("new", now() - 5_000, 0, &start("new"));
        self.history("old", 1, vec![started()]);
        let item = serde_json::to_string(&activity("nowhere", None, None)).unwrap();
        self.db.execute("insert into worker_queue (work_item) values (?1)", [item]).unwrap();
    }
}

fn started() -> EventKind {
    EventKind::OrchestrationStarted {
        name: "Order".into(),
        version: "1.2.3".into(),
        input: "\0 in JSON".into(),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        carry_forward_events: None,
        initial_custom_status: None,
    }
}

fn start(instance: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.into(),
        orchestration: "Order".into(),
        input: String::new(),
        version: None,
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

fn completion() -> WorkItem {
    WorkItem::SubOrchCompleted {
        parent_instance: "runs".into(),
        parent_execution_id: 1,
        parent_id: 2,
        result: "yes".into(),
    }
}

fn activity(instance: &str, session: Option<&str>, tag: Option<&str>) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.into(),
        execution_id: 1,
        id: 2,
        name: "Pay".into(),
        input: String::new(),
        session_id: session.map(Into::into),
        tag: tag.map(Into::into),
    }
}

/// A full file, and an empty database to copy it into.
struct Case {
    source: Source,
    file: PathBuf,
    provider: TenureProvider,
    /// The schema of the target on PostgreSQL, its file on SQLite.
    target: String,
    _folder: TempDir,
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

impl Case {
    async fn postgres() -> Self {
        let schema = format!("copy_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dsn = format!("{}?pool_size=3", support::postgres_dsn());
        let provider = TenureProvider::new_with_schema(&dsn, &schema).await.unwrap();
        Self::new(provider, schema, tempfile::tempdir().unwrap())
    }

    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target.db").display().to_string();
        Self::new(TenureProvider::new(&format!("sqlite:{target}")).await.unwrap(), target, folder)
    }

    fn new(provider: TenureProvider, target: String, folder: TempDir) -> Self {
        let file = folder.path().join("duroxide.db");
        Case { source: Source::new(&file), file, provider, target, _folder: folder }
    }

    async fn copy(&self) -> CopyReport {
        let mut last = CopyProgress::default();
        let report = self.provider.store().copy_duroxide(&self.file, |progress| last = progress).await.unwrap();
        let all = CopyProgress { instances_done: 6, instances_total: 6, events_done: 11, events_total: 11 };
        assert_eq!(last, all);
        report
    }

    async fn verify(&self) -> tenure_store::Result<u64> {
        self.provider.store().verify_duroxide_copy(&self.file, |_| {}).await
    }

    /// Runs SQL on the target past its provider.
    async fn tamper(&self, text: &str) {
        if self.provider.name() == "tenure-sqlite" {
            let db = Connection::open(&self.target).unwrap();
            assert_eq!(db.execute(&text.replace("history", "tenure_history"), []).unwrap(), 1);
            return;
        }
        let (client, connection) =
            tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let text = text.replace("history", &format!("\"{}\".history", self.target));
        assert_eq!(client.execute(&text, &[]).await.unwrap(), 1);
    }
}

macro_rules! on_both_backends {
    ($($case:ident)+) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Case::postgres().await).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Case::sqlite().await).await;
            })+
        }
    };
}

on_both_backends! {
    a_copy_holds_everything_that_duroxide_kept
    messages_are_fetched_from_the_copy_and_nobody_holds_them
    activities_are_fetched_from_the_copy_by_their_tags_and_sessions
    a_repeated_copy_changes_nothing_and_one_that_was_cut_short_goes_on
    an_event_that_differs_or_is_missing_is_named
    an_instance_that_no_copy_made_is_left_alone
}

const WHOLE: CopyReport = CopyReport {
    instances: 6,
    executions: 6,
    events: 11,
    messages: 3,
    activities: 2,
    values: 5,
    sessions: 1,
    skipped: 0,
};

async fn a_copy_holds_everything_that_duroxide_kept(case: Case) {
    assert_eq!(case.copy().await, WHOLE);
    assert_eq!(case.verify().await.unwrap(), 11);
    let provider = &case.provider;
    for (instance, execution, events) in &case.source.histories {
        assert_eq!(provider.read_with_execution(instance, *execution).await.unwrap(), *events, "{instance}");
    }
    let mut named = provider.list_instances().await.unwrap();
    named.sort();
    assert_eq!(named, ["done", NUL, "runs", "runs::child"]);

    let done = provider.get_instance_info("done").await.unwrap();
    assert_eq!((done.orchestration_name.as_str(), done.orchestration_version.as_str()), ("Order", "1.2.3"));
    assert_eq!((done.created_at, done.updated_at), (1_704_164_645_000, 1_704_164_646_456));
    assert_eq!((done.current_execution_id, done.status.as_str()), (2, "Completed"));
    assert_eq!(provider.list_executions("done").await.unwrap(), [1, 2]);
    let first = provider.get_execution_info("done", 1).await.unwrap();
    assert_eq!((first.status.as_str(), first.output.as_deref()), ("ContinuedAsNew", Some("again")));
    assert_eq!((first.started_at, first.completed_at), (1_704_164_645_123, Some(1_704_164_646_456)));
    assert_eq!(first.event_count, 2);
    assert_eq!(provider.get_custom_status("done", 3).await.unwrap(), Some((Some("halfway".to_owned()), 4)));

    assert_eq!(provider.list_children("runs").await.unwrap(), ["runs::child"]);
    let nul = provider.get_instance_info(NUL).await.unwrap();
    assert_eq!((nul.output.as_deref(), nul.parent_instance_id), (Some(NUL_OUTPUT), None));
    assert_eq!(provider.get_kv_value(NUL, "k").await.unwrap().as_deref(), Some(NUL_VALUE));
    assert_eq!(provider.get_kv_value("done", "total").await.unwrap().as_deref(), Some("7"));
    let running = provider.get_kv_all_values("runs").await.unwrap();
    let expected = [("b", "2"), ("c", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(running, HashMap::from(expected));
    let depths = provider.get_queue_depths().await.unwrap();
    assert_eq!((depths.orchestrator_queue, depths.worker_queue), (3, 2));
}

async fn messages_are_fetched_from_the_copy_and_nobody_holds_them(case: Case) {
    case.copy().await;
    let provider = &case.provider;
    let older = SemverRange::new(Version::new(0, 1, 0), Version::new(0, 1, 31));
    let older = DispatcherCapabilityFilter { supported_duroxide_versions: vec![older] };
    let fetched = provider.fetch_orchestration_item(LOCK, Duration::ZERO, Some(&older)).await.unwrap();
    let (item, _, attempts) = fetched.unwrap();
    assert_eq!((item.instance.as_str(), item.messages, attempts), ("new", vec![start("new")], 1));

    let fetched = provider.fetch_orchestration_item(LOCK, Duration::ZERO, None).await.unwrap();
    let (item, _, attempts) = fetched.unwrap();
    assert_eq!((item.instance.as_str(), item.messages, attempts), ("runs", vec![completion()], 3));
    assert_eq!((item.orchestration_name.as_str(), item.version.as_str(), item.execution_id), ("Order", "1.2.3", 1));
    let history = case.source.histories.iter().find(|(instance, ..)| instance == "runs");
    assert_eq!(item.history, history.unwrap().2);
    // What the running execution wrote is not part of what it began with.
    let mut values: Vec<_> = item.kv_snapshot.iter().map(|(key, kept)| (key.as_str(), kept.value.as_str())).collect();
    values.sort_unstable();
    assert_eq!(values, [("a", "1"), ("b", "2")]);
    assert_eq!(item.kv_snapshot["a"].last_updated_at_ms, 77);
    // The timer is an hour away.
    assert!(provider.fetch_orchestration_item(LOCK, Duration::ZERO, None).await.unwrap().is_none());
}

async fn activities_are_fetched_from_the_copy_by_their_tags_and_sessions(case: Case) {
    case.copy().await;
    let provider = &case.provider;
    let owner = |owner: &str| SessionFetchConfig { owner_id: owner.to_owned(), lock_timeout: LOCK };
    let (other, own) = (owner("worker-2"), owner("worker-1"));
    let fetched = provider.fetch_work_item(LOCK, Duration::ZERO, Some(&other), &TagFilter::Any).await.unwrap();
    let (item, _, attempts) = fetched.unwrap();
    assert_eq!((item, attempts), (activity("nowhere", None, None), 1));
    assert!(provider.fetch_work_item(LOCK, Duration::ZERO, Some(&other), &TagFilter::Any).await.unwrap().is_none());
    let untagged = TagFilter::DefaultOnly;
    assert!(provider.fetch_work_item(LOCK, Duration::ZERO, Some(&own), &untagged).await.unwrap().is_none());
    let tagged = TagFilter::tags(["gpu"]);
    let fetched = provider.fetch_work_item(LOCK, Duration::ZERO, Some(&own), &tagged).await.unwrap();
    let (item, _, attempts) = fetched.unwrap();
    assert_eq!((item, attempts), (activity("runs", Some("s-1"), Some("gpu")), 2));
}

async fn a_repeated_copy_changes_nothing_and_one_that_was_cut_short_goes_on(case: Case) {
    assert_eq!(case.copy().await, WHOLE);
    assert_eq!(case.copy().await, CopyReport { skipped: 6, ..CopyReport::default() });
    assert_eq!(case.verify().await.unwrap(), 11);
    // As if the copy had been stopped before this instance.
    case.provider.delete_instance("done", false).await.unwrap();
    assert_eq!(case.verify().await.unwrap_err().kind(), Kind::Damaged);
    let report = case.copy().await;
    let done = CopyReport { instances: 1, executions: 2, events: 4, values: 1, skipped: 5, ..CopyReport::default() };
    assert_eq!(report, done);
    assert_eq!(case.verify().await.unwrap(), 11);
}

async fn an_event_that_differs_or_is_missing_is_named(case: Case) {
    case.copy().await;
    let event = "where instance = 'done' and execution = 1 and id = 2";
    case.tamper(&format!("update history set data = data || ' ' {event}")).await;
    let error = case.verify().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    let message = error.to_string();
    assert!(message.starts_with("instance 'done', execution 1, event 2 is not the same"), "{message}");
    case.tamper(&format!("delete from history {event}")).await;
    let message = case.verify().await.unwrap_err().to_string();
    assert!(message.starts_with("instance 'done', execution 1, event 2 is missing"), "{message}");
}

async fn an_instance_that_no_copy_made_is_left_alone(case: Case) {
    case.provider.enqueue_for_orchestrator(start("runs"), None).await.unwrap();
    let error = case.provider.store().copy_duroxide(&case.file, |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("'runs': copy into an empty schema"), "{error}");
    assert!(case.provider.list_instances().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_file_that_is_not_duroxides_or_is_too_old_is_refused_in_words() {
    let case = Case::sqlite().await;
    let refused = async |file: &Path| {
        let error = case.provider.store().copy_duroxide(file, |_| {}).await.unwrap_err();
        (error.kind(), error.to_string())
    };
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.db");
    assert_eq!(refused(&missing).await.0, Kind::DatabaseMissing);
    assert!(!missing.exists(), "a file that is only read is not created");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database ".repeat(200)).unwrap();
    assert_eq!(refused(&text).await.0, Kind::Corrupt);
    let (kind, message) = refused(Path::new(&case.target)).await;
    assert_eq!(kind, Kind::Schema);
    assert!(message.starts_with("this file is not a duroxide database"), "{message}");
    case.source.db.execute_batch("alter table instances drop column custom_status").unwrap();
    let (kind, message) = refused(&case.file).await;
    assert_eq!(kind, Kind::Schema);
    assert!(message.contains("'custom_status'") && message.contains("duroxide 0.1.32"), "{message}");
}

//! A fresh database for every provider that the suite of duroxide asks for.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duroxide::provider_validation::ProviderFactory;
use duroxide::providers::Provider;
use tempfile::TempDir;
use tenure_duroxide::TenureProvider;

/// Runs every case on PostgreSQL and on SQLite, as one named test each.
#[allow(unused_macros, reason = "not every test file has cases")]
macro_rules! cases {
    ($($case:ident)+) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::support::Factory::new($crate::support::Backend::Postgres)).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::support::Factory::new($crate::support::Backend::Sqlite)).await;
            })+
        }
    };
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The PostgreSQL server that `cargo xtask test` starts.
pub(crate) fn postgres_dsn() -> String {
    std::env::var("TENURE_TEST_POSTGRES")
        .expect("TENURE_TEST_POSTGRES is not set: run `cargo xtask test`, which starts a throw-away server")
}

/// Where a factory makes its databases.
#[allow(dead_code, reason = "each test file runs on one of them")]
pub(crate) enum Backend {
    Postgres,
    Sqlite,
}

/// Makes providers that share nothing: each has a schema or a file of its own.
pub(crate) struct Factory {
    backend: Backend,
    /// Holds the files until the test is over.
    folder: TempDir,
    /// The name of the database made last: the one that is looked into past its provider.
    last: Mutex<String>,
}

impl Factory {
    pub(crate) fn new(backend: Backend) -> Self {
        Factory { backend, folder: tempfile::tempdir_in(files()).unwrap(), last: Mutex::default() }
    }

    fn last(&self) -> String {
        self.last.lock().unwrap().clone()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }

    fn sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file(&self.last())).unwrap()
    }
}

#[allow(dead_code, reason = "each test file uses its own part")]
impl Factory {
    /// Opens the database made last once more, as another process would.
    pub(crate) async fn create_pair(&self) -> (Arc<dyn Provider>, Arc<dyn Provider>) {
        (self.create_provider().await, Arc::new(self.open(&self.last()).await))
    }

    async fn open(&self, name: &str) -> TenureProvider {
        let provider = match self.backend {
            Backend::Postgres => {
                TenureProvider::new_with_schema(&format!("{}?pool_size=5", postgres_dsn()), name).await
            }
            Backend::Sqlite => {
                // No test cuts the power, so no commit needs to wait for the disk.
                let dsn = format!("sqlite:{}?durability=crash_only", self.file(name).display());
                TenureProvider::new(&dsn).await
            }
        };
        provider.unwrap()
    }

    /// Puts messages and activities into the database made last whose time comes in a day.
    pub(crate) async fn delay_rows(&self, count: u32) {
        let day = "86400000000";
        let turns = "(instance, visible_at, attempts, token, item)";
        let work = "(due_at, leased_until, token, attempts, item)";
        match self.backend {
            Backend::Postgres => {
                let (schema, client) = (self.last(), postgres().await);
                let at = format!("(extract(epoch from clock_timestamp()) * 1000000)::bigint + {day}");
                let text = format!(
                    r#"insert into "{schema}".inbox {turns} select 'now', {at}, 0, 0, '' from generate_series(1, {count});
                       insert into "{schema}".work {work} select {at}, 0, 0, 0, '' from generate_series(1, {count})"#
                );
                client.batch_execute(&text).await.unwrap();
            }
            Backend::Sqlite => {
                let at = format!("unixepoch() * 1000000 + {day}");
                let series =
                    format!("with recursive n(n) as (select 1 union all select n + 1 from n where n < {count})");
                let text = format!(
                    "insert into tenure_inbox {turns} {series} select 'now', {at}, 0, 0, '' from n;
                     insert into tenure_work {work} {series} select {at}, 0, 0, 0, '' from n;"
                );
                self.sqlite().execute_batch(&text).unwrap();
            }
        }
    }
}

async fn postgres() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[async_trait::async_trait]
impl ProviderFactory for Factory {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        let name = format!("dx_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let provider = self.open(&name).await;
        *self.last.lock().unwrap() = name;
        Arc::new(provider)
    }

    /// One second is the shortest that is right for all. `test_worker_lock_renewal_after_expiration` locks for a second
    /// whatever we say here, and expects that lock to be over 100 ms after our timeout;
    /// `test_worker_delayed_visibility_skips_future_items` needs a lock that outlives 600 ms. Nothing needs more.
    fn lock_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn corrupt_instance_history(&self, instance: &str) {
        let set = r#"set data = '{"not":"an event"}'"#;
        let corrupted = match self.backend {
            Backend::Postgres => {
                let text = format!(r#"update "{}".history {set} where instance = $1"#, self.last());
                postgres().await.execute(&text, &[&instance]).await.unwrap()
            }
            Backend::Sqlite => {
                let text = format!("update tenure_history {set} where instance = ?1");
                self.sqlite().execute(&text, [instance]).unwrap() as u64
            }
        };
        assert!(corrupted > 0, "'{instance}' has no history to corrupt");
    }

    async fn get_max_attempt_count(&self, instance: &str) -> u32 {
        let attempts: i64 = match self.backend {
            Backend::Postgres => {
                let text = format!(
                    r#"select coalesce(max(attempts), 0)::bigint from "{}".inbox where instance = $1"#,
                    self.last()
                );
                postgres().await.query_one(&text, &[&instance]).await.unwrap().get(0)
            }
            Backend::Sqlite => {
                let text = "select coalesce(max(attempts), 0) from tenure_inbox where instance = ?1";
                self.sqlite().query_row(text, [instance], |row| row.get(0)).unwrap()
            }
        };
        u32::try_from(attempts).unwrap()
    }
}

/// The folder for database files: the one in memory that `cargo xtask test` names, because checkpoints wait for the disk.
fn files() -> PathBuf {
    std::env::var_os("TENURE_TEST_FILES").map_or_else(std::env::temp_dir, Into::into)
}

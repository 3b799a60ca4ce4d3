//! `rivals <pg|pg-opt|sqlite> <scenario> <seconds> <dsn>`

#[path = "../../harness.rs"]
mod harness;
#[path = "../../probe.rs"]
mod probe;

use std::sync::Arc;

use duroxide::providers::Provider;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [which, scenario, seconds, dsn] = args.as_slice() else {
        panic!("give a provider, a scenario, seconds and a DSN");
    };
    let provider: Arc<dyn Provider> = match which.as_str() {
        "pg" => Arc::new(duroxide_pg::PostgresProvider::new_with_schema(dsn, Some("dx")).await.expect("it connects")),
        "pg-opt" => {
            Arc::new(duroxide_pg_opt::PostgresProvider::new_with_schema(dsn, Some("dx")).await.expect("it connects"))
        }
        "sqlite" => {
            let url = format!("{dsn}?mode=rwc");
            Arc::new(duroxide::providers::sqlite::SqliteProvider::new(&url, None).await.expect("it opens"))
        }
        other => panic!("a rival is pg, pg-opt or sqlite, not {other}"),
    };
    harness::run(scenario, provider, seconds.parse().expect("seconds are a number")).await;
    std::process::exit(0);
}

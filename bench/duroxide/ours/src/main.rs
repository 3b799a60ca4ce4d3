//! `tenure-bench-duroxide <tenure|ceiling> <scenario> <seconds> [dsn]`

mod free;
#[path = "../../harness.rs"]
mod harness;
#[path = "../../probe.rs"]
mod probe;

use std::sync::Arc;

use duroxide::providers::Provider;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [which, scenario, seconds, rest @ ..] = args.as_slice() else {
        panic!("give a provider, a scenario, seconds and a DSN");
    };
    let provider: Arc<dyn Provider> = match (which.as_str(), rest) {
        ("tenure", [dsn]) => {
            Arc::new(tenure_duroxide::TenureProvider::new(dsn).await.expect("the database can be reached"))
        }
        ("ceiling", _) => Arc::new(free::Free::default()),
        _ => panic!("a provider is tenure, with a DSN, or ceiling"),
    };
    harness::run(scenario, provider, seconds.parse().expect("seconds are a number")).await;
    // Long polls need not end in order.
    std::process::exit(0);
}

//! What a server costs its database while it has nothing to do: queues that were once used, and one lease that waits.
//!
//! Every statement of ours is a transaction of its own, so PostgreSQL's count of transactions is the number of statements.

use std::time::Duration;

use crate::http::Place;
use crate::http::client::Connection;
use crate::http::server::Server;
use crate::http::wire::{LeaseRequest, ProduceItem, ProduceRequest, QueueInfo, payload, request};
use crate::report::Report;
use crate::{Result, bare};

const QUEUES: usize = 3000;
/// Longer than a server remembers a queue that is not used.
const FORGOTTEN: Duration = Duration::from_secs(70);
const COUNTED: Duration = Duration::from_secs(20);

/// Statements a second of a server with so many queues that were once used, and what one waiting lease adds.
pub(super) async fn run(place: &Place, postgres: &str, report: &mut Report) -> Result<()> {
    let server = Server::start(&place.dsn)?;
    let mut connection = Connection::open(server.address).await?;
    for n in 0..QUEUES {
        let queue = QueueInfo {
            queue_name: format!("queue-{n}"),
            lease_timeout: "1m".to_owned(),
            expire_timeout: "24h".to_owned(),
            requested_partitions: 1,
        };
        connection.send(&request("/v1/queues.create", &queue)).await?.success()?;
        let produce = ProduceRequest {
            queue_name: queue.queue_name,
            request_timeout: "1m".to_owned(),
            items: vec![ProduceItem { bytes: payload(100) }],
        };
        connection.send(&request("/v1/queue.produce", &produce)).await?.success()?;
    }
    let meter = crate::load::Meter::new(Duration::MAX, u64::MAX);
    tokio::time::sleep(FORGOTTEN).await;
    let idle = statements(postgres).await?;
    let name = format!("idle server, {QUEUES} queues that were once used");
    report.bound(&name, meter.measured(), "statements/s", idle, 5.0, false);
    let empty = QueueInfo {
        queue_name: "empty".to_owned(),
        lease_timeout: "1m".to_owned(),
        expire_timeout: "24h".to_owned(),
        requested_partitions: 1,
    };
    connection.send(&request("/v1/queues.create", &empty)).await?.success()?;
    let lease = LeaseRequest {
        queue_name: "empty".to_owned(),
        batch_size: 1,
        client_id: "waits".to_owned(),
        request_timeout: "1m".to_owned(),
    };
    let lease = request("/v1/queue.lease", &lease);
    let waiting = connection.send(&lease);
    let counted = async {
        // The first looks of the lease are not what it costs to wait.
        tokio::time::sleep(Duration::from_secs(3)).await;
        statements(postgres).await
    };
    let (_, with_lease) = tokio::join!(waiting, counted);
    report.bound("one waiting lease", meter.measured(), "more statements/s", with_lease? - idle, 7.0, false);
    Ok(())
}

/// Transactions a second in this database, our own look at the counter taken off.
async fn statements(postgres: &str) -> Result<f64> {
    let client = bare::connect(postgres).await?;
    let count = async || -> Result<i64> {
        // The counters of other sessions come in up to a second late.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let text = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
        Ok(client.query_one(text, &[]).await?.get(0))
    };
    let before = count().await?;
    tokio::time::sleep(COUNTED).await;
    let after = count().await?;
    Ok((after - before - 1) as f64 / (COUNTED + Duration::from_millis(1500)).as_secs_f64())
}

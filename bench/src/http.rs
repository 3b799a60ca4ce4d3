//! HTTP beside the kernel that it stands on: the same calls by as many callers, straight into a store of this process,
//! and over keep-alive connections to a server in a process of its own, so that its CPU can be told from ours.
//!
//! Invariants: both sides run the same loops, on a new and empty store, with the same settings of the queue; they take
//! turns; the kernel's callers have the runtime of the benchmark, the client's one thread of their own, so that the
//! load takes as little as it can from the server whose cores it shares.

mod client;
mod drive;
mod idle;
mod kernel;
mod server;
mod wire;

use std::time::Duration;

use tempfile::TempDir;
use tenure_store::Backend;

use crate::http::client::Client;
use crate::http::drive::Load;
use crate::http::kernel::Kernel;
use crate::http::server::Server;
use crate::load::Measured;
use crate::report::{Report, median};
use crate::{Result, bare, ours};

/// How long a lease waits for messages before there are none.
const PATIENCE: Duration = Duration::from_millis(500);
/// What single calls over 64 connections must reach of the kernel's combined rate.
const FLOOR: f64 = 0.5;

/// What a row varies.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    backend: Backend,
    /// Callers, each with a connection of its own.
    callers: usize,
    /// Messages in a call.
    items: usize,
    /// Bytes in a message.
    size: usize,
}

impl Shape {
    /// By this it is chosen on the command line.
    fn name(self) -> String {
        let size = if self.size < 1000 { format!("{}B", self.size) } else { format!("{}kB", self.size / 1000) };
        format!("http-{}-{}x{}-{size}", self.backend.name(), self.callers, self.items)
    }

    fn floor(self) -> f64 {
        if self.callers == 64 && self.items == 1 { FLOOR } else { 0.0 }
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for backend in [Backend::Sqlite, Backend::Postgres] {
        for callers in [8, 64] {
            for items in [1, 100] {
                shapes.extend([100, 10_000].map(|size| Shape { backend, callers, items, size }));
            }
        }
    }
    shapes
}

/// All rows whose names are wanted.
pub(crate) async fn run(
    postgres: &str,
    wanted: impl Fn(&str) -> bool,
    seconds: f64,
    report: &mut Report,
) -> Result<()> {
    for shape in shapes().into_iter().filter(|shape| wanted(&shape.name())) {
        let (mut kernel, mut http): ([Vec<Measured>; 2], [Vec<Measured>; 2]) = Default::default();
        for _ in 0..report.repeat {
            let [produced, drained] = in_process(shape, postgres, seconds).await?;
            kernel[0].push(produced);
            kernel[1].push(drained);
            let place = Place::fresh(shape.backend, postgres).await?;
            let measuring = tokio::task::spawn_blocking(move || over_http(shape, &place, seconds));
            let [produced, drained] = measuring.await??;
            http[0].push(produced);
            http[1].push(drained);
        }
        for (act, (kernel, http)) in ["produce", "lease+complete"].iter().zip(kernel.into_iter().zip(http)) {
            report.over_http(&format!("{} {act}", shape.name()), median(kernel), median(http), shape.floor());
        }
    }
    if wanted("http-idle") {
        idle::run(&Place::fresh(Backend::Postgres, postgres).await?, postgres, report).await?;
    }
    Ok(())
}

async fn in_process(shape: Shape, postgres: &str, seconds: f64) -> Result<[Measured; 2]> {
    let place = Place::fresh(shape.backend, postgres).await?;
    let callers = Kernel::callers(&place.dsn, shape).await?;
    Load::new(callers, shape.items, None).measure(&place, seconds).await
}

fn over_http(shape: Shape, place: &Place, seconds: f64) -> Result<[Measured; 2]> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Server::start(&place.dsn)?;
        let callers = Client::callers(server.address, shape).await?;
        Load::new(callers, shape.items, Some(server.id())).measure(place, seconds).await
    })
}

/// Where one side keeps its messages, once: a new file, or a new schema of the benchmark's PostgreSQL.
pub(crate) struct Place {
    dsn: String,
    /// Where PostgreSQL is, if it is that.
    postgres: Option<String>,
    /// Holds the file, and takes it away with itself.
    _folder: Option<TempDir>,
}

impl Place {
    async fn fresh(backend: Backend, postgres: &str) -> Result<Self> {
        if backend == Backend::Postgres {
            bare::connect(postgres).await?.batch_execute("drop schema if exists bench cascade").await?;
            return Ok(Place { dsn: ours::schema(postgres), postgres: Some(postgres.to_owned()), _folder: None });
        }
        // On the disk of the sources: a temporary folder may be in memory.
        let folder = tempfile::tempdir_in(".")?;
        let dsn = format!("sqlite:{}", folder.path().join("bench.db").display());
        Ok(Place { dsn, postgres: None, _folder: Some(folder) })
    }

    /// Lets the database rest, so that both sides start from the same calm.
    pub(crate) async fn settle(&self) -> Result<()> {
        match &self.postgres {
            Some(postgres) => ours::settle(postgres).await,
            None => Ok(()),
        }
    }
}

//! What the workers that use the library have in common.

use std::future::Future;
use std::time::Duration;

use tenure::Store;
use tenure_chaos::history::{Answer, Op};

use crate::job::Worker;

/// Tells the producers and consumers of one process apart.
pub(crate) fn port(task: u64) -> i32 {
    1 + i32::try_from(task).unwrap_or_default()
}

/// Connects, however often it takes; none: the process is to stop.
pub(crate) async fn connect(worker: &Worker) -> Option<Store> {
    open(worker, || Store::connect(&worker.job.place)).await
}

/// Asks until there is an answer; none: the process is to stop.
pub(crate) async fn open<T, F: Future<Output = tenure::Result<T>>>(worker: &Worker, act: impl Fn() -> F) -> Option<T> {
    loop {
        let opened = worker.call(Op::Open, worker.job.limit, act(), |_| Answer::Done).await;
        if opened.is_some() {
            return opened;
        }
        worker.rest(Duration::from_millis(300)).await;
        if !worker.goes_on() {
            return None;
        }
    }
}

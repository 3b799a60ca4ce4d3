//! Verbs that run at the same time as an extension of the same lease: the holder is never refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_store::{Answer, Claim, Clear, Clock, Due, Fence, Message, NewMessage, Place, Queue, Settings, Store};

/// Rounds per verb: 52 of 2,000 completes were refused when rows were located by ctid.
const ROUNDS: usize = 2000;
/// Messages in flight at a time.
const BATCH: usize = 50;

/// Two stores on one database: an extension and a verb of one process share a flush and cannot race.
async fn two_stores() -> (Store, Store, Queue) {
    let dsn = format!("{}?schema={}&pool_size=4", support::postgres_dsn(), support::unique());
    let store = Store::connect_with_clock(&dsn, Clock::database()).await.unwrap();
    store.install().await.unwrap();
    let queue = store.queue_create("jobs", Settings::default()).await.unwrap();
    let other = Store::connect_with_clock(&dsn, Clock::database()).await.unwrap();
    (store, other, queue)
}

/// Leases messages and runs the verb on each of them while another store extends the same leases.
async fn race<V>(verb: V)
where
    V: for<'a> Fn(&'a Store, Fence) -> BoxFuture<'a, bool>,
{
    let (store, other, queue) = two_stores().await;
    let mut refused = 0;
    for _ in 0..ROUNDS / BATCH {
        let messages = (0..BATCH).map(|_| NewMessage::new("x")).collect();
        store.enqueue(&queue, None, messages).await.unwrap();
        let claim = Claim { wait: Duration::from_secs(5), ..Claim::from_queue(&queue, BATCH) };
        let fences: Vec<Fence> = store.claim(claim).await.unwrap().iter().map(Message::fence).collect();
        assert_eq!(fences.len(), BATCH);
        for fence in &fences {
            let extended = [*fence];
            let extension = other.extend(&extended, Duration::from_secs(30));
            let (answer, _) = tokio::join!(verb(&store, *fence), extension);
            refused += usize::from(!answer);
        }
        let everything = Clear { ready: true, leased: true, scheduled: true };
        store.lane_clear(queue.lanes[0], everything).await.unwrap();
    }
    assert_eq!(refused, 0, "of {ROUNDS} verbs of a holder");
}

fn done(answers: tenure_store::Result<Vec<Answer>>) -> bool {
    answers.unwrap() == [Answer::Done]
}

macro_rules! verbs {
    ($($name:ident: |$store:ident, $fence:ident| $act:expr;)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            race(|$store, $fence| Box::pin(async move { $act })).await;
        })+
    };
}

verbs! {
    complete_is_not_refused_during_an_extension: |store, fence| done(store.complete(&[fence]).await);
    discard_is_not_refused_during_an_extension: |store, fence| done(store.discard(&[fence]).await);
    archive_is_not_refused_during_an_extension: |store, fence| store.archive(&[fence]).await.unwrap()[0].is_some();
    release_is_not_refused_during_an_extension: |store, fence| done(store.release(&[fence]).await);
    retry_at_the_tail_is_not_refused_during_an_extension:
        |store, fence| done(store.retry(&[fence], None, Place::Tail).await);
    retry_for_later_is_not_refused_during_an_extension:
        |store, fence| done(store.retry(&[fence], Some(Due::In(Duration::from_secs(60))), Place::Keep).await);
    bury_is_not_refused_during_an_extension: |store, fence| done(store.bury(&[fence], "poison").await);
    extend_is_not_refused_during_an_extension:
        |store, fence| store.extend(&[fence], Duration::from_secs(30)).await.unwrap()[0].is_some();
}

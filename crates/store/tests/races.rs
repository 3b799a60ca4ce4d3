//! Verbs that run at the same time as an extension of the same lease: the holder is never refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_store::{
    Answer, Claim, Clear, Clock, Due, End, Fence, KeyBatch, Message, NewMessage, Place, Queue, Settings, Store,
};
use tokio::sync::Mutex;

/// Rounds per verb: 52 of 2,000 completes were refused when rows were located by ctid.
const ROUNDS: usize = 2000;
/// Messages in flight at a time.
const BATCH: usize = 50;

/// Who holds the leases: its store, and a connection of its own for transactions.
struct Holder {
    store: Store,
    client: Mutex<tokio_postgres::Client>,
    schema: String,
}

impl Holder {
    /// The holder and another store on the same database: an extension and a verb of one process share a flush and cannot race.
    async fn and_another(settings: Settings) -> (Self, Store, Queue) {
        let schema = support::unique();
        let dsn = format!("{}?schema={schema}&pool_size=4", support::postgres_dsn());
        let store = Store::connect_with_clock(&dsn, Clock::database()).await.unwrap();
        store.install().await.unwrap();
        let queue = store.queue_create("jobs", settings).await.unwrap();
        let other = Store::connect_with_clock(&dsn, Clock::database()).await.unwrap();
        let (client, connection) =
            tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        (Holder { store, client: Mutex::new(client), schema }, other, queue)
    }

    async fn complete_in_transaction(&self, fence: Fence) -> bool {
        let mut client = self.client.lock().await;
        let transaction = client.transaction().await.unwrap();
        let answers = self.store.complete_in_postgres(&transaction, &[fence]).await;
        transaction.commit().await.unwrap();
        done(answers)
    }

    async fn complete_in_sql(&self, fence: Fence) -> bool {
        let mut client = self.client.lock().await;
        let transaction = client.transaction().await.unwrap();
        let complete = format!("select {}.complete($1::bigint, $2::bigint)", self.schema);
        let done = transaction.query_one(&complete, &[&fence.id, &fence.attempt]).await.unwrap().get(0);
        transaction.commit().await.unwrap();
        done
    }
}

/// Leases messages and runs the verb on each of them while another store extends the same leases.
async fn race<V>(settings: Settings, verb: V)
where
    V: for<'a> Fn(&'a Holder, Fence) -> BoxFuture<'a, bool>,
{
    let (holder, other, queue) = Holder::and_another(settings).await;
    let store = &holder.store;
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
            let (answer, _) = tokio::join!(verb(&holder, *fence), extension);
            refused += usize::from(!answer);
        }
        let everything = Clear { ready: true, leased: true, scheduled: true };
        store.lane_clear(queue.lanes[0], everything).await.unwrap();
    }
    assert_eq!(refused, 0, "of {ROUNDS} verbs of a holder");
}

/// Leases keys with so many messages each, and runs the verb on them, message by message or on the whole key, while another store
/// extends the lease of the same key.
async fn race_key<V>(messages: usize, verb: V)
where
    V: for<'a> Fn(&'a Holder, &'a KeyBatch, usize) -> BoxFuture<'a, bool>,
{
    let (holder, other, queue) = Holder::and_another(Settings::default()).await;
    let store = &holder.store;
    let mut refused = 0;
    for round in 0..ROUNDS / BATCH {
        // Other keys in every round: those of the last may rest.
        let key = |n: usize| NewMessage { key: Some(format!("{round} {}", n / messages)), ..NewMessage::new("x") };
        store.enqueue(&queue, None, (0..BATCH).map(key).collect()).await.unwrap();
        for _ in 0..BATCH / messages {
            let batch = store.claim_key(&queue.lanes, None, None, Duration::from_secs(5)).await.unwrap().unwrap();
            assert_eq!(batch.messages.len(), messages);
            for n in 0..messages {
                let tokens = [batch.token];
                let extension = other.key_extend(&tokens, Duration::from_secs(30));
                let (answer, _) = tokio::join!(verb(&holder, &batch, n), extension);
                refused += usize::from(!answer);
            }
            store.key_complete(batch.token).await.unwrap();
        }
        let everything = Clear { ready: true, leased: true, scheduled: true };
        store.lane_clear(queue.lanes[0], everything).await.unwrap();
    }
    assert_eq!(refused, 0, "of {ROUNDS} verbs of a holder");
}

/// The settings of a queue whose completed messages are kept: they are completed by another statement.
fn kept() -> Settings {
    Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() }
}

/// A retry that buries the message if it has used up its attempts, which is looked up before.
const RETRY: End = End::Retry { due: None, place: Place::Tail };

fn done(answers: tenure_store::Result<Vec<Answer>>) -> bool {
    answers.unwrap() == [Answer::Done]
}

macro_rules! verbs {
    ($($name:ident $(($settings:expr))?: |$holder:ident, $fence:ident| $act:expr;)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let settings = [$($settings,)? Settings::default()].into_iter().next().unwrap();
            race(settings, |$holder, $fence| Box::pin(async move { $act })).await;
        })+
    };
}

verbs! {
    complete_is_not_refused_during_an_extension: |holder, fence| done(holder.store.complete(&[fence]).await);
    complete_that_keeps_a_copy_is_not_refused_during_an_extension (kept()): |holder, fence| done(holder.store.complete(&[fence]).await);
    complete_in_order_is_not_refused_during_an_extension:
        |holder, fence| done(holder.store.finish_in_order(vec![(fence, End::Complete)]).await);
    retry_in_order_is_not_refused_during_an_extension:
        |holder, fence| done(holder.store.finish_in_order(vec![(fence, RETRY)]).await);
    discard_is_not_refused_during_an_extension: |holder, fence| done(holder.store.discard(&[fence]).await);
    archive_is_not_refused_during_an_extension: |holder, fence| holder.store.archive(&[fence]).await.unwrap()[0].is_some();
    release_is_not_refused_during_an_extension: |holder, fence| done(holder.store.release(&[fence]).await);
    retry_at_the_tail_is_not_refused_during_an_extension:
        |holder, fence| done(holder.store.retry(&[fence], None, Place::Tail).await);
    retry_for_later_is_not_refused_during_an_extension:
        |holder, fence| done(holder.store.retry(&[fence], Some(Due::In(Duration::from_secs(60))), Place::Keep).await);
    bury_is_not_refused_during_an_extension: |holder, fence| done(holder.store.bury(&[fence], "poison").await);
    extend_is_not_refused_during_an_extension:
        |holder, fence| holder.store.extend(&[fence], Duration::from_secs(30)).await.unwrap()[0].is_some();
    complete_in_a_transaction_of_the_callers_is_not_refused_during_an_extension:
        |holder, fence| holder.complete_in_transaction(fence).await;
    complete_by_the_function_of_the_database_is_not_refused_during_an_extension:
        |holder, fence| holder.complete_in_sql(fence).await;
}

macro_rules! key_verbs {
    ($($name:ident ($messages:expr): |$holder:ident, $batch:ident, $n:pat_param| $act:expr;)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            race_key($messages, |$holder, $batch, $n| Box::pin(async move { $act })).await;
        })+
    };
}

key_verbs! {
    complete_of_a_message_of_a_key_is_not_refused_during_an_extension_of_the_key (BATCH):
        |holder, batch, n| done(holder.store.complete(&[batch.messages[n].fence()]).await);
    retry_of_a_message_of_a_key_is_not_refused_during_an_extension_of_the_key (BATCH): |holder, batch, n| {
        let (fence, later) = (batch.messages[n].fence(), Some(Due::In(Duration::from_secs(60))));
        done(holder.store.retry(&[fence], later, Place::Keep).await)
    };
    extend_of_a_message_of_a_key_is_not_refused_during_an_extension_of_the_key (BATCH): |holder, batch, n| {
        let fence = batch.messages[n].fence();
        holder.store.extend(&[fence], Duration::from_secs(30)).await.unwrap()[0].is_some()
    };
    key_complete_is_not_refused_during_an_extension (1):
        |holder, batch, _| holder.store.key_complete(batch.token).await.unwrap() == Answer::Done;
    key_release_is_not_refused_during_an_extension (1):
        |holder, batch, _| holder.store.key_release(batch.token, Duration::ZERO, None).await.unwrap() == Answer::Done;
    key_release_with_a_delay_is_not_refused_during_an_extension (1): |holder, batch, _| {
        holder.store.key_release(batch.token, Duration::from_secs(60), None).await.unwrap() == Answer::Done
    };
    key_extend_is_not_refused_during_an_extension (1): |holder, batch, _| {
        holder.store.key_extend(&[batch.token], Duration::from_secs(30)).await.unwrap()[0].is_some()
    };
}

//! Messages that are committed late, with real transactions: a process that has looked past them still delivers them, and
//! transactions that cannot have drawn a message's position do not keep a process from moving on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::time::Duration;

use tenure_store::conformance::numbered;
use tenure_store::conformance::statements::{floor, script, texts};
use tenure_store::{Claim, Clock, Fence, Message, NewMessage, Queue, Settings, Store};
use tokio_postgres::Client;

const START: i64 = 1_767_225_600_000_000;

/// Two processes on one database, under one clock, and a connection that is neither's.
struct Floor {
    writer: Store,
    reader: Store,
    clock: Clock,
    queue: Queue,
    client: Client,
    schema: String,
}

impl Floor {
    async fn open() -> Self {
        let schema = support::unique();
        let dsn = format!("{}?schema={schema}&pool_size=5", support::postgres_dsn());
        let clock = Clock::fixed(START);
        let writer = Store::connect_with_clock(&dsn, clock.clone()).await.unwrap();
        writer.install().await.unwrap();
        let queue = writer.queue_create("jobs", Settings::default()).await.unwrap();
        let reader = Store::connect_with_clock(&dsn, clock.clone()).await.unwrap();
        Floor { writer, reader, clock, queue, client: connect().await, schema }
    }

    async fn take(&self) -> Vec<Message> {
        self.reader.claim(Claim::from_queue(&self.queue, 9)).await.unwrap()
    }

    /// The reader takes and completes messages for some seconds, with a look at the bottom of the lanes in each.
    async fn work(&self) {
        for _ in 0..6 {
            self.reader.enqueue(&self.queue, None, numbered(2)).await.unwrap();
            let fences: Vec<Fence> = self.take().await.iter().map(Message::fence).collect();
            assert_eq!(fences.len(), 2);
            self.reader.complete(&fences).await.unwrap();
            self.clock.advance(Duration::from_secs(1));
            assert!(self.take().await.is_empty());
        }
    }

    /// What the reader finds, and completes, once it has looked at the lanes again.
    async fn find(&self) -> Vec<Message> {
        self.clock.advance(Duration::from_secs(1));
        let found = self.take().await;
        self.reader.complete(&found.iter().map(Message::fence).collect::<Vec<_>>()).await.unwrap();
        found
    }

    /// Waits until another connection waits for a lock of this kind.
    async fn blocked(&self, kind: &str) {
        let text = format!(
            "select count(*) from pg_locks where not granted and locktype = '{kind}' and {}",
            match kind {
                "advisory" => format!("objid::bigint = {}", self.key()),
                _ => format!("relation = '\"{}\".message'::regclass", self.schema),
            }
        );
        while self.client.query_one(&text, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A number for advisory locks that no other test has.
    fn key(&self) -> u32 {
        self.schema.bytes().fold(17, |hash: u32, byte| (hash.wrapping_mul(31) ^ u32::from(byte)) & 0x7fff_ffff)
    }

    /// Starts to store a late message, in one of the ways of [`WAYS`].
    fn enqueue_late(&self, way: &str) -> tokio::task::JoinHandle<()> {
        let (store, queue, schema) = (self.writer.clone(), self.queue.clone(), self.schema.clone());
        let rest = if way == "many" { 2 } else { 0 };
        if way == "function" {
            return tokio::spawn(async move {
                let call = format!("select \"{schema}\".enqueue('jobs', 'late'::bytea, announce => false)");
                connect().await.query(&call, &[]).await.unwrap();
            });
        }
        tokio::spawn(async move {
            let messages = std::iter::once(NewMessage::new("late")).chain(numbered(rest));
            store.enqueue(&queue, None, messages.collect()).await.unwrap();
        })
    }
}

/// One message, several, or the SQL function.
const WAYS: [&str; 3] = ["one", "many", "function"];

async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_transaction_commits_late_is_delivered_by_a_process_that_has_looked_past_it() {
    let f = Floor::open().await;
    let mut client = connect().await;
    let transaction = client.transaction().await.unwrap();
    let late = f.writer.enqueue_in_postgres(&transaction, &f.queue, vec![NewMessage::new("late")]).await.unwrap()[0].id;
    f.work().await;
    assert!(floor(&f.reader, f.queue.lanes[0]) <= late, "the floor is above a message that is not committed yet");
    transaction.commit().await.unwrap();
    assert_eq!(f.find().await.iter().map(|message| message.id).collect::<Vec<_>>(), [late]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_idle_after_a_write_to_another_table_does_not_hold_the_floor() {
    let f = Floor::open().await;
    let idle = connect().await;
    let other = format!("create table \"{}\".other (n int)", f.schema);
    script(&f.writer, &other).await;
    // It has read the messages too, and has a savepoint: neither draws positions.
    idle.batch_execute(&format!(
        "begin; insert into \"{0}\".other values (1); select count(*) from \"{0}\".message; savepoint a;
         insert into \"{0}\".other values (2)",
        f.schema
    ))
    .await
    .unwrap();
    f.work().await;
    let first = floor(&f.reader, f.queue.lanes[0]);
    assert!(first > 0, "the floor has not moved");
    f.work().await;
    assert!(floor(&f.reader, f.queue.lanes[0]) > first, "the floor moves no more");
    // It enqueues after all: its position is above the floor, and the message is found.
    let enqueue = format!("select \"{}\".enqueue('jobs', 'late'::bytea, announce => false)", f.schema);
    let late: i64 = idle.query_one(&enqueue, &[]).await.unwrap().get(0);
    f.work().await;
    assert!(floor(&f.reader, f.queue.lanes[0]) <= late, "the floor is above a message that is not committed yet");
    idle.batch_execute("commit").await.unwrap();
    assert_eq!(f.find().await.iter().map(|message| message.id).collect::<Vec<_>>(), [late]);
    f.work().await;
    assert!(floor(&f.reader, f.queue.lanes[0]) > late, "the floor moves no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_is_drawn_when_its_transaction_has_a_number() {
    for way in WAYS {
        let f = Floor::open().await;
        // Between the draw and the insert of a late message, its transaction waits: does it have a number then?
        let stall = "create function tenure.stall() returns trigger language plpgsql as $body$ begin
                 if new.payload = 'late'::bytea then perform pg_advisory_xact_lock($key); end if;
                 return new;
             end $body$;
             create trigger stall before insert on tenure.message for each row execute function tenure.stall()";
        script(&f.writer, &stall.replace("$key", &f.key().to_string())).await;
        f.client.execute(&format!("select pg_advisory_lock({})", f.key()), &[]).await.unwrap();
        // One draw in 32 is logged, and gives its transaction a number by itself: the first of all is one of those.
        f.work().await;
        let late = f.enqueue_late(way);
        f.blocked("advisory").await;
        f.work().await;
        f.client.execute(&format!("select pg_advisory_unlock({})", f.key()), &[]).await.unwrap();
        late.await.unwrap();
        let found = f.find().await.iter().any(|message| message.payload == "late");
        assert!(found, "{way}: the late message lies below the floor and is never delivered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_is_drawn_under_a_lock_on_the_messages() {
    let f = Floor::open().await;
    let drawn = format!("select last_value from \"{}\".message_id", f.schema);
    for way in WAYS {
        // Plans that are cached take their locks at another place than new ones.
        for _ in 0..2 {
            f.enqueue_late(way).await.unwrap();
        }
        let before: i64 = f.client.query_one(&drawn, &[]).await.unwrap().get(0);
        let lock = format!("begin; lock table \"{}\".message in access exclusive mode", f.schema);
        f.client.batch_execute(&lock).await.unwrap();
        let late = f.enqueue_late(way);
        f.blocked("relation").await;
        let after: i64 = f.client.query_one(&drawn, &[]).await.unwrap().get(0);
        f.client.batch_execute("rollback").await.unwrap();
        late.await.unwrap();
        assert_eq!(before, after, "{way}: a position was drawn without a lock");
    }
    let (_, draw) = texts().into_iter().find(|(name, _)| name == "message/draw.pg").unwrap();
    let draw = draw.replace("tenure.", &format!("\"{}\".", f.schema)).replace("$1", "2");
    let mode = "select mode from pg_locks where pid = pg_backend_pid() and locktype = 'relation'
                and relation = '\"schema\".message'::regclass and granted";
    f.client.batch_execute("begin").await.unwrap();
    f.client.batch_execute(&draw).await.unwrap();
    let modes = f.client.query(&mode.replace("schema", &f.schema), &[]).await.unwrap();
    assert_eq!(modes.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["RowShareLock"]);
    f.client.batch_execute("rollback").await.unwrap();
}

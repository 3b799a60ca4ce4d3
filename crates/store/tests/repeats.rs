//! Replies that are lost on the way: a repeated call recognises its own first attempt, and nothing else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_store::conformance::Harness;
use tenure_store::{Answer, Due, End, Fence, NewMessage, Place, Queue, Settings, Store};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::watch;

/// What a [`Proxy`] does with the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Passes them on.
    Open,
    /// Passes on what the client sends, and drops what the server answers.
    Mute,
    /// As `Open` until a client commits, and then as `Mute`.
    MuteCommit,
    /// Keeps what the client sends.
    Late,
    /// Closes connections on the client's side; what was kept back stays kept.
    Cut,
    /// As `Open`, and delivers to the server what was kept back.
    Deliver,
}

/// The request that commits. The settings of a new session and other statements have the word in them too.
const COMMIT: &[u8] = b"Q\0\0\0\x0bcommit\0";

/// A proxy between a store and the server that can lose replies and delay requests.
struct Proxy {
    mode: watch::Sender<Mode>,
    dsn: String,
    /// Halves of connections that have not seen that they are cut.
    open: Arc<()>,
    /// How many requests were kept back.
    kept: Arc<AtomicUsize>,
    /// How many replies were dropped.
    lost: Arc<AtomicUsize>,
    /// The ports from which the server was connected to.
    ports: Arc<Mutex<Vec<i32>>>,
}

impl Proxy {
    async fn start(server: &str) -> Self {
        let (head, tail) = server.split_once("127.0.0.1:").unwrap();
        let (port, rest) = tail.split_once('/').unwrap();
        let target = format!("127.0.0.1:{port}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dsn = format!("{head}127.0.0.1:{}/{rest}", listener.local_addr().unwrap().port());
        let (mode, watching) = watch::channel(Mode::Open);
        let changing = mode.clone();
        let (open, kept, ports) = (Arc::new(()), Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<i32>>>::default());
        let lost = Arc::<AtomicUsize>::default();
        let proxy =
            Proxy { mode, dsn, open: open.clone(), kept: kept.clone(), lost: lost.clone(), ports: ports.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                ports.lock().unwrap().push(server.local_addr().unwrap().port().into());
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (change, counted) = (changing.clone(), (open.clone(), kept.clone()));
                tokio::spawn(requests(from_client, to_server, change, counted));
                let (watching, open, lost) = (watching.clone(), open.clone(), lost.clone());
                tokio::spawn(async move {
                    replies(from_server, to_client, watching, &lost).await;
                    drop(open);
                });
            }
        });
        proxy
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// Requests that were kept back reach the server after the connection was cut on the client's side.
async fn requests(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    change: watch::Sender<Mode>,
    (open, keeps): (Arc<()>, Arc<AtomicUsize>),
) {
    let mut open = Some(open);
    let mut mode = change.subscribe();
    let mut buffer = vec![0; 65_536];
    let mut kept = Vec::new();
    loop {
        let length = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => 0,
        };
        kept.extend_from_slice(&buffer[..length]);
        if length > 0 && *mode.borrow() == Mode::Late {
            keeps.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if length == 0 {
            open = None;
        }
        if *mode.borrow() == Mode::MuteCommit && kept.windows(COMMIT.len()).any(|message| message == COMMIT) {
            change.send_replace(Mode::Mute);
        }
        if length == 0 && !kept.is_empty() {
            mode.wait_for(|mode| *mode == Mode::Deliver).await.ok();
        }
        if to.write_all(&kept).await.is_err() || length == 0 {
            // The server notices a closed connection only after it has carried out what it was sent.
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(open);
            return;
        }
        kept.clear();
    }
}

async fn replies(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    lost: &AtomicUsize,
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let length = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => 0,
        };
        if length == 0 {
            return;
        }
        if !matches!(*mode.borrow(), Mode::Open | Mode::MuteCommit | Mode::Deliver) {
            lost.fetch_add(1, Ordering::SeqCst);
        } else if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// One store behind a proxy, and another that reaches the same database directly, under one clock.
struct Setup {
    proxy: Proxy,
    far: Arc<Store>,
    near: Harness,
    queue: Queue,
}

async fn setup(settings: Settings) -> Setup {
    setup_on(support::postgres().await, settings).await
}

async fn setup_on(near: Harness, settings: Settings) -> Setup {
    let proxy = Proxy::start(&near.dsn).await;
    let far = Store::connect_with_clock(&proxy.dsn, near.clock.clone()).await.unwrap();
    let queue = near.queue_with(settings).await;
    Setup { proxy, far: Arc::new(far), near, queue }
}

impl Setup {
    /// A lease of the store behind the proxy, on whose connection the verbs have been prepared.
    async fn lease(&self) -> Fence {
        let warm = self.lease_one().await;
        self.far.put_back(&[warm]).await.unwrap();
        let warm = self.far.claim(tenure_store::Claim::from_queue(&self.queue, 1)).await.unwrap()[0].fence();
        self.far.retry(&[warm], None, Place::Tail).await.unwrap();
        let warm = self.far.claim(tenure_store::Claim::from_queue(&self.queue, 1)).await.unwrap()[0].fence();
        self.far.complete(&[warm]).await.unwrap();
        self.lease_one().await
    }

    async fn lease_one(&self) -> Fence {
        self.near.put(&self.queue, "x").await;
        self.far.claim(tenure_store::Claim::from_queue(&self.queue, 1)).await.unwrap()[0].fence()
    }

    /// Waits until this is seen; none: it was not, so that another round must show it.
    async fn until(&self, what: &str, mut seen: impl AsyncFnMut(&Harness) -> bool) -> Option<()> {
        let started = Instant::now();
        while !seen(&self.near).await {
            if started.elapsed() > Duration::from_secs(10) {
                eprintln!("{what} was expected");
                return None;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Some(())
    }

    /// Waits until the proxy has kept a request back.
    async fn kept_back(&self) -> Option<()> {
        self.until("a request", async |_| self.proxy.kept.load(Ordering::SeqCst) > 0).await?;
        // For the rest of it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Some(())
    }

    async fn live(&self) -> u64 {
        let stats = self.near.store.lane_stats(self.queue.lanes[0]).await.unwrap();
        stats.ready + stats.leased
    }

    /// Cuts what is open, and lets new connections through.
    async fn cut(&self) -> Option<()> {
        self.proxy.set(Mode::Cut);
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The proxy and its listener have one each.
        self.until("the end of all connections", async |_| Arc::strong_count(&self.proxy.open) == 2).await?;
        self.proxy.set(Mode::Open);
        Some(())
    }
}

/// Runs a case until what it waits for is seen. When the machine stalls as replies begin to be lost, the store may have to open a
/// connection for its call, and the call cannot reach the server.
async fn in_one_round(case: impl AsyncFn() -> Option<()>) {
    for _ in 0..4 {
        if case().await.is_some() {
            return;
        }
    }
    panic!("what was expected did not come in any round");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_whose_reply_was_lost_is_done() {
    in_one_round(async || {
        for retain_completed in [None, Some(Duration::from_secs(60))] {
            let setup = setup(Settings { retain_completed, ..Settings::default() }).await;
            let fence = setup.lease().await;
            setup.proxy.set(Mode::Mute);
            let far = setup.far.clone();
            let call = tokio::spawn(async move { far.complete(&[fence]).await });
            setup.until("a completed message", async |_| setup.live().await == 0).await?;
            setup.cut().await?;
            assert_eq!(call.await.unwrap().unwrap(), [Answer::Done]);
            // Another call is not the repeat.
            assert_ne!(setup.far.complete(&[fence]).await.unwrap(), [Answer::Done]);
        }
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_whose_reply_was_lost_is_done_although_the_message_has_moved_on() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let fence = setup.lease().await;
        setup.proxy.set(Mode::Mute);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.retry(&[fence], None, Place::Tail).await });
        let again = async |near: &Harness| match near.take(&setup.queue, 1).await.pop() {
            Some(message) => near.complete(message.fence()).await == Answer::Done,
            None => false,
        };
        setup.until("the message at the tail", again).await?;
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Done]);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_for_later_whose_reply_was_lost_is_done_although_the_message_has_moved_on() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let later = Some(Due::In(Duration::from_secs(60)));
        let warm = setup.lease().await;
        setup.far.retry(&[warm], later, Place::Keep).await.unwrap();
        let fence = setup.lease_one().await;
        setup.proxy.set(Mode::Mute);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.retry(&[fence], later, Place::Keep).await });
        let lane = setup.queue.lanes[0];
        let scheduled = async |near: &Harness| near.store.lane_stats(lane).await.unwrap().scheduled == 2;
        setup.until("the message that waits for its time", scheduled).await?;
        setup.near.advance(60_000);
        for message in setup.near.take(&setup.queue, 2).await {
            assert_eq!(setup.near.complete(message.fence()).await, Answer::Done);
        }
        assert_eq!(setup.live().await, 0);
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Done]);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bury_whose_reply_was_lost_is_done_although_the_message_has_left_the_dead_queue() {
    in_one_round(async || {
        let near = support::postgres().await;
        let dead = near.store.queue_create("dead", Settings::default()).await.unwrap();
        let setup = setup_on(near, Settings { dead_queue: Some("dead".to_owned()), ..Settings::default() }).await;
        let warm = setup.lease().await;
        setup.far.bury(&[warm], "warm").await.unwrap();
        let take = async |near: &Harness| match near.take(&dead, 1).await.pop() {
            Some(message) => near.complete(message.fence()).await == Answer::Done,
            None => false,
        };
        assert!(take(&setup.near).await);
        let fence = setup.lease_one().await;
        setup.proxy.set(Mode::Mute);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.bury(&[fence], "poison").await });
        setup.until("the message in the dead queue", take).await?;
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Done]);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_that_never_arrived_is_refused_when_another_holder_has_completed_the_message() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let fence = setup.lease().await;
        setup.proxy.set(Mode::Late);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.complete(&[fence]).await });
        setup.kept_back().await?;
        setup.near.advance(31_000);
        let taken = setup.near.take_one(&setup.queue).await;
        assert_eq!(setup.near.complete(taken.fence()).await, Answer::Done);
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Unknown]);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_never_existed_stays_unknown_in_a_repeated_batch() {
    in_one_round(async || {
        // Both are completed by one statement: that of a queue that keeps what is completed.
        let setup = setup(Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() }).await;
        let (fence, never) = (setup.lease().await, Fence::exact(4_000_000_000, 1));
        setup.proxy.set(Mode::Mute);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.complete(&[never, fence]).await });
        setup.until("a completed message", async |_| setup.live().await == 0).await?;
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Unknown, Answer::Done]);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_different_verbs_whose_reply_was_lost_is_done() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let (completed, released) = (setup.lease().await, setup.lease_one().await);
        setup.proxy.set(Mode::MuteCommit);
        let far = setup.far.clone();
        let batch = vec![(completed, End::Complete), (released, End::Retry { due: None, place: Place::Tail })];
        let call = tokio::spawn(async move { far.finish_in_order(batch).await });
        let ready = async |near: &Harness| near.store.lane_stats(setup.queue.lanes[0]).await.unwrap().ready == 1;
        setup.until("the released message", ready).await?;
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Done, Answer::Done]);
        Some(())
    })
    .await;
}

impl Setup {
    /// A key that the store behind the proxy holds, on whose connection the verbs of keys have been prepared.
    async fn lease_key(&self) -> i64 {
        let keyed = || NewMessage { key: Some("k".to_owned()), ..NewMessage::new("x") };
        for delay in [Duration::ZERO, REST] {
            self.near.put_message(&self.queue, keyed()).await;
            let token = self.far_key().await;
            assert_eq!(self.far.key_release(token, delay, None).await.unwrap(), Answer::Done);
            self.near.advance(60_000);
            let token = self.far_key().await;
            assert_eq!(self.far.key_complete(token).await.unwrap(), Answer::Done);
        }
        self.near.put_message(&self.queue, keyed()).await;
        self.far_key().await
    }

    async fn far_key(&self) -> i64 {
        self.far.claim_key(&self.queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap().token
    }

    /// Another consumer takes the key.
    async fn near_key(&self) -> i64 {
        self.near.store.claim_key(&self.queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap().token
    }
}

const REST: Duration = Duration::from_secs(60);

/// Ends a key's lease: completes its messages, or gives them back after this long.
async fn end_key(store: Arc<Store>, token: i64, rest: Option<Duration>) -> tenure_store::Result<Answer> {
    match rest {
        None => store.key_complete(token).await,
        Some(rest) => store.key_release(token, rest, None).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_release_whose_reply_was_lost_is_done_although_another_consumer_has_the_key() {
    for rest in [Duration::ZERO, REST] {
        in_one_round(async || {
            let setup = setup(Settings::default()).await;
            let token = setup.lease_key().await;
            setup.proxy.set(Mode::MuteCommit);
            let call = tokio::spawn(end_key(setup.far.clone(), token, Some(rest)));
            let ready = async |near: &Harness| near.store.lane_stats(setup.queue.lanes[0]).await.unwrap().ready == 1;
            setup.until("the released message", ready).await?;
            setup.near.advance(60_000);
            let taken = setup.near_key().await;
            setup.cut().await?;
            assert_eq!(call.await.unwrap().unwrap(), Answer::Done);
            // Another call is not the repeat, and the other consumer's lease is untouched.
            assert_eq!(setup.far.key_release(token, rest, None).await.unwrap(), Answer::Lost);
            assert_eq!(setup.near.store.key_complete(taken).await.unwrap(), Answer::Done);
            Some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_complete_whose_reply_was_lost_is_done() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let token = setup.lease_key().await;
        setup.proxy.set(Mode::MuteCommit);
        let call = tokio::spawn(end_key(setup.far.clone(), token, None));
        setup.until("the completed messages", async |_| setup.live().await == 0).await?;
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), Answer::Done);
        assert_eq!(setup.far.key_complete(token).await.unwrap(), Answer::Lost);
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_key_lease_that_never_arrived_is_lost_when_another_consumer_has_taken_the_key_over() {
    for rest in [None, Some(Duration::ZERO), Some(REST)] {
        in_one_round(async || {
            let setup = setup(Settings::default()).await;
            let token = setup.lease_key().await;
            setup.proxy.set(Mode::Late);
            let call = tokio::spawn(end_key(setup.far.clone(), token, rest));
            setup.kept_back().await?;
            setup.near.advance(31_000);
            setup.near_key().await;
            setup.cut().await?;
            assert_eq!(call.await.unwrap().unwrap(), Answer::Lost, "{rest:?}");
            Some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_key_lease_that_another_consumer_has_taken_over_is_lost_also_when_a_reply_was_lost() {
    for rest in [None, Some(Duration::ZERO), Some(REST)] {
        in_one_round(async || {
            let setup = setup(Settings::default()).await;
            let token = setup.lease_key().await;
            setup.near.advance(31_000);
            setup.near_key().await;
            setup.proxy.set(Mode::MuteCommit);
            let call = tokio::spawn(end_key(setup.far.clone(), token, rest));
            // The commit has gone through, and its reply is dropped.
            setup.until("a lost reply", async |_| setup.proxy.lost.load(Ordering::SeqCst) > 0).await?;
            setup.cut().await?;
            assert_eq!(call.await.unwrap().unwrap(), Answer::Lost, "{rest:?}");
            Some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_attempt_that_arrives_after_its_repeat_changes_nothing() {
    in_one_round(async || {
        let setup = setup(Settings::default()).await;
        let fence = setup.lease().await;
        setup.proxy.set(Mode::Late);
        let far = setup.far.clone();
        let call = tokio::spawn(async move { far.put_back(&[fence]).await });
        setup.kept_back().await?;
        let ports = setup.proxy.ports.lock().unwrap().clone();
        // The client's side is cut, and the repeat goes through another connection while the request is still on its way.
        setup.cut().await?;
        assert_eq!(call.await.unwrap().unwrap(), [Answer::Done]);
        // The same attempt number under another lease: the late request must not release it.
        let message = setup.near.take_one(&setup.queue).await;
        assert_eq!(message.attempts, 1);
        setup.proxy.set(Mode::Deliver);
        // The server ends a connection when it has carried out what it was sent.
        let server = Records::of(&setup.near).await;
        let open = "select count(*) from pg_stat_activity where client_port = any($1)";
        let carried_out =
            async |_: &Harness| server.client.query_one(open, &[&ports]).await.unwrap().get::<_, i64>(0) == 0;
        setup.until("the end of the late request", carried_out).await?;
        assert_eq!(setup.near.complete(message.fence()).await, Answer::Done);
        Some(())
    })
    .await;
}

/// The records of calls in a store's schema.
struct Records {
    client: tokio_postgres::Client,
    count: String,
}

impl Records {
    async fn of(store: &Harness) -> Self {
        let (client, connection) =
            tokio_postgres::connect(&support::postgres_dsn(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let schema = store.dsn.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap();
        Records { client, count: format!("select count(*) from {schema}.call") }
    }

    async fn count(&self) -> i64 {
        self.client.query_one(&self.count, &[]).await.unwrap().get(0)
    }
}

async fn complete_one(near: &Harness, queue: &Queue) {
    near.put(queue, "x").await;
    let message = near.take_one(queue).await;
    assert_eq!(near.complete(message.fence()).await, Answer::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_removes_its_own_records_when_no_call_can_be_repeated_any_more() {
    let near = support::postgres().await;
    let (queue, records) = (near.queue().await, Records::of(&near).await);
    complete_one(&near, &queue).await;
    complete_one(&near, &queue).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(records.count().await, 2);
    near.advance(300_000);
    complete_one(&near, &queue).await;
    let removed = async {
        while records.count().await > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), removed).await.expect("the record of the first call is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_calls_are_forgotten_after_an_hour() {
    let near = support::postgres().await;
    let (queue, records) = (near.queue().await, Records::of(&near).await);
    complete_one(&near, &queue).await;
    near.store.forget().await.unwrap();
    assert_eq!(records.count().await, 1, "a call of this hour may still be repeated");
    // Records carry the server's own time, which the clock of the test is behind.
    near.clock.set(i64::MAX / 2);
    near.store.forget().await.unwrap();
    assert_eq!(records.count().await, 0);
}

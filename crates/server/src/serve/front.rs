//! Connections: accepted, talked to, and let go.
//!
//! Invariants: no more connections are open than allowed, and the rest wait in the system's backlog; accepting ends
//! only when it is told to, and never waits for a caller; nothing limits how long a request runs, because a lease may
//! wait for a quarter of an hour: only how long its header and its body take to arrive, and how long a connection
//! stays idle; a stop lets running requests finish, within its time.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::Service as _;
use tracing::{debug, warn};

use crate::Service;
use crate::tls::Tls;

/// A request's header, and what is read ahead of a body.
const BUFFER: usize = 64 * 1024;
/// A body has a second more for every so many bytes of it that have arrived.
const BYTES_PER_SECOND: u64 = 64 * 1024;
/// For so long after a stop newcomers are still answered: that the service is shutting down.
const LATE: Duration = Duration::from_millis(250);
/// After a connection could not be accepted, usually because the process has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// How often it is said that every connection is in use.
const FULL_NOTICE: Duration = Duration::from_secs(60);

/// How connections are treated.
#[derive(Clone, Debug)]
pub struct Transport {
    /// How many are open at once; further callers wait until one closes.
    pub connections: u32,
    /// How long a new connection may take to send the header of its first request.
    pub header_timeout: Duration,
    /// How long a body may take to arrive, and a second more for every 64 KiB of it.
    pub body_timeout: Duration,
    /// How long a connection may take, after an answer, to send the header of the next request.
    pub idle_timeout: Duration,
    /// How long running requests may take to finish after a stop.
    pub shutdown_timeout: Duration,
    /// Makes it HTTPS.
    pub tls: Option<Tls>,
}

impl Default for Transport {
    fn default() -> Self {
        Transport {
            connections: 1000,
            // Clients open connections ahead of use, and give up idle ones after 60 or 90 seconds.
            header_timeout: Duration::from_secs(100),
            body_timeout: Duration::from_secs(30),
            // Clients give up idle connections after 60 or 90 seconds. The server must not be the first: a request
            // that is on its way would meet a closed door.
            idle_timeout: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
            tls: None,
        }
    }
}

/// Serves on `listener` until `stop` completes, then shuts the service down and lets running requests finish.
pub async fn serve_on(
    listener: TcpListener,
    service: Arc<Service>,
    transport: Transport,
    stop: impl Future<Output = ()>,
) {
    serve_router(listener, service.router(), transport, stop, service.shut_down()).await;
}

/// What connections are told, one after the other.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Open,
    /// Finish what runs, and close.
    Draining,
    /// Close.
    Over,
}

async fn serve_router(
    listener: TcpListener,
    router: Router,
    transport: Transport,
    stop: impl Future<Output = ()>,
    shut_down: impl Future<Output = ()>,
) {
    let (connections, patience) = (transport.connections, transport.shutdown_timeout);
    let slots = Arc::new(Semaphore::new(connections as usize));
    let phase = watch::Sender::new(Phase::Open);
    let front = Arc::new(Front::new(router, transport));
    tokio::select! {
        () = stop => {}
        () = front.accept(&listener, &slots, &phase) => {}
    }
    let drained = async {
        // First of all, so that leases that wait are answered and do not hold the connections. Whoever comes a moment too
        // late is told so, and is not left with a door that was shut in his face.
        shut_down.await;
        timeout(LATE, front.accept(&listener, &slots, &phase)).await.ok();
        drop(listener);
        phase.send_replace(Phase::Draining);
        // All slots are free when all connections have ended.
        drop(slots.acquire_many(connections).await);
    };
    if timeout(patience, drained).await.is_err() {
        let open = (connections as usize).saturating_sub(slots.available_permits());
        warn!(open, "connections did not end within the shutdown-timeout of {patience:?}, and are cut");
    }
    phase.send_replace(Phase::Over);
}

/// What every connection needs.
struct Front {
    router: Router,
    http: http1::Builder,
    transport: Transport,
}

impl Front {
    fn new(router: Router, transport: Transport) -> Self {
        let mut http = http1::Builder::new();
        // The HTTP library has one clock for headers, and it runs from the end of the last answer: waiting for the
        // next request and reading its header share the idle timeout. Who sends a header byte by byte gains nothing
        // over who sends nothing. The first header of a connection has a shorter time, in `talk`.
        http.timer(TokioTimer::new()).header_read_timeout(transport.idle_timeout).max_buf_size(BUFFER);
        Front { router, http, transport }
    }

    /// Accepts connections for ever.
    async fn accept(self: &Arc<Self>, listener: &TcpListener, slots: &Arc<Semaphore>, phase: &watch::Sender<Phase>) {
        let mut noticed: Option<Instant> = None;
        loop {
            if slots.available_permits() == 0 && noticed.is_none_or(|at| at.elapsed() > FULL_NOTICE) {
                let connections = self.transport.connections;
                warn!(connections, "all connections are in use, and further callers wait: see limits.connections");
                noticed = Some(Instant::now());
            }
            // The slot comes before the connection, which otherwise waits where nobody else can take it. Nobody closes
            // the semaphore: there is always a slot to wait for.
            let slot = slots.clone().acquire_owned().await.ok();
            let stream = accepted(listener).await;
            let (front, phase) = (self.clone(), phase.subscribe());
            tokio::spawn(async move {
                front.meet(stream, phase).await;
                drop(slot);
            });
        }
    }

    /// Shakes hands, if it has to, and talks.
    async fn meet(&self, stream: TcpStream, mut phase: watch::Receiver<Phase>) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "a connection will be slower than it could be");
        }
        let Some(tls) = &self.transport.tls else { return self.talk(stream, phase).await };
        let shaken = tokio::select! {
            shaken = tls.accept(stream) => shaken,
            // Nothing has been asked yet, so nothing is lost.
            _ = phase.changed() => return,
        };
        match shaken {
            Ok(stream) => self.talk(stream, phase).await,
            Err(error) => debug!(%error, "a caller did not finish its TLS handshake"),
        }
    }

    /// Answers a connection's requests until it ends.
    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin, mut phase: watch::Receiver<Phase>) {
        let asked = AtomicBool::new(false);
        let service = service_fn(|request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            let request = request.map(|body| Arriving::new(body, self.transport.body_timeout));
            self.router.clone().call(request)
        });
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let mut first = pin!(sleep(self.transport.header_timeout));
        let mut waiting = true;
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection ended in the middle");
                    }
                    return;
                }
                told = phase.changed() => {
                    if told.is_err() || *phase.borrow() == Phase::Over {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                }
                () = first.as_mut(), if waiting => {
                    if !asked.load(Ordering::Relaxed) {
                        debug!("a new connection sent no request in time");
                        return;
                    }
                    waiting = false;
                }
            }
        }
    }
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The caller went away while it waited.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                warn!(%error, "connections cannot be accepted: allow more open files (ulimit -n) or fewer connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A request's body that must not take for ever.
struct Arriving {
    body: Incoming,
    patience: Duration,
    received: u64,
    /// Since somebody waits for it, and the alarm: most bodies are there at once and need none.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Arriving {
    fn new(body: Incoming, patience: Duration) -> Self {
        Arriving { body, patience, received: 0, waiting: None }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            if let Some(Ok(frame)) = &frame {
                this.received += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let allowed = this.patience + Duration::from_secs(this.received / BYTES_PER_SECOND);
        let (since, alarm) = this.waiting.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + allowed)))
        });
        let deadline = *since + allowed;
        if alarm.deadline() != deadline {
            alarm.as_mut().reset(deadline);
        }
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Some(Err("the body of the request did not arrive in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::net::SocketAddr;

    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::{Notify, oneshot};
    use tokio::task::JoinHandle;

    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    const SHORT: Duration = Duration::from_millis(100);

    struct Server {
        address: SocketAddr,
        stop: oneshot::Sender<()>,
        ended: JoinHandle<()>,
    }

    impl Server {
        async fn start(router: Router, transport: Transport) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stop, stopped) = oneshot::channel();
            let stopped = async {
                stopped.await.ok();
            };
            let ended = tokio::spawn(serve_router(listener, router, transport, stopped, async {}));
            Server { address, stop, ended }
        }

        async fn call(&self, text: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }

        async fn stop(self) {
            self.stop.send(()).ok();
            timeout(Duration::from_secs(10), self.ended).await.expect("it did not stop").unwrap();
        }
    }

    fn hello() -> Router {
        Router::new().route("/", get(|| async { "hello" }))
    }

    /// What the server says until it has said `part`, or until the connection ends.
    async fn hear(stream: &mut TcpStream, part: &str) -> String {
        let mut heard = Vec::new();
        let mut buffer = [0; 1024];
        let listening = async {
            while !String::from_utf8_lossy(&heard).contains(part) {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => heard.extend_from_slice(&buffer[..count]),
                }
            }
        };
        timeout(Duration::from_secs(10), listening).await.expect("nothing was said");
        String::from_utf8_lossy(&heard).into_owned()
    }

    #[tokio::test]
    async fn requests_follow_each_other_on_one_connection() {
        let transport = Transport { header_timeout: SHORT, ..Transport::default() };
        let server = Server::start(hello(), transport).await;
        let mut stream = server.call(GET).await;
        assert!(hear(&mut stream, "hello").await.starts_with("HTTP/1.1 200"));
        // The time for the first header has passed, and is of no interest to the second.
        sleep(SHORT * 3).await;
        stream.write_all(GET.as_bytes()).await.unwrap();
        assert!(hear(&mut stream, "hello").await.starts_with("HTTP/1.1 200"));
        server.stop().await;
    }

    #[tokio::test]
    async fn a_connection_without_a_whole_header_is_closed() {
        let transport = Transport { header_timeout: SHORT, ..Transport::default() };
        let server = Server::start(hello(), transport).await;
        for start in ["", "GET / HTTP/1.1\r\nHost: he"] {
            let mut stream = server.call(start).await;
            assert!(!hear(&mut stream, "never").await.contains("200"), "{start}");
        }
        server.stop().await;
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed() {
        let transport = Transport { idle_timeout: SHORT, ..Transport::default() };
        let server = Server::start(hello(), transport).await;
        let mut stream = server.call(GET).await;
        assert!(hear(&mut stream, "never").await.ends_with("hello"));
        server.stop().await;
    }

    #[tokio::test]
    async fn a_header_that_is_too_long_is_refused() {
        let server = Server::start(hello(), Transport::default()).await;
        let mut stream = server.call(&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(BUFFER))).await;
        assert!(!hear(&mut stream, "never").await.contains("200"));
        server.stop().await;
    }

    #[tokio::test]
    async fn a_body_that_does_not_arrive_is_an_error_for_its_reader() {
        let read = |request: axum::extract::Request| async move {
            axum::body::to_bytes(request.into_body(), 100).await.map_or("cut", |_| "whole")
        };
        let transport = Transport { body_timeout: SHORT, ..Transport::default() };
        let server = Server::start(Router::new().route("/", post(read)), transport).await;
        for (body, answer) in [("0123456789", "whole"), ("0123", "cut")] {
            let request = format!("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n{body}");
            let mut stream = server.call(&request).await;
            assert!(hear(&mut stream, answer).await.ends_with(answer));
        }
        server.stop().await;
    }

    #[tokio::test]
    async fn no_more_connections_than_allowed_are_served_at_once() {
        let transport = Transport { connections: 1, ..Transport::default() };
        let server = Server::start(hello(), transport).await;
        let mut first = server.call(GET).await;
        hear(&mut first, "hello").await;
        let mut second = server.call(GET).await;
        let mut byte = [0; 1];
        assert!(timeout(SHORT, second.peek(&mut byte)).await.is_err(), "it was served beside the first");
        drop(first);
        assert!(hear(&mut second, "hello").await.ends_with("hello"));
        server.stop().await;
    }

    #[tokio::test]
    async fn a_stop_closes_idle_connections_and_lets_a_running_request_finish() {
        let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (entered, go) = (entered.clone(), go.clone());
            || async move {
                entered.notify_one();
                go.notified().await;
                "finished"
            }
        };
        let router = hello().route("/slow", get(slow));
        let server = Server::start(router, Transport::default()).await;
        let mut idle = server.call(GET).await;
        hear(&mut idle, "hello").await;
        let mut running = server.call("GET /slow HTTP/1.1\r\nHost: here\r\n\r\n").await;
        entered.notified().await;
        let stopping = tokio::spawn(server.stop());
        assert_eq!(hear(&mut idle, "never").await, "");
        assert!(!stopping.is_finished());
        go.notify_one();
        assert!(hear(&mut running, "never").await.ends_with("finished"));
        stopping.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_that_does_not_finish_is_cut_when_the_stop_has_taken_too_long() {
        let entered = Arc::new(Notify::new());
        let endless = {
            let entered = entered.clone();
            || async move {
                entered.notify_one();
                std::future::pending::<&str>().await
            }
        };
        let transport = Transport { shutdown_timeout: SHORT, ..Transport::default() };
        let server = Server::start(Router::new().route("/", get(endless)), transport).await;
        let mut stream = server.call(GET).await;
        entered.notified().await;
        server.stop().await;
        assert_eq!(hear(&mut stream, "never").await, "");
    }
}

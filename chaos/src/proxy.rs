//! A TCP proxy in front of a database, which can cut, stall, freeze and half-close what goes through it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Result;

/// What the proxy does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything passes.
    Pass,
    /// Connections are closed, and new ones are closed as soon as they are made.
    Cut,
    /// The database's side is closed, and the client's side stays open and is never answered: the peer has vanished.
    /// Connections that were hit stay so.
    HalfOpen,
    /// Requests pass and answers vanish. Connections that were hit stay so.
    Mute,
    /// Everything passes, and each piece is late by this much.
    Stall(Duration),
    /// Nothing passes, and nothing is closed or lost.
    Freeze,
}

/// A running proxy.
pub(crate) struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    target: watch::Sender<SocketAddr>,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (mode, watched) = watch::channel(Mode::Pass);
        let (target, targeted) = watch::channel(target);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let target = *targeted.borrow();
                tokio::spawn(carry(near, target, watched.clone()));
            }
        });
        Ok(Proxy { address, mode, target })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Leads new connections to another place.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut mode: watch::Receiver<Mode>) {
    let now = *mode.borrow_and_update();
    if now == Mode::Cut {
        return;
    }
    if now == Mode::HalfOpen {
        return swallow(near.into_split().0).await;
    }
    if now == Mode::Freeze {
        becomes(&mut mode, |mode| mode != Mode::Freeze).await;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    // A side that cannot be told to hurry is only slower.
    near.set_nodelay(true).ok();
    far.set_nodelay(true).ok();
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let mut ends = mode.clone();
    let mut up = tokio::spawn(pump(near_in, far_out, mode.clone(), false));
    let mut down = tokio::spawn(pump(far_in, near_out, mode, true));
    tokio::select! {
        () = becomes(&mut ends, |mode| mode == Mode::Cut) => {
            up.abort();
            down.abort();
        }
        _ = &mut up => down.abort(),
        ended = &mut down => match ended {
            // The answers vanish from now on, or the peer has vanished: the client learns nothing.
            Ok(Some(near_out)) => {
                up.await.ok();
                drop(near_out);
            }
            _ => up.abort(),
        },
    }
}

/// Waits for a mode, or for the end of the proxy.
async fn becomes(mode: &mut watch::Receiver<Mode>, wanted: impl Fn(Mode) -> bool) {
    // The proxy's end is the end of the whole run.
    mode.wait_for(|mode| wanted(*mode)).await.map(drop).ok();
}

/// Reads and forgets, until the client closes.
async fn swallow(mut near: OwnedReadHalf) {
    let mut buffer = [0; 4096];
    while matches!(near.read(&mut buffer).await, Ok(count) if count > 0) {}
}

/// Carries bytes in one direction. Returns the client's side when the client must not learn that the connection is dead.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    answers: bool,
) -> Option<OwnedWriteHalf> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(count) if count > 0 => count,
                _ => return None,
            },
            () = becomes(&mut mode, |mode| mode == Mode::HalfOpen || (answers && mode == Mode::Mute)) => 0,
        };
        loop {
            let now = *mode.borrow_and_update();
            match now {
                Mode::Pass => break,
                Mode::Stall(late) => {
                    tokio::time::sleep(late).await;
                    break;
                }
                Mode::Cut => return None,
                Mode::HalfOpen if answers => return Some(to),
                Mode::HalfOpen => {
                    drop(to);
                    swallow(from).await;
                    return None;
                }
                Mode::Mute if answers => {
                    swallow(from).await;
                    return Some(to);
                }
                Mode::Mute => break,
                Mode::Freeze => becomes(&mut mode, |mode| mode != Mode::Freeze).await,
            }
        }
        if count > 0 && to.write_all(&buffer[..count]).await.is_err() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::{Mode, Proxy};

    const MOMENT: Duration = Duration::from_millis(200);
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A server that answers every byte with the same byte and reports it, behind a proxy.
    async fn echo() -> (Proxy, mpsc::UnboundedReceiver<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let (report, reported) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let report = report.clone();
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        report.send(byte).ok();
                        stream.write_u8(byte).await.ok();
                    }
                });
            }
        });
        (proxy, reported)
    }

    async fn connect(proxy: &Proxy) -> TcpStream {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream, 1, PATIENCE).await, Some(1));
        stream
    }

    /// None: there was no answer, and the connection is open.
    async fn ask(stream: &mut TcpStream, byte: u8, patience: Duration) -> Option<u8> {
        stream.write_u8(byte).await.unwrap();
        let answer = tokio::time::timeout(patience, stream.read_u8()).await.ok()?;
        Some(answer.unwrap())
    }

    #[tokio::test]
    async fn frozen_connection_loses_nothing() {
        let (proxy, _reported) = echo().await;
        let mut stream = connect(&proxy).await;
        proxy.set(Mode::Freeze);
        assert_eq!(ask(&mut stream, 2, MOMENT).await, None);
        proxy.set(Mode::Pass);
        assert_eq!(stream.read_u8().await.unwrap(), 2);
    }

    #[tokio::test]
    async fn muted_connection_delivers_requests_and_stays_silent_for_good() {
        let (proxy, mut reported) = echo().await;
        let mut stream = connect(&proxy).await;
        reported.recv().await;
        proxy.set(Mode::Mute);
        assert_eq!(ask(&mut stream, 2, MOMENT).await, None);
        assert_eq!(reported.recv().await, Some(2));
        proxy.set(Mode::Pass);
        assert_eq!(ask(&mut stream, 3, MOMENT).await, None);
        connect(&proxy).await;
    }

    #[tokio::test]
    async fn half_open_connection_stays_open_and_is_never_answered() {
        let (proxy, mut reported) = echo().await;
        let mut stream = connect(&proxy).await;
        reported.recv().await;
        proxy.set(Mode::HalfOpen);
        assert_eq!(ask(&mut stream, 2, MOMENT).await, None);
        proxy.set(Mode::Pass);
        assert_eq!(ask(&mut stream, 3, MOMENT).await, None);
        assert!(reported.try_recv().is_err(), "nothing may reach the server");
        connect(&proxy).await;
    }

    #[tokio::test]
    async fn stalled_connection_answers_later_and_a_cut_one_is_closed() {
        let (proxy, _reported) = echo().await;
        let mut stream = connect(&proxy).await;
        proxy.set(Mode::Stall(2 * MOMENT));
        assert_eq!(ask(&mut stream, 2, MOMENT).await, None);
        assert_eq!(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap(), 2);
        proxy.set(Mode::Cut);
        assert!(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().is_err());
        proxy.set(Mode::Pass);
        connect(&proxy).await;
    }
}

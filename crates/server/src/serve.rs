//! The process around the router: reads its settings, listens, says where it is, and stops when it is asked to.
//!
//! Invariants: the first line on standard output is where the server listens, and it is printed when requests are
//! answered, not before; everything else that people read goes to standard error; no password is ever printed; the
//! first signal lets running requests finish, the second does not.

mod front;

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tenure_store::{Error, Kind, Result, dsn_shown};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

pub use self::front::{Transport, serve_on};
use crate::Service;
use crate::config::{Config, LogFormat, Serve};
pub use crate::tls::Tls;

/// Callers that the system keeps waiting while every connection is in use.
const BACKLOG: u32 = 4096;

/// Serves until the process is asked to end.
pub async fn run(flags: &Serve) -> Result<()> {
    let mut config = Config::load(flags)?;
    let addresses = resolve(&config.listen).await?;
    config.admit(&addresses)?;
    config.transport.tls = match &config.tls {
        Some((certificate, key)) => Some(Tls::from_files(certificate, key)?),
        None => None,
    };
    let places = places(&config);
    if flags.check {
        println!("the settings are right: listen on {}, data in {places}", config.listen);
        return Ok(());
    }
    start_log(&config);
    // Before the database is touched: a port that is taken usually means that a server is running already.
    let (listener, address) = listen(&config.listen, &addresses)?;
    let service = Service::start(config.options).await?;
    let mut signals = Signals::new().map_err(|error| {
        Error::new(Kind::InvalidState, format!("signals cannot be received: {error}")).with_source(error)
    })?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    announce(scheme, address, &places, config.log_format);
    if !address.ip().is_loopback() && service.is_door_open().await {
        warn!(
            "other machines can reach this server, and callers without a key may do everything: see docs/guide/security.md for how to close the door"
        );
    }
    let (stop, stopped) = oneshot::channel();
    let serving = async {
        let stop = async {
            stopped.await.ok();
        };
        serve_on(listener, service.clone(), config.transport, stop).await;
        service.close().await;
    };
    let watching = async {
        let signal = signals.next().await;
        info!(signal, "stopping: running requests may finish; a second signal ends at once");
        stop.send(()).ok();
        let signal = signals.next().await;
        warn!(signal, "ended at once");
    };
    tokio::select! {
        () = serving => info!("stopped"),
        () = watching => {}
    }
    Ok(())
}

/// Where the data is, for people.
fn places(config: &Config) -> String {
    let stores = &config.options.stores;
    let place = |dsn: &str, name: &str| match stores.len() {
        1 => dsn_shown(dsn),
        _ => format!("{} ({name})", dsn_shown(dsn)),
    };
    stores.iter().map(|store| place(&store.dsn, &store.name)).collect::<Vec<_>>().join(", ")
}

async fn resolve(listen: &str) -> Result<Vec<SocketAddr>> {
    let unknown = |error: io::Error| {
        let message = format!("listen is '{listen}', and that host is not known here: {error}");
        Error::new(Kind::InvalidInput, message).with_source(error)
    };
    let addresses: Vec<_> = tokio::net::lookup_host(listen).await.map_err(unknown)?.collect();
    if addresses.is_empty() {
        return Err(unknown(io::Error::other("it has no address")));
    }
    Ok(addresses)
}

/// Listens on the first of a host's addresses that can be had.
fn listen(name: &str, addresses: &[SocketAddr]) -> Result<(TcpListener, SocketAddr)> {
    let bind = |address: &SocketAddr| -> io::Result<(TcpListener, SocketAddr)> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A server that was stopped a moment ago still has connections that are fading away. On Windows the option
        // would mean something else: that two servers may have the same port.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(*address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let mut refused = io::Error::other("it has no address");
    for address in addresses {
        match bind(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => refused = error,
        }
    }
    let hint = match refused.kind() {
        io::ErrorKind::AddrInUse => "another program has this port, perhaps another tenure: stop it, or choose another",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose another",
        _ => "choose another address",
    };
    let message = format!("cannot listen on {name}: {refused}; {hint} with --listen");
    Err(Error::new(Kind::InvalidState, message).with_source(refused))
}

/// Says where the server is: one line for programs, and some for people.
fn announce(scheme: &str, address: SocketAddr, places: &str, format: LogFormat) {
    let mut out = io::stdout();
    // Somebody who closed our standard output does not want to know, and wants to be served all the same.
    writeln!(out, "listening on {scheme}://{address}").and_then(|()| out.flush()).ok();
    let url = format!("{scheme}://{}", SocketAddr::new(reachable(address.ip()), address.port()));
    let version = env!("CARGO_PKG_VERSION");
    if format == LogFormat::Json {
        info!(version, %url, data = places, "listening");
        return;
    }
    let queue = r#"{"queue_name":"mail","lease_timeout":"1m","expire_timeout":"24h","requested_partitions":1}"#;
    let text = format!(
        "tenure {version}\n\
         \x20 data in {places}\n\
         \x20 to create a queue: curl {url}/v1/queues.create -H 'Content-Type: application/json' -d '{queue}'\n\
         \x20 API reference: {url}/docs (the dashboard will be at {url}/, which leads there for now)\n"
    );
    io::stderr().write_all(text.as_bytes()).ok();
}

/// The address by which this machine reaches a server that listens on all of them.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(all) if all.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(all) if all.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => ip,
    }
}

fn start_log(config: &Config) {
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(&config.log_filter)).with_writer(io::stderr);
    // It fails only where a log has been started already, by a program that holds this one.
    match config.log_format {
        LogFormat::Text => log.try_init().ok(),
        LogFormat::Json => log.json().flatten_event(true).try_init().ok(),
    };
}

/// The signals that ask a process to end.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The signals that ask a process to end.
#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Signals)
    }

    async fn next(&mut self) -> &'static str {
        self.0.recv().await;
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_is_refused_with_what_to_do() {
        let addresses = resolve("localhost:0").await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()));
        let (_listener, address) = listen("localhost:0", &addresses).unwrap();
        let said = listen("localhost:0", &[address]).unwrap_err().to_string();
        assert!(said.contains("another program has this port") && said.contains("--listen"), "{said}");
    }

    #[test]
    fn a_server_on_all_addresses_is_reached_by_its_own() {
        for (bound, reached) in [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")] {
            assert_eq!(reachable(bound.parse().unwrap()), reached.parse::<IpAddr>().unwrap());
        }
    }
}

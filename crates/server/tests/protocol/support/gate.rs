//! A gate before PostgreSQL that can be shut: to a server behind it, the database has gone away.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::postgres_dsn;

/// While the gate is shut, connections are dropped as soon as they are made, and those that were open are cut.
pub(crate) struct Gate {
    open: watch::Sender<bool>,
    address: SocketAddr,
    /// Host and port of the database.
    target: String,
}

impl Gate {
    pub(crate) async fn open() -> Self {
        let dsn = postgres_dsn();
        let target = dsn.split(['@', '/']).find(|part| part.contains(':') && part.contains('.'));
        let target = target.expect("the DSN names a host and a port").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, watched) = watch::channel(true);
        tokio::spawn(serve(listener, target.clone(), watched));
        Gate { open, address, target }
    }

    /// The same database, through the gate.
    pub(crate) fn through(&self, dsn: &str) -> String {
        dsn.replace(&self.target, &self.address.to_string())
    }

    /// Returns when every connection is cut: a busy machine let one more call through before.
    pub(crate) async fn shut(&self) {
        self.open.send_replace(false);
        // Each connection watches the gate, and so does the listener.
        while self.open.receiver_count() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn reopen(&self) {
        self.open.send_replace(true);
    }
}

async fn serve(listener: TcpListener, target: String, open: watch::Receiver<bool>) {
    while let Ok((near, _)) = listener.accept().await {
        if *open.borrow() {
            tokio::spawn(carry(near, target.clone(), open.clone()));
        }
    }
}

async fn carry(mut near: TcpStream, target: String, mut open: watch::Receiver<bool>) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    tokio::select! {
        biased;
        _ = open.wait_for(|open| !*open) => {}
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
    }
}

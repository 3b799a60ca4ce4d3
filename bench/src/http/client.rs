//! The client's side: a keep-alive connection for each caller, and as little of HTTP as that takes.
//!
//! Invariants: requests that are always the same are written down once; an answer is taken apart without being copied;
//! anything but success, or messages that are not as long as they were, ends the measurement.

use std::net::SocketAddr;

use bytes::{Buf as _, Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Result;
use crate::http::drive::Caller;
use crate::http::wire::{
    CompleteRequest, LeaseRequest, LeaseResponse, ProduceItem, ProduceRequest, QUEUE, QueueInfo, Reply, payload,
    request,
};
use crate::http::{PATIENCE, Shape};

/// How long a call may take.
const TIMEOUT: &str = "1m";
/// Room for the head of an answer, and for all of a short one.
const HEAD: usize = 4096;

/// One caller.
pub(crate) struct Client {
    connection: Connection,
    produce: Bytes,
    lease: Vec<u8>,
    /// Bytes in a message.
    size: usize,
}

impl Client {
    /// Creates the queue, and the callers with their connections.
    pub(crate) async fn callers(server: SocketAddr, shape: Shape) -> Result<Vec<Self>> {
        let queue = QueueInfo {
            queue_name: QUEUE.to_owned(),
            lease_timeout: "1m".to_owned(),
            expire_timeout: "24h".to_owned(),
            requested_partitions: 1,
        };
        let mut connection = Connection::open(server).await?;
        connection.send(&request("/v1/queues.create", &queue)).await?.success()?;
        let produce = ProduceRequest {
            queue_name: QUEUE.to_owned(),
            request_timeout: TIMEOUT.to_owned(),
            items: vec![ProduceItem { bytes: payload(shape.size) }; shape.items],
        };
        let produce = Bytes::from(request("/v1/queue.produce", &produce));
        let mut clients = Vec::new();
        for n in 0..shape.callers {
            let lease = LeaseRequest {
                queue_name: QUEUE.to_owned(),
                batch_size: shape.items as i32,
                client_id: format!("client-{n}"),
                request_timeout: format!("{}ms", PATIENCE.as_millis()),
            };
            clients.push(Client {
                connection: Connection::open(server).await?,
                produce: produce.clone(),
                lease: request("/v1/queue.lease", &lease),
                size: shape.size,
            });
        }
        Ok(clients)
    }
}

impl Caller for Client {
    type Lease = CompleteRequest;

    async fn produce(&mut self) -> Result<()> {
        self.connection.send(&self.produce).await?.success()?;
        Ok(())
    }

    async fn lease(&mut self) -> Result<Option<(usize, CompleteRequest)>> {
        let answer = self.connection.send(&self.lease).await?;
        if answer.is_nothing() {
            return Ok(None);
        }
        let leased = LeaseResponse::decode(answer.success()?)?;
        if leased.items.is_empty() || leased.items.iter().any(|item| item.bytes.len() != self.size) {
            return Err("a lease brought no messages, or other ones than were produced".into());
        }
        let complete = CompleteRequest {
            queue_name: QUEUE.to_owned(),
            partition: leased.partition,
            request_timeout: TIMEOUT.to_owned(),
            ids: leased.items.into_iter().map(|item| item.id).collect(),
        };
        Ok(Some((complete.ids.len(), complete)))
    }

    async fn complete(&mut self, leased: CompleteRequest) -> Result<()> {
        self.connection.send(&request("/v1/queue.complete", &leased)).await?.success()?;
        Ok(())
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

pub(super) struct Answer {
    status: u16,
    body: Bytes,
}

impl Answer {
    /// The body of an answer that is no refusal.
    pub(super) fn success(self) -> Result<Bytes> {
        if self.status == 200 {
            return Ok(self.body);
        }
        let Reply { code, message } = Reply::decode(self.body)?;
        Err(format!("the server refused a call with {code}: {message}").into())
    }

    /// Whether a lease has waited in vain.
    fn is_nothing(&self) -> bool {
        let reply = || Reply::decode(self.body.clone()).unwrap_or_default();
        self.status == 454 && reply().message.starts_with("request timeout; no items")
    }
}

impl Connection {
    pub(super) async fn open(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: BytesMut::with_capacity(HEAD) })
    }

    pub(super) async fn send(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await?;
        let (status, start, length) = loop {
            self.read(HEAD).await?;
            if let Some(head) = head(&self.buffer)? {
                break head;
            }
        };
        while self.buffer.len() < start + length {
            self.read(start + length - self.buffer.len()).await?;
        }
        self.buffer.advance(start);
        Ok(Answer { status, body: self.buffer.split_to(length).freeze() })
    }

    async fn read(&mut self, room: usize) -> Result<()> {
        self.buffer.reserve(room);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err("the server closed a connection".into()),
            _ => Ok(()),
        }
    }
}

/// An answer's status, where its body begins and how long that is; none: there is more to come.
fn head(text: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let mut lines = std::str::from_utf8(&text[..end])?.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("an answer without a status")?;
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.ok_or("an answer that does not say how long it is")?;
    Ok(Some((status.parse()?, end + 4, length.trim().parse()?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::head;

    #[test]
    fn an_answer_is_known_when_its_head_is_whole() {
        let text = b"HTTP/1.1 454 Retry\r\nServer: x\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(head(text).unwrap(), Some((454, text.len() - 3, 3)));
        assert_eq!(head(&text[..text.len() - 4]).unwrap(), None);
        assert!(head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}

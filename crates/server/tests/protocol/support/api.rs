//! A small HTTP/1.1 client that hides nothing: any bytes can be sent, and what comes back is what was sent.
//!
//! Connections are kept and used again by the calls of one test; a call that is dropped closes its connection.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// No call of a test may take longer.
const LONGEST: Duration = Duration::from_secs(120);

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// A connection to a server.
pub(crate) struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// The bytes of a request.
pub(crate) fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: tenure\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Connection { reader: BufReader::new(reader), writer })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await
    }

    pub(crate) async fn receive(&mut self) -> io::Result<Response> {
        let response = tokio::time::timeout(LONGEST, receive(&mut self.reader));
        response.await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Sends and receives at the same time: a server may answer before it has read everything. Whether it has.
    async fn exchange(&mut self, bytes: &[u8]) -> io::Result<(Response, bool)> {
        let Connection { reader, writer } = self;
        let mut sent = false;
        let send = async {
            sent = writer.write_all(bytes).await.is_ok();
            std::future::pending::<Infallible>().await
        };
        let response = tokio::select! {
            response = receive(reader) => response?,
            never = send => match never {},
        };
        Ok((response, sent))
    }

    fn is_open(&self) -> bool {
        let read = self.reader.get_ref().try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

async fn receive(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Response> {
    let first = line(reader).await?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| unreadable(&first))?;
    let mut response = Response { status, headers: Vec::new(), body: Vec::new() };
    loop {
        let header = line(reader).await?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| unreadable(&header))?;
        response.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if response.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = line(reader).await?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| unreadable(&size))?;
            let start = response.body.len();
            response.body.resize(start + size, 0);
            reader.read_exact(&mut response.body[start..]).await?;
            line(reader).await?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = response.header("content-length") {
        let length = length.parse().map_err(|_| unreadable(length))?;
        response.body.resize(length, 0);
        reader.read_exact(&mut response.body).await?;
    }
    Ok(response)
}

async fn line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    match line.strip_suffix(b"\r\n") {
        Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn unreadable(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: '{text}'"))
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The text that goes with a code.
fn code_text(code: u16) -> &'static str {
    match code {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        453 => "Request Failed",
        454 => "Retry Request",
        455 => "Client Content Error",
        500 => "Internal Service Error",
        501 => "Not Implemented",
        other => panic!("no refusal has the code {other}"),
    }
}

/// The whole body of a refusal.
pub(crate) fn refusal(code: u16, message: &str) -> Value {
    json!({ "code": code, "code_text": code_text(code), "message": message })
}

/// A server as its clients see it.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    headers: Vec<(String, String)>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Api {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Api { address, headers: Vec::new(), idle: Arc::default() }
    }

    /// The same server, with one more header on every request.
    pub(crate) fn with(&self, name: &str, value: impl Display) -> Self {
        let mut api = self.clone();
        api.headers.push((name.to_owned(), value.to_string()));
        api
    }

    /// Every request carries this key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        self.with("authorization", format!("Bearer {key}"))
    }

    /// The key that every request carries.
    pub(crate) fn key(&self) -> String {
        let header = self.headers.iter().find_map(|(_, value)| value.strip_prefix("Bearer "));
        header.expect("requests carry no key").to_owned()
    }

    /// Every request sets the server's clock first; nanoseconds since 1970. Only with `--test-hooks`.
    pub(crate) fn at(&self, now: i64) -> Self {
        self.with("x-test-now", now)
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let ours = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers: Vec<(&str, &str)> = ours.chain(headers.iter().copied()).collect();
        let bytes = request(method, target, &headers, body);
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let exchange = tokio::time::timeout(LONGEST, connection.exchange(&bytes));
        let (response, sent) = exchange.await.map_err(|_| io::ErrorKind::TimedOut)??;
        if sent && response.header("connection") != Some("close") {
            self.idle.lock().unwrap().push(connection);
        }
        Ok(response)
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().unwrap().pop().filter(Connection::is_open)
    }

    pub(crate) async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let response = self.try_send(method, target, headers, body).await;
        response.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    pub(crate) async fn get(&self, target: &str) -> Response {
        self.send("GET", target, &[], b"").await
    }

    /// Calls an RPC with protobuf: the status and the body.
    pub(crate) async fn proto(&self, rpc: &str, body: &[u8]) -> Response {
        self.send("POST", &format!("/v1/{rpc}"), &[("content-type", "application/protobuf")], body).await
    }

    /// Calls an RPC with JSON; an error when no answer arrives.
    pub(crate) async fn try_call(&self, rpc: &str, body: &Value) -> io::Result<(u16, Value)> {
        let response = self.try_send("POST", &format!("/v1/{rpc}"), &[JSON], body.to_string().as_bytes()).await?;
        assert_eq!(response.header("content-type"), Some("application/json"), "{response:?}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{response:?}");
        Ok((response.status, response.json()))
    }

    /// Calls an RPC with JSON: the status and the body.
    pub(crate) async fn call(&self, rpc: &str, body: &Value) -> (u16, Value) {
        self.try_call(rpc, body).await.unwrap_or_else(|error| panic!("{rpc} {body}: {error}"))
    }

    /// Calls an RPC that must succeed: the body.
    pub(crate) async fn ok(&self, rpc: &str, body: &Value) -> Value {
        let (status, answer) = self.call(rpc, body).await;
        assert_eq!(status, 200, "{rpc} {body}: {answer}");
        answer
    }

    /// Calls an RPC that must succeed and has nothing to say.
    pub(crate) async fn done(&self, rpc: &str, body: &Value) {
        assert_eq!(self.ok(rpc, body).await, json!({ "code": 200 }), "{rpc} {body}");
    }

    /// Calls an RPC that must be refused with exactly this.
    pub(crate) async fn refused(&self, rpc: &str, body: &Value, code: u16, message: &str) {
        let (status, answer) = self.call(rpc, body).await;
        let shown: String = body.to_string().chars().take(300).collect();
        assert_eq!((status, answer), (code, refusal(code, message)), "{rpc} {shown}");
    }

    /// Refused with 400.
    pub(crate) async fn bad(&self, rpc: &str, body: &Value, message: &str) {
        self.refused(rpc, body, 400, message).await;
    }
}

/// A request that breaks every rule is mended one field at a time: each step uncovers the next message.
pub(crate) struct Ladder<'a> {
    pub(crate) api: &'a Api,
    rpc: &'static str,
    pub(crate) request: Value,
}

impl<'a> Ladder<'a> {
    pub(crate) fn new(api: &'a Api, rpc: &'static str, request: Value) -> Self {
        Ladder { api, rpc, request }
    }

    /// Sets a field; the request is still refused, with 400 and this message.
    pub(crate) async fn step(&mut self, field: &str, value: impl Into<Value>, message: &str) {
        self.step_with(field, value, 400, message).await;
    }

    pub(crate) async fn step_with(&mut self, field: &str, value: impl Into<Value>, code: u16, message: &str) {
        self.request[field] = value.into();
        self.api.refused(self.rpc, &self.request, code, message).await;
    }

    /// Sets the last field; now the request is fine. The answer.
    pub(crate) async fn end(mut self, field: &str, value: impl Into<Value>) -> Value {
        self.request[field] = value.into();
        self.api.ok(self.rpc, &self.request).await
    }
}

//! Calls the protocol for the operators' commands: over HTTP to a server, or in this process to a store.
//!
//! Invariants: a command cannot tell the two apart, because both are the same paths and the same messages; a store
//! that is not there is refused and never created by a look at it; no error repeats a key or a DSN.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, Response, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use tenure_store::{Backend, Kind, Store, dsn_backend, dsn_file};
use tower::ServiceExt as _;

use crate::Options;
use crate::cli::CliError;
use crate::wire::Reply;

const PROTOBUF: &str = "application/protobuf";
/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that waits for messages is probed this often, so that a server that vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Where commands go.
#[derive(Debug, PartialEq)]
pub(crate) enum Place {
    Server { url: String, key: Option<String> },
    Store { dsn: String },
}

/// Whoever answers the protocol.
pub(crate) enum Client {
    Server(Box<Server>),
    Store(Router),
}

/// A server somewhere else, and how to reach it.
pub(crate) struct Server {
    http: legacy::Client<HttpsConnector<HttpConnector>, Body>,
    /// What the paths are appended to; without a slash at its end.
    base: String,
    bearer: Option<HeaderValue>,
}

impl Client {
    pub(crate) async fn connect(place: Place) -> Result<Self, CliError> {
        match place {
            Place::Server { url, key } => Ok(Client::Server(Box::new(Server::new(&url, key.as_deref())?))),
            Place::Store { dsn } => Ok(Client::Store(crate::router(open(&dsn).await?, Options::default()))),
        }
    }

    /// Whether other callers meet at the same place: a store in this process has no other callers.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Client::Server(_))
    }

    /// Calls one path of the protocol. A refusal is an error in the words of whoever refused.
    pub(crate) async fn call<Q, A>(&self, path: &str, request: &Q) -> Result<A, CliError>
    where
        Q: Message,
        A: Message + Default,
    {
        let body = Body::from(request.encode_to_vec());
        let response = match self {
            Client::Server(server) => server.post(path, body).await?,
            Client::Store(router) => match router.clone().oneshot(post(path, body)?).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        let status = response.status();
        let ours = response.headers().get(CONTENT_TYPE).is_some_and(|mime| mime == PROTOBUF);
        let body = to_bytes(response.into_body(), usize::MAX).await.map_err(|error| {
            CliError::new(format!("the answer broke off: {}", root(&error)))
                .with_hint("whether it was done is not known: look before you repeat it")
        })?;
        let unreadable = || {
            CliError::new(format!("the answer, status {status}, is not one of a Tenure server"))
                .with_hint("does the address lead to a Tenure server, or to something in front of it?")
        };
        if !ours {
            return Err(unreadable());
        }
        if status.is_success() {
            return A::decode(body).map_err(|_| unreadable());
        }
        let reply = Reply::decode(body).map_err(|_| unreadable())?;
        Err(CliError::refused(reply.code, reply.message))
    }
}

impl Server {
    fn new(url: &str, key: Option<&str>) -> Result<Self, CliError> {
        let base = base(url)?;
        let bearer = key.map(bearer).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(base.starts_with("https:"))?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Server { http: legacy::Client::builder(TokioExecutor::new()).build(connector), base, bearer })
    }

    async fn post(&self, path: &str, body: Body) -> Result<Response<Body>, CliError> {
        let mut request = post(&format!("{}{path}", self.base), body)?;
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        let response = self.http.request(request).await.map_err(|error| self.unreachable(&error))?;
        Ok(response.map(Body::new))
    }

    fn unreachable(&self, error: &legacy::Error) -> CliError {
        let cause = root(error);
        if error.is_connect() {
            return CliError::new(format!("cannot reach the server at {}: {cause}", self.base))
                .with_hint("is it running there? `tenure serve` starts one; --server names another");
        }
        CliError::new(format!("the server at {} was lost during the call: {cause}", self.base))
            .with_hint("whether it was done is not known: look before you repeat it")
    }
}

fn post(uri: &str, body: Body) -> Result<Request<Body>, CliError> {
    let request = Request::post(uri).header(CONTENT_TYPE, PROTOBUF).header(ACCEPT, PROTOBUF).body(body);
    request.map_err(|error| CliError::new(format!("the call cannot be written down: {error}")))
}

/// What paths are appended to: the address as it was given, or with http:// before it when it has no scheme.
fn base(url: &str) -> Result<String, CliError> {
    let given = url.trim();
    let base = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
    let wrong = |why: &str| {
        CliError::new(format!("the address of the server {why}"))
            .with_hint("write it like http://localhost:2319 or https://queues.example.org")
    };
    let uri: Uri = base.parse().map_err(|_| wrong("cannot be understood"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("is neither http:// nor https://"));
    }
    match uri.authority() {
        None => Err(wrong("names no host")),
        Some(authority) if authority.as_str().contains('@') => Err(wrong("holds a user: give a key with --key")),
        Some(_) if uri.query().is_some() => Err(wrong("has a query, which it cannot have")),
        Some(_) => Ok(base.trim_end_matches('/').to_owned()),
    }
}

fn bearer(key: &str) -> Result<HeaderValue, CliError> {
    let mut bearer = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| {
        CliError::new("the key holds characters that no key has").with_hint("check --key and TENURE_KEY")
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// TLS with the platform's certificates, which are read only when they are needed: a machine without any can still
/// speak to a server without TLS.
fn tls(needed: bool) -> Result<rustls::ClientConfig, CliError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CliError::new(format!("TLS cannot be set up: {error}")))?;
    if !needed {
        return Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth());
    }
    let builder = builder.with_native_roots().map_err(|error| {
        CliError::new(format!("the server's certificate cannot be checked: {error}"))
            .with_hint("install the ca-certificates of this machine, or name a file of them in SSL_CERT_FILE")
    })?;
    Ok(builder.with_no_client_auth())
}

/// What is at the bottom of an error: the part that says something.
fn root(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Opens a store that is there already. The kernel would make one, which nobody wants of a command that looks.
async fn open(dsn: &str) -> Result<Store, CliError> {
    const MAKE: &str =
        "`tenure serve` makes a store; --dsn and --server (or TENURE_DSN and TENURE_SERVER) name another";
    match (dsn_backend(dsn)?, dsn_file(dsn)) {
        (Backend::Sqlite | Backend::Turso, None) => {
            return Err(CliError::new("a store in memory would end with this command")
                .with_hint("give --server for the store of a running server, or --dsn for one that lasts"));
        }
        (_, Some(path)) if !path.exists() => {
            return Err(CliError::new(format!("there is no store at '{}'", path.display())).with_hint(MAKE));
        }
        _ => {}
    }
    let store = Store::connect(dsn).await?;
    match store.queue_list("", None, 1).await {
        Ok(_) => {}
        Err(error) if error.kind() == Kind::Schema => {
            return Err(CliError::new("this database has no tables of Tenure, or old ones")
                .with_hint("start `tenure serve` on it once: it makes them and brings them up to date"));
        }
        Err(error) => return Err(error.into()),
    }
    store.install().await?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::wire::{QueueInfo, QueuesInfoRequest};

    /// A service that answers everything with the same.
    fn always(status: u16, mime: &'static str, body: Vec<u8>) -> Client {
        Client::Store(Router::new().fallback(move || {
            let answer = (StatusCode::from_u16(status).unwrap(), [(CONTENT_TYPE, mime)], body.clone());
            async move { answer }
        }))
    }

    async fn info(client: &Client) -> Result<QueueInfo, CliError> {
        client.call("/v1/queues.info", &QueuesInfoRequest { queue_name: "mail".to_owned() }).await
    }

    #[tokio::test]
    async fn an_answer_is_decoded() {
        let mail = QueueInfo { queue_name: "mail".to_owned(), max_attempts: 3, ..QueueInfo::default() };
        let client = always(200, "application/protobuf", mail.encode_to_vec());
        assert_eq!(info(&client).await.unwrap(), mail);
    }

    #[tokio::test]
    async fn a_refusal_is_shown_in_the_words_of_the_server() {
        let message = "queue does not exist; no such queue named 'mail'";
        let reply = Reply { code: 400, message: message.to_owned(), ..Reply::default() };
        let error = info(&always(400, "application/protobuf", reply.encode_to_vec())).await.unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[tokio::test]
    async fn what_is_not_of_our_protocol_is_not_shown_as_if_it_were() {
        let page = b"<html>Bad Gateway</html>".to_vec();
        let error = info(&always(502, "text/html", page)).await.unwrap_err();
        assert!(error.to_string().contains("not one of a Tenure server"), "{error}");
        let error = info(&always(200, "application/protobuf", vec![0xff; 9])).await.unwrap_err();
        assert!(error.to_string().contains("not one of a Tenure server"), "{error}");
    }

    #[test]
    fn an_address_may_lack_its_scheme_and_may_have_a_path() {
        for (given, expected) in [
            ("localhost:2319", "http://localhost:2319"),
            ("http://localhost:2319/", "http://localhost:2319"),
            ("https://example.org/queues/", "https://example.org/queues"),
        ] {
            assert_eq!(base(given).unwrap(), expected);
        }
    }

    #[test]
    fn an_address_that_cannot_be_right_is_refused_without_its_password() {
        for wrong in
            ["", "ftp://example.org", "http://me:secret@example.org", "http://example.org?key=secret", "http://"]
        {
            let error = base(wrong).unwrap_err().to_string();
            assert!(error.contains("http://localhost:2319"), "{wrong}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_store_that_is_not_there_is_not_made() {
        let error = open("sqlite:/nowhere/at/all.db").await.err().unwrap().to_string();
        assert!(error.contains("there is no store at '/nowhere/at/all.db'"), "{error}");
        let error = open(":memory:").await.err().unwrap().to_string();
        assert!(error.contains("in memory"), "{error}");
    }
}

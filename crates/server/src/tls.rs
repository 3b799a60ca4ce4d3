//! HTTPS: the certificate chain and its key, read once at the start, and the handshake.
//!
//! Invariants: every error names the file; a caller that does not finish its handshake is sent away.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tenure_store::{Error, Kind, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a caller may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The server's half of TLS.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// Reads a certificate chain, the server's own certificate first, and its key, both PEM.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self> {
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, pem::Error>>)
            .map_err(|error| unreadable("tls.certificate", certificate, error))?;
        if chain.is_empty() {
            let error = pem::Error::NoItemsFound;
            return Err(unreadable("tls.certificate", certificate, error));
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("tls.key", key, error))?;
        let unusable = |error: rustls::Error| {
            let (certificate, key) = (certificate.display(), key.display());
            let message = format!("tls.certificate '{certificate}' and tls.key '{key}' cannot be used: {error}");
            Error::new(Kind::InvalidInput, message).with_source(error)
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    /// Shakes hands with a caller.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        match tokio::time::timeout(HANDSHAKE, self.0.accept(stream)).await {
            Ok(shaken) => shaken,
            Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn unreadable(setting: &str, path: &Path, error: pem::Error) -> Error {
    let path = path.display();
    let message = match &error {
        pem::Error::NoItemsFound if setting == "tls.key" => {
            format!("{setting} '{path}' holds no key: give a PEM file with a private key that is not encrypted")
        }
        pem::Error::NoItemsFound => format!("{setting} '{path}' holds no certificate: give a PEM file with one"),
        pem::Error::Io(error) => format!("{setting} '{path}' cannot be read: {error}"),
        _ => format!("{setting} '{path}' is not a PEM file: {error}"),
    };
    Error::new(Kind::InvalidInput, message).with_source(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::PathBuf;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tempfile::TempDir;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A certificate for localhost, and its key, in files of `folder`.
    fn files(folder: &TempDir, name: &str) -> (PathBuf, PathBuf, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = folder.path().join(format!("{name}.crt"));
        let key = folder.path().join(format!("{name}.key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (certificate, key, made.cert.der().clone())
    }

    fn refusal(certificate: &Path, key: &Path) -> String {
        Tls::from_files(certificate, key).err().unwrap().to_string()
    }

    #[tokio::test]
    async fn callers_shake_hands_and_agree_on_http_1_1() {
        let folder = TempDir::new().unwrap();
        let (certificate, key, der) = files(&folder, "a");
        let tls = Tls::from_files(&certificate, &key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { tls.accept(listener.accept().await.unwrap().0).await });
        let mut roots = RootCertStore::empty();
        roots.add(der).unwrap();
        let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        server.await.unwrap().unwrap();
    }

    #[test]
    fn every_mistake_names_its_file() {
        let folder = TempDir::new().unwrap();
        let (certificate, key, _) = files(&folder, "a");
        let (_, other, _) = files(&folder, "b");
        let missing = folder.path().join("missing.pem");
        let said = refusal(&missing, &key);
        assert!(said.contains("tls.certificate") && said.contains("missing.pem") && said.contains("cannot be read"));
        let said = refusal(&certificate, &missing);
        assert!(said.contains("tls.key") && said.contains("missing.pem"), "{said}");
        let said = refusal(&key, &key);
        assert!(said.contains("a.key' holds no certificate"), "{said}");
        let said = refusal(&certificate, &certificate);
        assert!(said.contains("a.crt' holds no key"), "{said}");
        let said = refusal(&certificate, &other);
        assert!(said.contains("a.crt") && said.contains("b.key") && said.contains("cannot be used"), "{said}");
    }
}

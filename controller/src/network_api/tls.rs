//! TLS in front of the API: handshakes beside each other, and certificates that are read again when their files change.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::{ErrorKind, Metrics};

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Clients at once, from their handshakes on; further ones wait. What connects and says nothing takes a place and no more.
const AT_ONCE: usize = 64;
/// How long a client may stay: longer than the longest operation.
const LONGEST: Duration = Duration::from_secs(60);
/// Wait after the system refused a connection, as it does without free file descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// The certificate and its key.
pub(super) struct Files {
    cert: PathBuf,
    key: PathBuf,
    acceptor: TlsAcceptor,
    /// When the files that are in use were changed last.
    changed: [Option<SystemTime>; 2],
    metrics: Metrics,
}

impl Files {
    /// Reads them.
    pub(super) fn read(cert: PathBuf, key: PathBuf, metrics: Metrics) -> anyhow::Result<Self> {
        let changed = [&cert, &key].map(|path| modified(path));
        let acceptor = acceptor(&cert, &key)?;
        Ok(Self { cert, key, acceptor, changed, metrics })
    }

    /// What accepts the next client. Files that changed and cannot be read leave what was there before.
    fn acceptor(&mut self) -> TlsAcceptor {
        let now = [&self.cert, &self.key].map(|path| modified(path));
        if now != self.changed {
            match acceptor(&self.cert, &self.key) {
                Ok(acceptor) => {
                    self.acceptor = acceptor;
                    tracing::info!(cert = %self.cert.display(), "the network API shows a new certificate");
                }
                Err(error) => {
                    self.metrics.error(ErrorKind::NetworkApi);
                    tracing::warn!(error = format!("{error:#}"), "the certificate in use stays");
                }
            }
            // Files that are half written change once more.
            self.changed = now;
        }
        self.acceptor.clone()
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn acceptor(cert: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain =
        chain.with_context(|| format!("--network-api-cert {}: no certificate in PEM", cert.display()))?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("--network-api-key {}: no private key in PEM", key.display()))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("--network-api-cert {} with its key", cert.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A client after its handshake. It holds its place, and is cut off after [`LONGEST`].
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        // To the server it is as if the client had closed.
        match this.end.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => Pin::new(&mut this.stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

type Accepted = (Connection, SocketAddr);

/// Clients after their handshakes. One that is slow, or speaks something else, keeps nobody waiting.
pub(super) struct Listener {
    accepted: mpsc::Receiver<Accepted>,
    address: SocketAddr,
}

impl Listener {
    /// Starts to accept; what is returned beside it ends only when it cannot go on.
    pub(super) fn start(listener: TcpListener, files: Files) -> std::io::Result<(Self, JoinHandle<()>)> {
        let address = listener.local_addr()?;
        let (accepted, clients) = mpsc::channel(AT_ONCE);
        let accepting = tokio::spawn(accept(listener, files, accepted));
        Ok((Self { accepted: clients, address }, accepting))
    }
}

async fn accept(listener: TcpListener, mut files: Files, accepted: mpsc::Sender<Accepted>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, client) = tokio::select! {
            result = listener.accept() => match result {
                Ok(connection) => connection,
                Err(error) => {
                    files.metrics.error(ErrorKind::NetworkApi);
                    tracing::warn!(%error, "the network API cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = accepted.closed() => return,
        };
        let (acceptor, accepted) = (files.acceptor(), accepted.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let end = Box::pin(tokio::time::sleep(LONGEST));
                    // Fails only when nobody serves any more.
                    let _ = accepted.send((Connection { stream, end, _place: place }, client)).await;
                }
                Ok(Err(error)) => tracing::debug!(%client, %error, "no TLS handshake"),
                Err(_elapsed) => tracing::debug!(%client, "no TLS handshake in time"),
            }
        });
    }
}

impl axum::serve::Listener for Listener {
    type Addr = SocketAddr;
    type Io = Connection;

    async fn accept(&mut self) -> Accepted {
        match self.accepted.recv().await {
            Some(client) => client,
            // The end of the other task is reported.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}

//! One connection to one server: opening it, moving bytes, framing, and the probe timer. No knowledge of requests.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;

use crate::framing::Framer;
use crate::{Endpoint, TlsOptions};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection. Its futures may be dropped at any await without losing bytes.
pub(crate) struct Connection {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    framer: Framer,
    outgoing: BytesMut,
    flush: bool,
    probe_interval: Duration,
    last_heard: Instant,
    probed: bool,
}

/// Result of [`Connection::event`].
pub(crate) enum Event {
    /// A message came.
    Message(Bytes),
    /// No message came for a probe interval: the caller should send an echo request.
    Idle,
}

impl Connection {
    /// Connects, with TLS handshake where the endpoint asks for it. The error says what failed.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        tls: Option<&TlsOptions>,
        probe_interval: Duration,
    ) -> Result<Self, String> {
        let stream: Box<dyn Stream> = match endpoint {
            Endpoint::Unix(path) => {
                Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?)
            }
            Endpoint::Tcp(host, port) => Box::new(tcp(host, *port).await?),
            Endpoint::Ssl(host, port) => {
                let options = tls.ok_or("an ssl endpoint needs the CA, certificate and key files")?;
                let connector = TlsConnector::from(options.load()?);
                let name = ServerName::try_from(host.clone())
                    .map_err(|error| format!("host name {host:?}: {error}"))?;
                let stream = tcp(host, *port).await?;
                Box::new(
                    connector
                        .connect(name, stream)
                        .await
                        .map_err(|error| format!("TLS handshake: {error}"))?,
                )
            }
        };
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self {
            reader,
            writer,
            framer: Framer::default(),
            outgoing: BytesMut::new(),
            flush: false,
            probe_interval,
            last_heard: Instant::now(),
            probed: false,
        })
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: &[u8]) {
        self.outgoing.extend_from_slice(message);
    }

    /// Bytes queued and not yet taken by the kernel.
    pub(crate) fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Writes what is queued and waits for the next event. An error ends the connection and says why.
    pub(crate) async fn event(&mut self) -> Result<Event, String> {
        loop {
            if let Some(message) = self.framer.next().map_err(|error| error.to_string())? {
                return Ok(Event::Message(message));
            }
            let probing = !self.probe_interval.is_zero();
            let deadline =
                self.last_heard + self.probe_interval.saturating_mul(if self.probed { 2 } else { 1 });
            let moved = async {
                tokio::select! {
                    read = self.reader.read_buf(self.framer.space()) => Moved::In(read),
                    sent = push(&mut self.writer, &self.outgoing), if self.flush || !self.outgoing.is_empty() => {
                        Moved::Out(sent)
                    }
                }
            };
            // What waits to be read was heard, however late we come to it: it goes before the deadline.
            tokio::select! {
                biased;
                moved = moved => match moved {
                    Moved::In(Ok(0)) => return Err("the server closed the connection".to_owned()),
                    Moved::In(Ok(_)) => {
                        self.last_heard = Instant::now();
                        self.probed = false;
                    }
                    Moved::In(Err(error)) => return Err(format!("reading failed: {error}")),
                    Moved::Out(Ok(0)) if !self.outgoing.is_empty() => {
                        return Err("the connection takes no more bytes".to_owned());
                    }
                    Moved::Out(Ok(count)) => {
                        self.outgoing.advance(count);
                        self.flush = count > 0;
                    }
                    Moved::Out(Err(error)) => return Err(format!("writing failed: {error}")),
                },
                () = sleep_until(deadline), if probing => {
                    if self.probed {
                        return Err(format!("the server was silent for {:?}", self.last_heard.elapsed()));
                    }
                    self.probed = true;
                    return Ok(Event::Idle);
                }
            }
        }
    }
}

/// Bytes that were moved, or why not.
enum Moved {
    In(std::io::Result<usize>),
    Out(std::io::Result<usize>),
}

/// Writes some of the bytes, or flushes when there are none. Cancel safe, as both are.
async fn push(writer: &mut WriteHalf<Box<dyn Stream>>, bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}

async fn tcp(host: &str, port: u16) -> Result<TcpStream, String> {
    let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection over a pipe, which was last heard of long ago, and the server's end of it.
    fn stalled(probed: bool) -> (Connection, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(4096);
        let stream: Box<dyn Stream> = Box::new(ours);
        let (reader, writer) = tokio::io::split(stream);
        let connection = Connection {
            reader,
            writer,
            framer: Framer::default(),
            outgoing: BytesMut::new(),
            flush: false,
            probe_interval: Duration::from_secs(1),
            last_heard: Instant::now(),
            probed,
        };
        (connection, theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_to_be_read_after_a_stall_is_heard_before_the_server_counts_as_silent() {
        // Each is a toss where the two are equals.
        for probed in [false, true].repeat(32) {
            let (mut connection, mut server) = stalled(probed);
            server.write_all(b"{}").await.unwrap();
            tokio::time::advance(Duration::from_secs(100)).await;
            match connection.event().await {
                Ok(Event::Message(message)) => assert_eq!(&message[..], b"{}"),
                Ok(Event::Idle) => panic!("a probe, though there was something to read"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_probed_and_then_given_up() {
        let (mut connection, _server) = stalled(false);
        assert!(matches!(connection.event().await, Ok(Event::Idle)));
        let error = connection.event().await.err().unwrap();
        assert!(error.starts_with("the server was silent for "), "{error}");
    }
}

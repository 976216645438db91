//! A way from the control plane into the cluster's network, as clusters have it whose control plane is no node: the
//! API server asks by HTTP CONNECT over a unix socket (its "egress selector").
//!
//! The relay on the central host reaches the underlay by itself, and hands everything else to the relay of a node.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

use crate::config::is_underlay;

/// `testbed relay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to be asked.
    #[arg(long)]
    listen: PathBuf,
    /// Relays for what is not on the underlay; the first one that is there is taken. None: connect to all by itself.
    #[arg(long)]
    via: Vec<PathBuf>,
}

/// How long a connection may take to come about.
const LIMIT: Duration = Duration::from_secs(10);

impl Args {
    /// Serves until it is killed.
    pub async fn run(self) -> Result<()> {
        let Self { listen, via } = self;
        match std::fs::remove_file(&listen) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", listen.display()));
            }
            _ => {}
        }
        let listener =
            UnixListener::bind(&listen).with_context(|| format!("cannot listen on {}", listen.display()))?;
        loop {
            let (client, _) = listener.accept().await.context("cannot accept")?;
            let via = via.clone();
            tokio::spawn(async move {
                if let Err(error) = serve(client, &via).await {
                    tracing::info!("{error:#}");
                }
            });
        }
    }
}

async fn serve(mut client: UnixStream, via: &[PathBuf]) -> Result<()> {
    let head = timeout(LIMIT, read_head(&mut client)).await.context("no request came")??;
    match answer(&mut client, &head, via).await {
        Ok(()) => Ok(()),
        Err(error) => {
            // Reports the error to the client, and to the caller in case the client is gone.
            let said =
                format!("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nX-Reason: {error:#}\r\n\r\n");
            let _ = client.write_all(said.as_bytes()).await;
            Err(error)
        }
    }
}

async fn answer(client: &mut UnixStream, head: &str, via: &[PathBuf]) -> Result<()> {
    let target = target(head).with_context(|| format!("no CONNECT to an address: {head:?}"))?;
    if via.is_empty() || is_underlay(target.ip()) {
        let connecting = timeout(LIMIT, TcpStream::connect(target)).await;
        let mut server =
            connecting.map_err(io::Error::from).flatten().with_context(|| format!("to {target}"))?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        return pass(copy_bidirectional(client, &mut server).await);
    }
    let mut relay = first(via).await?;
    relay.write_all(head.as_bytes()).await?;
    // Its answer is the client's.
    pass(copy_bidirectional(client, &mut relay).await)
}

async fn first(relays: &[PathBuf]) -> Result<UnixStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for relay in relays {
        match UnixStream::connect(relay as &Path).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last).context("no node's relay is there")
}

/// However a connection ends, it has ended.
fn pass(copied: io::Result<(u64, u64)>) -> Result<()> {
    if let Err(error) = copied {
        tracing::debug!("{error}");
    }
    Ok(())
}

/// Up to the empty line, and not a byte of what follows.
async fn read_head(client: &mut UnixStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(head.len() < 8192, "a request without end");
        head.push(client.read_u8().await.context("half a request")?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn target(head: &str) -> Option<SocketAddr> {
    head.strip_prefix("CONNECT ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_request_is_an_address_of_either_family() {
        assert_eq!(target("CONNECT 10.244.0.3:80 HTTP/1.1\r\n\r\n").unwrap().port(), 80);
        assert!(target("CONNECT [fd00::1]:443 HTTP/1.1\r\n\r\n").unwrap().is_ipv6());
        assert!(target("GET / HTTP/1.1\r\n\r\n").is_none());
        assert!(target("CONNECT name:80 HTTP/1.1\r\n\r\n").is_none());
    }
}

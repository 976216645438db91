//! A page over HTTP or HTTPS, in the least that will do: the API server's health, a health-check port, metrics.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::ui;

/// `testbed probe get`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address of the server.
    host: IpAddr,
    /// Its port.
    port: u16,
    /// The page.
    path: String,
    /// Use TLS, and trust this authority only.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Seconds to wait.
    #[arg(long, default_value_t = 5.0)]
    timeout: f64,
    /// Print the page instead of status and time.
    #[arg(long)]
    body: bool,
}

impl Args {
    /// Gets and prints.
    pub fn run(self) -> Result<()> {
        let Self { host, port, path, ca, timeout, body } = self;
        let begin = Instant::now();
        let limit = Duration::from_secs_f64(timeout.clamp(0.001, 3600.0));
        let server = SocketAddr::new(host, port);
        let stream =
            TcpStream::connect_timeout(&server, limit).with_context(|| format!("cannot reach {server}"))?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let text = match ca {
            None => talk(stream, &request)?,
            Some(ca) => talk(tls(stream, host, &ca)?, &request)?,
        };
        let (head, page) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split_whitespace().nth(1).unwrap_or("none");
        if body {
            if status != "200" {
                bail!("{server}{path}: status {status}: {}", page.trim());
            }
            ui::say(page.trim_end());
        } else {
            ui::say(format_args!("{status}  ({:.2} ms)", begin.elapsed().as_secs_f64() * 1000.0));
        }
        Ok(())
    }
}

fn talk(mut stream: impl Read + Write, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // A server that closes without the farewell of TLS has still answered.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn tls(stream: TcpStream, host: IpAddr, ca: &Path) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority =
        CertificateDer::from_pem_file(ca).with_context(|| format!("authority {}", ca.display()))?;
    roots.add(authority)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), host.into())?, stream))
}

//! Many bytes over one TCP connection: whether large segments pass, which small questions and answers do not tell.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// So much is sent to each client of a bulk port, in bytes.
pub(super) const BYTES: usize = 16 << 20;

/// `testbed probe bulk`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    host: IpAddr,
    port: u16,
    /// All of it must be there after so many seconds.
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

impl Args {
    /// Prints how many bytes came and how long it took.
    pub fn run(self) -> Result<()> {
        let Self { host, port, timeout } = self;
        let (begin, limit) = (Instant::now(), Duration::from_secs(timeout));
        let mut stream = TcpStream::connect_timeout(&(host, port).into(), limit)
            .with_context(|| format!("no connection to {host} port {port}"))?;
        let mut buffer = vec![0; 64 << 10];
        let mut read = 0;
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                bail!("{read} of {BYTES} bytes came in {timeout} s");
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer) {
                Ok(0) if read == BYTES => break,
                Ok(0) => bail!("the server ended after {read} of {BYTES} bytes"),
                Ok(n) => read += n,
                Err(error) => bail!("{read} of {BYTES} bytes came in {:.1?}: {error}", begin.elapsed()),
            }
        }
        crate::ui::say(format_args!("{read} bytes ({:.1} ms)", begin.elapsed().as_secs_f64() * 1000.0));
        Ok(())
    }
}

/// Sends a client its bytes.
pub(super) fn send(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    let chunk = [0x55; 32 << 10];
    for _ in 0..BYTES / chunk.len() {
        stream.write_all(&chunk)?;
    }
    Ok(())
}

//! Many bytes over one TCP connection, and its end by a reset: whether that arrives.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use crate::ui::say;

/// `testbed probe reset`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to connect to, or to listen on.
    port: u16,
    /// Connect to this and send; without it one connection is accepted, and its end reported.
    #[arg(long)]
    to: Option<IpAddr>,
    /// So much is sent, in MiB.
    #[arg(long, default_value_t = 3072)]
    mebibytes: u64,
    /// How long the receiver waits for something to come, in seconds.
    #[arg(long, default_value_t = 20)]
    silence: u64,
}

impl Args {
    /// Runs it.
    pub fn run(self) -> Result<()> {
        match self.to {
            Some(host) => self.send(host),
            None => self.receive(),
        }
    }

    fn send(&self, host: IpAddr) -> Result<()> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect((host, self.port)).context("no connection")?;
        let chunk = vec![0x55; 1 << 20];
        for _ in 0..self.mebibytes {
            stream.write_all(&chunk)?;
        }
        // Everything must arrive before the reset, which discards what was not sent yet.
        stream.flush()?;
        std::thread::sleep(Duration::from_secs(2));
        setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
        drop(stream);
        say(format_args!("{} MiB in {:.1} s, then a reset", self.mebibytes, begin.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Says how the connection ended, and how many bytes came.
    fn receive(&self) -> Result<()> {
        let (mut stream, _) = TcpListener::bind(("0.0.0.0", self.port))?.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(self.silence)))?;
        let mut buffer = vec![0; 1 << 20];
        let mut count = 0;
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break "closed",
                Ok(read) => count += read,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break "reset",
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    break "silent";
                }
                Err(error) => return Err(error.into()),
            }
        };
        say(format_args!("{end} after {count} bytes"));
        Ok(())
    }
}

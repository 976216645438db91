//! One connection that is used all the time: what breaks it, and how long it stalls, shows what happens to traffic while a node's
//! processes come and go.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::netexec;
use crate::ui;

/// `testbed probe stream`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Milliseconds between an answer and the next question.
    #[arg(long, default_value_t = 20)]
    pause: u64,
    /// Seconds to wait for an answer.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
    /// Address of an `agnhost netexec`.
    host: IpAddr,
    /// Its port.
    port: u16,
}

impl Args {
    /// Asks over one TCP connection until that ends, and prints the number of every answer.
    pub fn run(self) -> Result<()> {
        let Self { pause, timeout, host, port } = self;
        let server = SocketAddr::new(host, port);
        let limit = Duration::from_secs(timeout.max(1));
        let mut stream = TcpStream::connect_timeout(&server, limit).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        for number in 1_u64.. {
            netexec::get(&mut stream, "/hostname", server).with_context(|| format!("answer {number}"))?;
            ui::say(number);
            thread::sleep(Duration::from_millis(pause));
        }
        Ok(())
    }
}

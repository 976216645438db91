//! A session with a server, by its control connection.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::measure::Host;
use crate::net::{self, Family};
use crate::protocol::control::{Answer, Ask, Hello, PROGRAM, PROTOCOL, Report};
use crate::protocol::lines;

/// How long the server may take to answer. It waits for connections to end before it reports.
const PATIENCE: Duration = Duration::from_secs(10);

/// The data port that belongs to a control port.
pub(crate) fn default_data_port(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

/// A server, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) family: Family,
    /// Where data goes if not to the same host and the server's data port.
    pub(crate) data: Option<(String, Option<u16>)>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    stream: TcpStream,
    from: BufReader<TcpStream>,
    pub(crate) tag: u64,
    /// Where data goes.
    pub(crate) data: SocketAddr,
    pub(crate) server: Host,
}

impl Session {
    /// Opens one for a run.
    ///
    /// # Errors
    /// There is no server, it speaks something else, or it is busy.
    pub(crate) fn open(target: &Target, run: u64) -> Result<Self> {
        let at = net::resolve(&target.host, target.port, target.family)?;
        let stream = net::connect(at, PATIENCE).with_context(|| {
            format!(
                "no server at {at}: is `slipstream-traffic serve --port {}` running there, and may TCP pass",
                at.port()
            )
        })?;
        let mut from = BufReader::new(stream.try_clone()?);
        let hello = Hello {
            program: PROGRAM.into(),
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            run,
        };
        lines::write(&mut &stream, &hello)?;
        let answer = lines::read(&mut from)
            .with_context(|| format!("what listens at {at} is no server of {PROGRAM}"))?;
        let (tag, data_port, server) = match answer {
            Answer::Welcome { tag, data_port, host } => (tag, data_port, *host),
            Answer::Refused { reason } => bail!("the server at {at} refuses: {reason}"),
            other => bail!("the server at {at} says {other:?} instead of welcome"),
        };
        let data = match &target.data {
            None => SocketAddr::new(at.ip(), data_port),
            Some((host, port)) => {
                net::resolve(host, port.unwrap_or(data_port), target.family).context("--target-address")?
            }
        };
        Ok(Self { stream, from, tag, data, server })
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        lines::write(&mut self.stream, ask).context("control connection")?;
        match lines::read(&mut self.from).context("control connection: no answer of the server")? {
            Answer::Refused { reason } => bail!("the server refuses: {reason}"),
            answer => Ok(answer),
        }
    }

    /// Asks for something that has no other answer than that it is done.
    pub(crate) fn order(&mut self, ask: &Ask) -> Result<()> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => bail!("the server says {other:?}, which is no answer to {ask:?}"),
        }
    }

    /// The end of a test, when its data connections are closed.
    pub(crate) fn end(&mut self) -> Result<Report> {
        match self.ask(&Ask::End)? {
            Answer::Report { report } => Ok(*report),
            other => bail!("the server says {other:?} instead of its report"),
        }
    }

    /// How long the server's threads have waited for a CPU.
    pub(crate) fn waited(&mut self) -> Result<crate::measure::Waited> {
        match self.ask(&Ask::Waited)? {
            Answer::Waited { nanoseconds, stolen } => Ok(crate::measure::Waited { nanoseconds, stolen }),
            other => bail!("the server says {other:?} instead of its times"),
        }
    }
}

impl Drop for Session {
    /// Waits until the server knows: another run may follow at once.
    fn drop(&mut self) {
        // The server is gone, or slow: it will find out by itself.
        let limit = self.stream.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = limit.map(|()| self.order(&Ask::Bye));
    }
}

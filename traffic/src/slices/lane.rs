//! A path that is kept open: its session, and the connection that is measured.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Path, Slice, Sliceable};
use crate::client::{self, Plan, Session};
use crate::load::{Exchange, Outcome, Stream, Way, exchanges};
use crate::measure::{WARM_UP, Waited, per_second, transactions};
use crate::protocol::control::{Ask, Test};

/// What a slice of datagrams waits for those on their way, shorter than a whole test: it comes once a slice.
const DRAIN: Duration = Duration::from_millis(50);
/// A slice of datagrams has a session's answers before and after it, and is not shorter than this.
pub const SHORTEST: Duration = Duration::from_millis(20);
/// Requests by UDP without any answer after which a path is held to be closed.
const TRIES: u32 = 3;

enum Load {
    Exchange(Box<dyn Exchange>),
    Stream(Stream),
    /// Datagrams: a short test for each slice.
    Rate(Box<Plan>),
}

/// An open path.
pub(crate) struct Lane {
    name: String,
    session: Session,
    load: Load,
    /// Datagrams or requests that were sent, and of these those that did not come.
    counted: [u64; 2],
}

impl Lane {
    /// Opens it.
    pub(crate) fn open(path: &Path, plan: &Plan, run: u64) -> Result<Self> {
        let mut session = Session::open(&path.target, run)?;
        session.order(&Ask::Prepare { settings: plan.settings.clone() })?;
        let way = Way { data: session.data, tag: session.tag, settings: plan.settings.clone(), rate: None };
        let load = match plan.settings.test {
            Test::TcpStream => Load::Stream(Stream::open(&way)?),
            Test::UdpRate => Load::Rate(Box::new(Plan { drain: DRAIN, says: false, ..plan.clone() })),
            Test::Storm => bail!("--paths: {} has no slices", plan.settings.test.name()),
            _ => Load::Exchange(exchanges(&way)?.pop().ok_or_else(|| anyhow::anyhow!("no connection"))?),
        };
        let mut lane = Self { name: path.name.clone(), session, load, counted: [0; 2] };
        lane.try_first()?;
        lane.counted = [0; 2];
        Ok(lane)
    }

    /// Fails if nothing comes through at all. Only TCP connections that stay have found that out by connecting.
    fn try_first(&mut self) -> Result<()> {
        let data = self.session.data;
        let comes = match &mut self.load {
            Load::Exchange(exchange) => {
                let mut outcome = exchange.exchange()?;
                for _ in 1..TRIES {
                    if outcome != Outcome::Lost {
                        break;
                    }
                    outcome = exchange.exchange()?;
                }
                match outcome {
                    Outcome::Answered => true,
                    Outcome::Lost => false,
                    Outcome::Failed(name) => bail!("{name} at {data}"),
                }
            }
            Load::Stream(_) => true,
            Load::Rate(_) => self.slice(SHORTEST)?.per_second > 0.0,
        };
        ensure!(comes, "no UDP datagram comes through to {data} and back");
        Ok(())
    }

    /// Datagrams or requests that were sent, and of these those that did not come.
    pub(crate) fn counted(&self) -> [u64; 2] {
        self.counted
    }

    /// Where its data goes.
    pub(crate) fn data(&self) -> SocketAddr {
        self.session.data
    }

    pub(crate) fn server(&self) -> &crate::measure::Host {
        &self.session.server
    }
}

impl Sliceable for Lane {
    fn slice(&mut self, length: Duration) -> Result<Slice> {
        self.measure(length).with_context(|| format!("path {}", self.name))
    }
}

impl Lane {
    fn measure(&mut self, length: Duration) -> Result<Slice> {
        let server = self.session.waited()?;
        let client = Waited::now();
        let mut slice = match &mut self.load {
            Load::Exchange(exchange) => {
                let [sent, lost] = &mut self.counted;
                let measured = transactions(length, || {
                    *sent += 1;
                    match exchange.exchange()? {
                        Outcome::Answered => {}
                        // It took a second, and the slice shows it.
                        Outcome::Lost => *lost += 1,
                        Outcome::Failed(name) => bail!("{name}"),
                    }
                    Ok(())
                })?;
                Slice { per_second: measured.per_second, median_us: measured.median_us, away: 0.0 }
            }
            Load::Stream(stream) => {
                stream.slice(length / WARM_UP)?;
                let (bytes, seconds) = stream.slice(length)?;
                Slice { per_second: per_second(8 * bytes, seconds), ..Slice::default() }
            }
            Load::Rate(plan) => {
                let time = length.max(SHORTEST);
                let plan = Plan { time, warm_up: time / WARM_UP, ..(**plan).clone() };
                let row = client::run(&mut self.session, &plan).context("datagrams")?;
                self.counted[0] += row.sent_packets;
                self.counted[1] += row.lost;
                Slice { per_second: row.per_second, ..Slice::default() }
            }
        };
        let waited = Waited::now().since(client) + self.session.waited()?.since(server);
        // Nanoseconds of a slice, far below 2^52.
        slice.away = waited as f64 / 1e9 / (length + length / WARM_UP).as_secs_f64();
        Ok(slice)
    }
}

//! Real packets between places of a cluster, with the traffic tool at both ends.

use std::fmt;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::config::Runtime;
use crate::exec;
use crate::nodes::PodName;
use crate::tools::{Answer, Attempt};

/// Where a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a host's own network.
    Host(String),
    /// In a pod.
    Pod { node: String, namespace: String, name: String },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "{host}"),
            Self::Pod { namespace, name, .. } => write!(f, "{namespace}/{name}"),
        }
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct Dial {
    pub udp: bool,
    /// The server is `agnhost netexec`, not our own.
    pub netexec: bool,
    pub host: IpAddr,
    pub port: u16,
    pub count: u32,
    pub timeout: Duration,
}

impl Dial {
    /// One TCP connection.
    #[must_use]
    pub fn tcp(host: impl Into<IpAddr>, port: u16) -> Self {
        let timeout = Duration::from_secs(3);
        Self { udp: false, netexec: false, host: host.into(), port, count: 1, timeout }
    }

    /// One UDP exchange.
    #[must_use]
    pub fn udp(host: impl Into<IpAddr>, port: u16) -> Self {
        Self { udp: true, ..Self::tcp(host, port) }
    }

    /// Directs the exchange to the server in a pod: on real nodes that is agnhost's.
    #[must_use]
    pub fn to_pod(self, bed: &Bed) -> Self {
        Self { netexec: bed.config().runtime == Runtime::Containerd, ..self }
    }

    /// Repeats the exchange `count` times.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// Limits the wait for an answer.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// A command in the network of a place, with the machine's files.
pub fn command(bed: &Bed, place: &Place, program: &std::path::Path) -> Result<Command> {
    match place {
        Place::Host(host) => bed.host(host).network_command(program),
        Place::Pod { node, namespace, name } => {
            bed.runtime().pod_command(bed, &PodName { node, namespace, name }, program)
        }
    }
}

/// Lets a client ask, and returns what it got.
pub fn dial(bed: &Bed, place: &Place, dial: Dial) -> Result<Vec<Attempt>> {
    let mut client = command(bed, place, &bed.config().program("testbed"))?;
    client.args(["probe", "dial", "--json", "--count", &dial.count.to_string()]);
    client.args(["--timeout", &dial.timeout.as_secs_f64().to_string()]);
    if dial.udp {
        client.arg("--udp");
    }
    if dial.netexec {
        client.arg("--netexec");
    }
    client.args([dial.host.to_string(), dial.port.to_string()]);
    let out = exec::output(&mut client).with_context(|| format!("client in {place}"))?;
    out.lines().map(|l| serde_json::from_str(l).with_context(|| format!("client said {l:?}"))).collect()
}

/// The answers with how often each came.
#[must_use]
pub fn summary(attempts: &[Attempt]) -> String {
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for attempt in attempts {
        let text = match &attempt.answer {
            Answer::Reply(text) => text.clone(),
            Answer::Err(reason) => format!("ERR {reason}"),
        };
        *counts.entry(text).or_default() += 1;
    }
    let one = attempts.len() == 1;
    let shown: Vec<_> =
        counts.into_iter().map(|(text, n)| if one { text } else { format!("{n} x {text}") }).collect();
    shown.join(", ")
}

/// Median of the times of the attempts, in milliseconds.
#[must_use]
pub fn median_ms(attempts: &[Attempt]) -> f64 {
    let mut times: Vec<_> = attempts.iter().map(|a| a.ms).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

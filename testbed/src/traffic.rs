//! Real packets between places of a cluster, with the traffic tool at both ends.

use std::fmt;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::Bed;
use crate::cluster::config::Runtime;
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

/// What a set of attempts must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Every answer is one of these (`NAME CLIENT`), and each of these is given.
    All(Vec<String>),
    /// Every answer is one of these.
    OneOf(Vec<String>),
    /// All answers are equal, and one of these.
    Same(Vec<String>),
    /// No answer at all: the packets were dropped.
    Dropped,
    /// The connection was refused.
    Refused,
}

impl Expect {
    /// Exactly this answer.
    #[must_use]
    pub fn only(answer: &str) -> Self {
        Self::All(vec![answer.to_owned()])
    }

    /// Judges; both verdicts come with what was seen.
    pub fn judge(&self, attempts: &[Attempt]) -> Result<String, String> {
        let seen = summary(attempts);
        let replies: Vec<&str> = attempts
            .iter()
            .filter_map(|a| match &a.answer {
                Answer::Reply(text) => Some(text.as_str()),
                Answer::Err(_) => None,
            })
            .collect();
        let all_replied = !attempts.is_empty() && replies.len() == attempts.len();
        let within = |set: &[String]| all_replied && replies.iter().all(|r| set.iter().any(|s| s == r));
        let all_failed = |with: &str| {
            !attempts.is_empty()
                && attempts.iter().all(|a| matches!(&a.answer, Answer::Err(reason) if reason == with))
        };
        let good = match self {
            Self::All(set) => within(set) && set.iter().all(|s| replies.contains(&s.as_str())),
            Self::OneOf(set) => within(set),
            Self::Same(set) => within(set) && replies.windows(2).all(|w| w[0] == w[1]),
            Self::Dropped => all_failed("timed out"),
            Self::Refused => all_failed("refused"),
        };
        if good { Ok(seen) } else { Err(format!("{seen}; expected {self}")) }
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(set) => write!(f, "{}", set.join(" and ")),
            Self::OneOf(set) => write!(f, "{}", set.join(" or ")),
            Self::Same(set) => write!(f, "always the same of {}", set.join(" or ")),
            Self::Dropped => write!(f, "no answer"),
            Self::Refused => write!(f, "refused"),
        }
    }
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

/// Asks until the outcome is as expected or the time is over, as a cluster settles after a change. Returns the
/// last attempts with the verdict.
pub fn settle(
    bed: &Bed,
    place: &Place,
    what: Dial,
    expect: &Expect,
    limit: Duration,
) -> (Vec<Attempt>, Result<String, String>) {
    let end = Instant::now() + exec::patient(limit);
    loop {
        let (attempts, verdict) = match dial(bed, place, what) {
            Ok(attempts) => {
                let verdict = expect.judge(&attempts);
                (attempts, verdict)
            }
            Err(error) => (Vec::new(), Err(format!("{error:#}"))),
        };
        if verdict.is_ok() || Instant::now() >= end {
            return (attempts, verdict);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(answers: &[&str]) -> Vec<Attempt> {
        answers
            .iter()
            .map(|a| Attempt {
                answer: match a.strip_prefix("ERR ") {
                    Some(reason) => Answer::Err(reason.into()),
                    None => Answer::Reply((*a).into()),
                },
                ms: 1.0,
            })
            .collect()
    }

    #[test]
    fn all_backends_must_answer_and_nobody_else() {
        let both = Expect::All(vec!["a 1".into(), "b 1".into()]);
        assert!(both.judge(&attempts(&["a 1", "b 1", "a 1"])).is_ok());
        assert!(both.judge(&attempts(&["a 1", "a 1"])).is_err());
        assert!(both.judge(&attempts(&["a 1", "b 1", "c 1"])).is_err());
        assert!(both.judge(&attempts(&["a 1", "b 1", "ERR timed out"])).is_err());
        assert!(both.judge(&[]).is_err());
    }

    #[test]
    fn dropped_is_not_refused() {
        assert!(Expect::Dropped.judge(&attempts(&["ERR timed out"])).is_ok());
        assert!(Expect::Dropped.judge(&attempts(&["ERR refused"])).is_err());
        assert!(Expect::Dropped.judge(&attempts(&["ERR timed out", "a 1"])).is_err());
        assert!(Expect::Dropped.judge(&[]).is_err());
        assert!(Expect::Refused.judge(&attempts(&["ERR refused"])).is_ok());
    }

    #[test]
    fn the_same_backend_must_answer_every_time() {
        let same = Expect::Same(vec!["a 1".into(), "b 1".into()]);
        assert!(same.judge(&attempts(&["b 1", "b 1"])).is_ok());
        assert!(same.judge(&attempts(&["b 1", "a 1"])).is_err());
    }
}

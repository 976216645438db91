//! Kernel connection tracking table, accessed through conntrack(8).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::{Output, Stdio};

use anyhow::{Context, bail, ensure};
use api::addr::Family;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const MISSING: &str =
    "cannot run `conntrack`; install the conntrack package, which UDP host ports and node ports require";

/// A UDP connection that the host tracks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Udp {
    /// Destination of its first packet.
    pub destination: (IpAddr, u16),
    /// Who answers: the destination, or where it was translated to.
    pub answers: (IpAddr, u16),
}

impl Udp {
    /// Where it was translated to, if it was.
    pub fn translated(&self) -> Option<(IpAddr, u16)> {
        (self.answers != self.destination).then_some(self.answers)
    }

    /// Parses a line of `conntrack -L`. Connections in other zones than the host's are those of OVS.
    fn parse(line: &str) -> Option<Self> {
        let rest = line.trim().strip_prefix("udp ")?;
        let words = || rest.split_whitespace().filter_map(|word| word.split_once('='));
        if words().any(|(key, _)| key == "zone") {
            return None;
        }
        let value = |wanted: &'static str, nth: usize| {
            words().filter(move |(key, _)| *key == wanted).nth(nth).map(|(_, value)| value)
        };
        let address = |key, nth| value(key, nth)?.parse().ok();
        let port = |key, nth| value(key, nth)?.parse().ok();
        let destination = SocketAddr::new(address("dst", 0)?, port("dport", 0)?);
        let answers = SocketAddr::new(address("src", 1)?, port("sport", 1)?);
        let pair = |end: SocketAddr| (end.ip(), end.port());
        Some(Self { destination: pair(destination), answers: pair(answers) })
    }
}

/// The host's UDP connections of a family for which `keep` says so, each destination with each that answers once.
///
/// # Errors
/// `conntrack` cannot be started, or fails.
#[expect(clippy::disallowed_methods, reason = "conntrack(8); started when services of UDP change only")]
pub async fn udp(family: Family, keep: impl Fn(&Udp) -> bool) -> anyhow::Result<BTreeSet<Udp>> {
    let mut child = Command::new("conntrack")
        .args(["-L", "-f", named(family), "-p", "udp"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context(MISSING)?;
    let mut lines = BufReader::new(child.stdout.take().context("no pipe from conntrack")?).lines();
    let mut kept = BTreeSet::new();
    // There may be a million.
    while let Some(line) = lines.next_line().await.context("what conntrack -L says")? {
        kept.extend(Udp::parse(&line).filter(&keep));
    }
    let ended = child.wait_with_output().await.context("wait for conntrack -L")?;
    ensure!(
        ended.status.success(),
        "conntrack -L for UDP: {}",
        String::from_utf8_lossy(&ended.stderr).trim()
    );
    Ok(kept)
}

/// Deletes these connections of all clients; returns how many there were.
///
/// # Errors
/// `conntrack` cannot be started, or fails for another reason than missing entries.
pub async fn end(connections: &Udp) -> anyhow::Result<u64> {
    let Udp { destination, answers } = connections;
    let [asked, answers_from] = [destination.0, answers.0].map(|ip| ip.to_string());
    let [port, from_port] = [destination.1, answers.1].map(|port| port.to_string());
    let args = ["-D", "-f", named(Family::of(destination.0)), "-p", "udp", "--orig-dst", &asked];
    let more = ["--orig-port-dst", &port, "--reply-src", &answers_from, "--reply-port-src", &from_port];
    deleted(&[&args[..], &more].concat()).await
}

/// Deletes UDP entries with destination `port` in the namespace of the process. Missing entries are not an error.
///
/// # Errors
/// `conntrack` cannot be started, or fails for another reason than missing entries.
pub async fn forget(port: u16) -> anyhow::Result<()> {
    deleted(&["-D", "-p", "udp", "--orig-port-dst", &port.to_string()]).await.map(drop)
}

fn named(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

async fn deleted(args: &[&str]) -> anyhow::Result<u64> {
    let output = conntrack(args).await?;
    let told = String::from_utf8_lossy(&output.stderr);
    let count = told.split("):").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    match count {
        // It also fails when there is nothing to delete.
        Some(count) if output.status.success() || count == 0 => Ok(count),
        _ => bail!("conntrack {}: {}", args.join(" "), told.trim()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "conntrack(8); started when host ports or services of UDP change only"
)]
async fn conntrack(args: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("conntrack");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true).output().await.context(MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_conntrack_are_connections_of_the_host() {
        let line = "udp      17 29 src=172.18.0.3 dst=172.18.0.3 sport=24416 dport=31172 [UNREPLIED] src=10.96.77.2 dst=172.18.0.3 sport=80 dport=24416 mark=0 use=1";
        let udp = Udp::parse(line).unwrap();
        assert_eq!(udp.destination, ([172, 18, 0, 3].into(), 31_172));
        assert_eq!(udp.translated(), Some(([10, 96, 77, 2].into(), 80)));
        let plain = "udp      17 29 src=fd00::1 dst=fd00::2 sport=5 dport=6 src=fd00::2 dst=fd00::1 sport=6 dport=5 [ASSURED] mark=0 use=1";
        assert_eq!(Udp::parse(plain).unwrap().translated(), None);
        assert_eq!(Udp::parse(&line.replace("mark=0", "mark=0 zone=64001")), None, "OVS's");
        assert_eq!(Udp::parse(&line.replace("udp  ", "tcp  ")), None);
        assert_eq!(Udp::parse("udp 17 29 src=172.18.0.3 dst=x"), None);
        assert_eq!(Udp::parse(""), None);
    }
}

//! From words and flags to plans, with errors that name the flag and what would be right.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::client::{DRAIN, PORT, Plan, Target};
use crate::load::Directions;
use crate::net::{self, Family};
use crate::protocol::control::{MOST_SECONDS, Settings, Test};
use crate::slices::{GoalOf, Path};

/// Bytes of a request, an answer or a datagram unless told otherwise.
const MESSAGE: u32 = 64;
/// Bytes of a stream's write unless told otherwise.
const CHUNK: u32 = 128 << 10;
/// Connections of `flows` and `storm` unless told otherwise; other tests have one.
const MANY: u32 = 64;

/// What is to be measured.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Wanted {
    /// TARGET[:PORT] and TEST; with `--paths` only TEST[,TEST..]. Tests: tcp-rr, tcp-crr, tcp-stream, udp-rr, udp-rate, flows, tcp-flows, storm.
    #[arg(required = true, num_args = 1..=2, value_name = "TARGET TEST")]
    words: Vec<String>,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
    time: f64,
    /// Seconds before that, which are not.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    warm_up: f64,
    /// Connections or flows; 1, but 64 for flows and storm.
    #[arg(long)]
    connections: Option<u32>,
    /// Bytes of a request.
    #[arg(long, default_value_t = MESSAGE)]
    request_bytes: u32,
    /// Bytes of an answer.
    #[arg(long, default_value_t = MESSAGE)]
    response_bytes: u32,
    /// Bytes of a datagram's payload (64) or of a stream's writes (131072).
    #[arg(long)]
    message_bytes: Option<u32>,
    /// One test for each of these sizes: of request and answer, datagram, or write.
    #[arg(long, value_delimiter = ',', value_name = "BYTES,..", conflicts_with = "message_bytes")]
    sweep: Vec<u32>,
    /// Transactions, connections or datagrams per second, of all connections together; without it as many as go.
    #[arg(long, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// CPU that the client stays on.
    #[arg(long)]
    cpu: Option<u32>,
    /// CPU that the server stays on.
    #[arg(long)]
    server_cpu: Option<u32>,
    /// Use an IPv4 address of the target.
    #[arg(long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Use an IPv6 address of the target.
    #[arg(long)]
    ipv6: bool,
    /// The server sends (tcp-stream).
    #[arg(long, conflicts_with = "bidirectional")]
    reverse: bool,
    /// True if both ends send, each on connections of its own (tcp-stream).
    #[arg(long)]
    bidirectional: bool,
    /// Send data to this address, and not to the target's: a Service, a node port, a host port. Without a port, the server's data port.
    #[arg(long, value_name = "HOST[:PORT]")]
    target_address: Option<String>,
}

/// The target, and a plan for each size.
pub(super) fn tests(wanted: &Wanted, says: bool) -> Result<(Target, Vec<Plan>)> {
    let [target, test] = wanted.words.as_slice() else {
        bail!("a target and a test are needed: run TARGET TEST")
    };
    let target = self::target(target, wanted.target_address.as_deref(), wanted.family())?;
    let test = self::test(test)?;
    let sizes: Vec<_> = match wanted.sweep.as_slice() {
        [] => vec![None],
        sizes => sizes.iter().map(|size| Some(*size)).collect(),
    };
    let seconds = wanted.warm_up + wanted.time;
    let plans =
        sizes.into_iter().map(|size| wanted.plan(test, size, seconds, says)).collect::<Result<_>>()?;
    Ok((target, plans))
}

/// The paths, and what is measured on each.
pub(super) fn paths(
    wanted: &Wanted,
    paths: &[String],
    rounds: usize,
    length: Duration,
    goals: &[GoalOf],
    says: bool,
) -> Result<(Vec<Path>, Vec<Plan>)> {
    let [tests] = wanted.words.as_slice() else {
        bail!(
            "--paths: the targets are in it, so only a test is to be given: run --paths NAME=TARGET,.. TEST"
        )
    };
    let tests = tests.split(',').map(test).collect::<Result<Vec<_>>>()?;
    let none = |flag: &str, given: bool| {
        if given {
            Err(anyhow::anyhow!("{flag}: not with --paths, whose slices are of one kind"))
        } else {
            Ok(())
        }
    };
    none("--target-address", wanted.target_address.is_some())?;
    none("--sweep", !wanted.sweep.is_empty())?;
    none("--rate", wanted.rate.is_some())?;
    none("--reverse", wanted.reverse)?;
    none("--bidirectional", wanted.bidirectional)?;
    if !tests.iter().all(|test| matches!(test, Test::Flows | Test::TcpFlows)) {
        none("--connections", wanted.connections.is_some_and(|count| count > 1))?;
    }
    let mut all: Vec<Path> = Vec::new();
    for text in paths {
        let form = || format!("--paths {text:?}: must be NAME=TARGET or NAME=TARGET@ADDRESS");
        let (name, rest) = text.split_once('=').with_context(form)?;
        ensure!(!name.is_empty() && !name.contains('/'), "{}", form());
        ensure!(all.iter().all(|path| path.name != name), "--paths: the name {name} is given twice");
        let (target, data) = rest.split_once('@').map_or((rest, None), |(target, data)| (target, Some(data)));
        let target = self::target(target, data, wanted.family()).with_context(form)?;
        all.push(Path { name: name.to_owned(), target });
    }
    for name in goals.iter().flat_map(|goal| [&goal.path, &goal.against]) {
        ensure!(all.iter().any(|path| path.name == *name), "--goal: there is no path {name}");
    }
    // Twice what the slices take, as something may be slow.
    let slices = u32::try_from(rounds * all.len())?;
    let seconds = 2.0 * (length * slices).as_secs_f64();
    ensure!(
        seconds <= MOST_SECONDS,
        "--rounds and --slice-ms: more than half an hour, which a server does not allow"
    );
    let plan = |test| wanted.plan(test, None, seconds.max(1.0), says);
    Ok((all, tests.into_iter().map(plan).collect::<Result<_>>()?))
}

fn test(word: &str) -> Result<Test> {
    let names = || Test::value_variants().iter().map(|test| test.name()).collect::<Vec<_>>().join(", ");
    Test::from_str(word, false)
        .ok()
        .with_context(|| format!("there is no test {word:?}: must be one of {}", names()))
}

fn target(text: &str, data: Option<&str>, family: Family) -> Result<Target> {
    let (host, port) = net::with_port(text)?;
    let data = data.map(net::with_port).transpose().context("--target-address")?;
    Ok(Target { host, port: port.unwrap_or(PORT), family, data })
}

fn time(flag: &str, seconds: f64, least: f64) -> Result<Duration> {
    let good = (least..=MOST_SECONDS).contains(&seconds);
    ensure!(good, "{flag} {seconds}: must be from {least} to {MOST_SECONDS} seconds");
    Duration::try_from_secs_f64(seconds).with_context(|| format!("{flag} {seconds}"))
}

impl Wanted {
    fn family(&self) -> Family {
        match (self.ipv4, self.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        }
    }

    fn plan(&self, test: Test, size: Option<u32>, seconds: f64, says: bool) -> Result<Plan> {
        let one_way = |flag: &str, given: bool| {
            ensure!(!given || test == Test::TcpStream, "{flag}: only for tcp-stream, not {}", test.name());
            Ok(())
        };
        one_way("--reverse", self.reverse)?;
        one_way("--bidirectional", self.bidirectional)?;
        if let Some(rate) = self.rate {
            ensure!(
                rate.is_finite() && rate > 0.0 && rate <= 1e9,
                "--rate {rate}: must be above 0, at most 1e9"
            );
            ensure!(test != Test::TcpStream, "--rate: not for tcp-stream, which sends what goes");
        }
        let many = matches!(test, Test::Flows | Test::TcpFlows | Test::Storm);
        let message = if test == Test::TcpStream { CHUNK } else { MESSAGE };
        let settings = Settings {
            test,
            connections: self.connections.unwrap_or(if many { MANY } else { 1 }),
            request_bytes: size.unwrap_or(self.request_bytes),
            response_bytes: size.unwrap_or(self.response_bytes),
            message_bytes: size.or(self.message_bytes).unwrap_or(message),
            seconds,
            server_cpu: self.server_cpu,
        };
        let (time, warm_up) = (time("--time", self.time, 0.01)?, time("--warm-up", self.warm_up, 0.0)?);
        settings.check().map_err(anyhow::Error::msg)?;
        let directions = match (self.reverse, self.bidirectional) {
            (true, _) => Directions::Reverse,
            (_, true) => Directions::Both,
            _ => Directions::Forward,
        };
        Ok(Plan { settings, warm_up, time, rate: self.rate, cpu: self.cpu, directions, drain: DRAIN, says })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        wanted: Wanted,
    }

    fn wanted(line: &str) -> Wanted {
        Line::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap().wanted
    }

    fn error(line: &str) -> String {
        format!("{:#}", tests(&wanted(line), false).unwrap_err())
    }

    #[test]
    fn a_sweep_is_a_plan_for_each_size() {
        let (target, plans) = tests(&wanted("h:9 udp-rate --sweep 64,512,1400"), false).unwrap();
        assert_eq!((target.host.as_str(), target.port), ("h", 9));
        assert_eq!(plans.iter().map(|p| p.settings.message_bytes).collect::<Vec<_>>(), [64, 512, 1400]);
    }

    #[test]
    fn errors_name_the_flag_and_what_would_be_right() {
        assert!(error("h nothing").contains("must be one of tcp-rr, tcp-crr"));
        assert!(error("h").contains("run TARGET TEST"));
        assert!(error("h tcp-rr --time 0").contains("--time 0: must be from 0.01 to 3600"));
        assert!(error("h tcp-rr --reverse").contains("only for tcp-stream"));
        assert!(error("h tcp-stream --rate 5").contains("--rate"));
        assert!(error("h udp-rr --rate -5").contains("--rate -5"));
        assert!(error("h udp-rr --request-bytes 4").contains("--request-bytes 4: must be from 16 to 65507"));
        assert!(error("h tcp-rr --target-address a:0").contains("--target-address"));
    }

    #[test]
    fn paths_have_names_targets_and_goals() {
        let of = |paths: &[&str], goal: &str| {
            let all: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
            let goals: Vec<GoalOf> = goal.parse().into_iter().collect();
            super::paths(&wanted("tcp-rr"), &all, 30, Duration::from_millis(30), &goals, false)
                .map(|(paths, _)| paths)
                .map_err(|error| format!("{error:#}"))
        };
        let two = of(&["a=h", "b=h@10.0.0.1:80"], "a/b>=1").unwrap();
        assert_eq!(two[1].target.data, Some(("10.0.0.1".into(), Some(80))));
        assert_eq!(of(&["a=h"], "").unwrap().len(), 1);
        assert!(of(&["a=h", "a=i"], "").unwrap_err().contains("twice"));
        assert!(of(&["a=h", "x"], "").unwrap_err().contains("NAME=TARGET"));
        assert!(of(&["a=h", "b=h"], "a/c>=1").unwrap_err().contains("no path c"));
    }
}

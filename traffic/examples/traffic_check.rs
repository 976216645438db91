//! Holds the traffic tool against iperf3 and sockperf: the same traffic over the same veth pair, in turn, in one run.
//!
//! `cargo xtask bench traffic-check [ROUNDS [PART]]`, as root; `PART` of a row's name chooses rows. Each end is pinned to a CPU of its own. Each round measures both tools once,
//! the next one the other way round. The goal of each row is a ratio within 5 %.

use std::io::Write;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use traffic::statistics::{Estimate, median, order};

const CLIENT: &str = "traffic-check-c";
const SERVER: &str = "traffic-check-s";
const ADDRESS: &str = "10.98.0.2";
/// Rounds unless told otherwise.
const ROUNDS: usize = 31;
/// How often a measurement is tried.
const ATTEMPTS: usize = 3;
/// How far a ratio may be from 1.
const NEAR: f64 = 0.05;
/// Offered datagrams of 64 bytes, in packets and in bits per second.
const PACKETS: &str = "40000";
const BITS: &str = "20480000";
/// The shaped link (tc-tbf(8)).
const LINK: &str = "tbf rate 2gbit burst 512k limit 4m";
/// Packages of Debian that have the other tools.
const TOOLS: [&str; 2] = ["iperf3", "sockperf"];

type Measure = fn(&str) -> Result<f64>;

/// A row: what, the other tool, both measures, and whether it has a goal.
struct Row {
    what: &'static str,
    other: &'static str,
    ours: Measure,
    theirs: Measure,
    has_goal: bool,
    /// Whether the link is shaped to [`LINK`], so that it and not a CPU is the bottleneck.
    is_shaped: bool,
}

const ROWS: &[Row] = &[
    Row {
        what: "TCP stream by a link of 2 Gbit/s, bits/s",
        other: "iperf3",
        ours: |tool| ours(tool, &["tcp-stream"], "per_second"),
        theirs: |_| number(&iperf3_json(&[])?, "/end/sum_received/bits_per_second"),
        has_goal: true,
        is_shaped: true,
    },
    Row {
        what: "TCP stream, as much as goes, bits/s",
        other: "iperf3",
        ours: |tool| ours(tool, &["tcp-stream"], "per_second"),
        theirs: |_| number(&iperf3_json(&[])?, "/end/sum_received/bits_per_second"),
        has_goal: false,
        is_shaped: false,
    },
    Row {
        what: "UDP at 40,000/s of 64 bytes, delivered/s",
        other: "iperf3",
        ours: |tool| ours(tool, &["udp-rate", "--rate", PACKETS], "per_second"),
        theirs: |_| iperf3_packets(BITS),
        has_goal: true,
        is_shaped: false,
    },
    Row {
        what: "UDP of 64 bytes, as many as go, delivered/s",
        other: "iperf3",
        ours: |tool| ours(tool, &["udp-rate"], "per_second"),
        theirs: |_| iperf3_packets("0"),
        has_goal: false,
        is_shaped: false,
    },
    Row {
        what: "UDP round trips of 64 bytes/s",
        other: "sockperf",
        ours: |tool| ours(tool, &["udp-rr"], "per_second"),
        theirs: |_| sockperf(&[], false),
        has_goal: true,
        is_shaped: false,
    },
    Row {
        what: "UDP round trip, median us",
        other: "sockperf",
        ours: |tool| ours(tool, &["udp-rr"], "latency_us/p50"),
        theirs: |_| sockperf(&[], true),
        has_goal: true,
        is_shaped: false,
    },
    Row {
        what: "TCP round trips of 64 bytes/s",
        other: "sockperf",
        ours: |tool| ours(tool, &["tcp-rr"], "per_second"),
        theirs: |_| sockperf(&["--tcp"], false),
        has_goal: true,
        is_shaped: false,
    },
    Row {
        what: "TCP round trip, median us",
        other: "sockperf",
        ours: |tool| ours(tool, &["tcp-rr"], "latency_us/p50"),
        theirs: |_| sockperf(&["--tcp"], true),
        has_goal: true,
        is_shaped: false,
    },
];

#[expect(clippy::disallowed_methods, reason = "it runs the tools that it compares")]
fn command(program: &str) -> Command {
    Command::new(program)
}

/// A program in a namespace, on a CPU.
fn at(namespace: &str, cpu: &str, program: &str) -> Command {
    let mut command = command("ip");
    command.args(["netns", "exec", namespace, "taskset", "-c", cpu, program]);
    command
}

fn good(what: &str, out: Output) -> Result<String> {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "{what}: {}{text}", String::from_utf8_lossy(&out.stderr));
    Ok(text)
}

fn ours_json(tool: &str, args: &[&str]) -> Result<Value> {
    let mut command = at(CLIENT, "0", tool);
    command.args(["run", ADDRESS, "--quiet", "--json", "-", "--time", "1", "--warm-up", "1"]);
    let out = command.args(["--cpu", "0", "--server-cpu", "1"]).args(args).output()?;
    serde_json::from_str(&good(tool, out)?).context("JSON of the traffic tool")
}

fn number(document: &Value, path: &str) -> Result<f64> {
    document.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in {document}"))
}

fn ours(tool: &str, args: &[&str], field: &str) -> Result<f64> {
    number(&ours_json(tool, args)?, &format!("/rows/0/{field}"))
}

fn iperf3_json(args: &[&str]) -> Result<Value> {
    let out =
        at(CLIENT, "0", "iperf3").args(["-c", ADDRESS, "-t", "1", "-O", "1", "-J"]).args(args).output()?;
    serde_json::from_str(&good("iperf3", out)?).context("JSON of iperf3")
}

/// Datagrams of 64 bytes that came, per second.
fn iperf3_packets(bits: &str) -> Result<f64> {
    let document = iperf3_json(&["-u", "-b", bits, "-l", "64"])?;
    let sum = |field: &str| number(&document, &format!("/end/sum/{field}"));
    Ok((sum("packets")? - sum("lost_packets")?) / sum("seconds")?)
}

/// Round trips a second, or the median time of one in microseconds: sockperf tells half of it.
fn sockperf(args: &[&str], median: bool) -> Result<f64> {
    let port = if args.is_empty() { "11111" } else { "11112" };
    let mut command = at(CLIENT, "0", "sockperf");
    command.args(["ping-pong", "-i", ADDRESS, "-p", port, "-t", "1", "-m", "64"]).args(args);
    let text = good("sockperf", command.output()?)?;
    if median {
        let mark = "percentile 50.000 =";
        let line = text.lines().find(|line| line.contains(mark)).context("no median")?;
        Ok(2.0 * field(line, mark)?)
    } else {
        // `[Valid Duration] RunTime=0.55 sec; SentMessages=1; ReceivedMessages=1`.
        let line = text
            .lines()
            .find(|line| line.contains("[Valid Duration]"))
            .with_context(|| format!("no duration: {text}"))?;
        Ok(field(line, "ReceivedMessages=")? / field(line, "RunTime=")?)
    }
}

/// The number after a mark.
fn field(line: &str, mark: &str) -> Result<f64> {
    let rest = line.split_once(mark).with_context(|| format!("no {mark} in {line}"))?.1.trim_start();
    let word: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    word.parse().with_context(|| format!("{mark} {word:?} in {line}"))
}

/// The namespaces, and the servers of all tools; both go with it.
struct Bed(Vec<Child>);

impl Bed {
    fn new(tool: &str) -> Result<Self> {
        let bed = Self(Vec::new());
        for line in [
            format!("netns add {CLIENT}"),
            format!("netns add {SERVER}"),
            format!("-n {CLIENT} link add eth0 type veth peer name eth0 netns {SERVER}"),
            format!("-n {CLIENT} addr add 10.98.0.1/24 dev eth0"),
            format!("-n {SERVER} addr add {ADDRESS}/24 dev eth0"),
            format!("-n {CLIENT} link set eth0 up"),
            format!("-n {SERVER} link set eth0 up"),
            format!("-n {SERVER} link set lo up"),
        ] {
            good(&format!("ip {line}"), command("ip").args(line.split(' ')).output()?)?;
        }
        bed.serve(&[
            &[tool, "serve"],
            &["iperf3", "-s"],
            &["sockperf", "server", "-i", ADDRESS, "-p", "11111"],
            &["sockperf", "server", "--tcp", "-i", ADDRESS, "-p", "11112"],
        ])
    }

    fn serve(mut self, servers: &[&[&str]]) -> Result<Self> {
        for words in servers {
            let (program, args) = words.split_first().context("a server")?;
            let mut server = at(SERVER, "1", program);
            let child = server.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            self.0.push(child.with_context(|| (*program).to_owned())?);
        }
        sleep(Duration::from_secs(1));
        for (child, words) in self.0.iter_mut().zip(servers) {
            ensure!(child.try_wait()?.is_none(), "{} has ended at once", words.join(" "));
        }
        Ok(self)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in [CLIENT, SERVER] {
            let _ = command("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Shapes the link, or no longer does.
fn shape(is_shaped: bool) -> Result<()> {
    let line = format!("-n {CLIENT} qdisc {} dev eth0 root", if is_shaped { "replace" } else { "del" });
    let rest = if is_shaped { LINK } else { "" };
    let out = command("tc").args(line.split(' ')).args(rest.split_whitespace()).output()?;
    // Where nothing was shaped there is nothing to take away.
    ensure!(out.status.success() || !is_shaped, "tc {line} {rest}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// Measures; once more, and once again, if a server was not ready yet or a tool says nothing.
fn patiently(measure: Measure, tool: &str) -> Result<f64> {
    for _ in 1..ATTEMPTS {
        if let Ok(value) = measure(tool) {
            return Ok(value);
        }
        sleep(Duration::from_secs(1));
    }
    measure(tool)
}

/// What the interval of a ratio says about 1, within [`NEAR`].
fn verdict(row: &Row, estimate: Estimate) -> &'static str {
    let (low, high) = (1.0 - NEAR, 1.0 + NEAR);
    match () {
        () if !row.has_goal => "",
        () if estimate.low >= low && estimate.high <= high => "met",
        () if estimate.high < low || estimate.low > high => "MISSED",
        () => "no verdict",
    }
}

fn run() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let tool = args.next().context("the path of the traffic tool is needed")?;
    let rounds = args.next().map_or(Ok(ROUNDS), |rounds| rounds.parse().context("ROUNDS"))?;
    let part = args.next().unwrap_or_default();
    for tool in TOOLS {
        if command(tool).arg("--version").output().is_err() {
            bail!("{tool} is missing: apt-get install {}", TOOLS.join(" "));
        }
    }
    let _bed = Bed::new(&tool)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{rounds} rounds; client on CPU 0, server on CPU 1; ratio: ours of the other's, 95 % interval"
    )?;
    let mut missed = false;
    for row in ROWS.iter().filter(|row| row.what.contains(&part)) {
        shape(row.is_shaped)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            for which in order(2, round) {
                match which {
                    0 => ours.push(patiently(row.ours, &tool)?),
                    _ => theirs.push(patiently(row.theirs, &tool)?),
                }
            }
        }
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let estimate = Estimate::of(&ratios).context("no round")?;
        let verdict = verdict(row, estimate);
        missed |= verdict == "MISSED";
        let [ours, theirs] = [&mut ours, &mut theirs].map(|values| median(values).unwrap_or_default());
        writeln!(
            out,
            "{:<44} ours {ours:>14.1}  {} {theirs:>14.1}  {:.3} ({:.3} to {:.3})  {verdict}",
            row.what, row.other, estimate.median, estimate.low, estimate.high
        )?;
    }
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            // A closed standard error cannot be reported.
            let _ = writeln!(std::io::stderr(), "traffic-check: {error:#}");
            ExitCode::FAILURE
        }
    }
}

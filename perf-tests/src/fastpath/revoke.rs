//! What still arrives after it was forbidden: by a policy, and with no process that could report the change to the programs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use testbed::cluster::Bed;
use testbed::cluster::config::Datapath;
use testbed::exec::retry;

use super::cell::{End, Route, Settings};
use super::cluster::{Cluster, NAMESPACE};
use super::load::{Kind, Recorded, wall_clock};

/// OVN's integration bridge, asked directly.
const BRIDGE: &str = "unix:/run/openvswitch/br-int.mgmt";
/// First port of the streams; each has one of its own, so that no verdict of an earlier one is there.
const PORT: u16 = 7300;
/// How long a stream runs before it is forbidden: long enough to be learned.
const LEARN: Duration = Duration::from_millis(700);
/// How long it may take to be learned, on a busy machine.
const LEARN_AT_MOST: Duration = Duration::from_secs(5);
/// How long it may go on: more than all of that and the time after which nothing may arrive.
const LONGEST: f64 = 9.0;
/// How long agents may take to answer after they were started again.
const RECOVER: Duration = Duration::from_secs(30);
/// By when nothing may arrive without such a process: refresh 2 s, slack 0.2 s, grace 0.2 s.
const BOUND: Duration = Duration::from_millis(2400);
/// Priority of an ACL that comes before all others.
const PRIORITY: &str = "2000";

/// Packets of one stream that came too late.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Late {
    /// How many arrived after the moment from which none may.
    pub(super) packets: usize,
    /// Milliseconds from that moment to the last arrival; negative if it was before.
    pub(super) last_ms: f64,
    /// How many had arrived before.
    pub(super) before: usize,
    /// Whether the stream used the flow cache of the node whose flows changed, when it was forbidden.
    pub(super) cached: bool,
}

impl Late {
    fn of(recorded: &Recorded, from: u64, cached: bool) -> Result<Self> {
        let packets = recorded.arrivals.iter().filter(|(at, _)| *at > from).count();
        let last = recorded.arrivals.last().context("nothing arrived")?.0;
        let ms = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3;
        let last_ms = if last >= from { ms(last - from) } else { -ms(from - last) };
        let late = Self { packets, last_ms, before: recorded.arrivals.len() - packets, cached };
        if late.before < 100 {
            bail!("only {} packets arrived before they were forbidden", late.before);
        }
        Ok(late)
    }
}

/// Forbids a stream of 5,000 packets a second by an ACL on the receiver's port, `times` times; counts what arrives
/// after the receiving node's flow table began to change.
pub(super) fn by_policy(cluster: &Cluster, times: u16, cpu: usize) -> Result<Vec<Late>> {
    let (bed, route) = (cluster.bed()?, cluster.across()?);
    let mut monitor = Monitor::start(bed, "n2")?;
    (0..times)
        .map(|i| {
            let port = PORT + i;
            let late = policy_once(cluster, &route, &mut monitor, port, cpu);
            acl(bed, "acl-del", port, &["--wait=hv"])?;
            late.with_context(|| format!("stream to port {port}"))
        })
        .collect()
}

fn policy_once(
    cluster: &Cluster,
    route: &Route,
    monitor: &mut Monitor,
    port: u16,
    cpu: usize,
) -> Result<Late> {
    let bed = cluster.bed()?;
    let stream = Stream::start(route, port, cpu)?;
    let cached = learned(cluster, "n2", port)?;
    monitor.forget();
    acl(bed, "acl-add", port, &[])?;
    let event = monitor.next(Duration::from_secs(3)).context("br-int's flows do not change")?;
    Late::of(&stream.finish()?, event, cached)
}

/// Lets a stream run; whether it goes by the node's cache then. Never without eBPF.
fn learned(cluster: &Cluster, node: &str, port: u16) -> Result<bool> {
    thread::sleep(LEARN);
    if cluster.bed()?.config().datapath == Datapath::Ovs {
        return Ok(false);
    }
    let learned = retry(LEARN_AT_MOST, "the stream is cached", || match cluster.is_cached(node, port)? {
        true => Ok(()),
        false => bail!("it takes the slow path"),
    });
    if let Err(error) = &learned {
        super::say(&format!("{error:#}"));
    }
    Ok(learned.is_ok())
}

/// Adds or removes the ACL; removing one that is not there is fine.
fn acl(bed: &Bed, verb: &str, port: u16, wait: &[&str]) -> Result<()> {
    let what = format!(r#"outport == "{}" && udp.dst == {port}"#, api::ovn_name::pod_port(NAMESPACE, "far"));
    let mut args = wait.to_vec();
    args.extend([verb, "n2", "to-lport", PRIORITY, &what]);
    if verb == "acl-add" {
        args.push("drop");
    }
    bed.nbctl(&args).map(drop)
}

/// Ends agent and ovn-controller on both nodes, then makes the flows of `node` drop a running stream; counts what arrives
/// after the bound. Everything runs again afterwards.
pub(super) fn without_user_space(cluster: &Cluster, node: &str, port: u16, cpu: usize) -> Result<Late> {
    let (bed, route) = (cluster.bed()?, cluster.across()?);
    let nodes = bed.config().node_names();
    for name in &nodes {
        retry(RECOVER, "the agent answers", || cluster.is_cached(name, port))?;
    }
    let stream = Stream::start(&route, port, cpu)?;
    let cached = learned(cluster, node, port)?;
    for name in &nodes {
        bed.host(name).kill("node-agent")?;
        bed.host(name).kill("ovn-controller")?;
    }
    let matched = format!("table=0,udp,tp_dst={port}");
    let changed = ofctl(bed, node, &["add-flow", BRIDGE, &format!("{matched},priority=65000,actions=drop")]);
    let from = wall_clock() + u64::try_from(BOUND.as_nanos())?;
    let recorded = stream.finish();
    ofctl(bed, node, &["del-flows", BRIDGE, &matched])?;
    for name in &nodes {
        bed.host(name).restart("ovn-controller")?;
        bed.host(name).restart("node-agent")?;
    }
    changed?;
    Late::of(&recorded?, from, cached)
}

fn ofctl(bed: &Bed, node: &str, args: &[&str]) -> Result<String> {
    bed.ovs(node, "ovs-ofctl", args)
}

/// A stream of paced datagrams that runs until nothing of it arrives any more.
struct Stream {
    sender: End,
    receiver: End,
}

impl Stream {
    fn start(route: &Route, port: u16, cpu: usize) -> Result<Self> {
        let settings = Settings { kind: Kind::Paced, port, cpu, part_of_path: Vec::new(), seconds: LONGEST };
        let receiver = End::serve(route, &settings)?;
        Ok(Self { sender: End::drive(route, &settings)?, receiver })
    }

    fn finish(mut self) -> Result<Recorded> {
        let recorded = self.receiver.answer();
        drop(self.sender);
        recorded
    }
}

/// Watches the flows of a node's br-int: when each change was reported.
struct Monitor {
    child: Child,
    events: Receiver<u64>,
}

impl Monitor {
    fn start(bed: &Bed, node: &str) -> Result<Self> {
        let mut command = bed.host(node).command(bed.config().ovs("ovs-ofctl"))?;
        command.args(["monitor", BRIDGE, "watch:!initial"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start ovs-ofctl")?;
        let (sender, events) = mpsc::channel();
        // It writes messages to standard error, and other things to the other.
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>),
            child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>),
        ];
        for pipe in pipes.into_iter().flatten() {
            let sender = sender.clone();
            thread::Builder::new().name("monitor".into()).spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if line.trim_start().starts_with("event=") && sender.send(wall_clock()).is_err() {
                        break;
                    }
                }
            })?;
        }
        Ok(Self { child, events })
    }

    /// Discards what was reported until now, which is about something else.
    fn forget(&mut self) {
        let quiet = Instant::now() + Duration::from_millis(20);
        while self.events.recv_timeout(quiet.saturating_duration_since(Instant::now())).is_ok() {}
    }

    /// The next change.
    fn next(&mut self, limit: Duration) -> Option<u64> {
        self.events.recv_timeout(limit).ok()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended with its host.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_count_as_late_from_the_moment_on() {
        let arrivals = (0..200_u32).map(|i| (1_000_000_000 + u64::from(i) * 200_000, i)).collect();
        let recorded = Recorded { arrivals };
        let late = Late::of(&recorded, 1_000_000_000 + 197 * 200_000, true).unwrap();
        assert_eq!((late.packets, late.before), (2, 198));
        assert!((late.last_ms - 0.4).abs() < 1e-9, "{late:?}");
    }

    #[test]
    fn a_stream_that_hardly_ran_proves_nothing() {
        let recorded = Recorded { arrivals: vec![(1, 0), (2, 1)] };
        assert!(Late::of(&recorded, 10, true).is_err());
    }
}

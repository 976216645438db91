//! A UDP client that goes on sending from one port while its service's only backend is replaced, or refused by a traffic policy: it is served by
//! the new one.

use std::net::IpAddr;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::demo::Pods;
use crate::demo::echoes::{self, Echo, Service};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::node_ip;
use testbed::traffic::Place;

/// Port of the service.
const PORT: u16 = 7201;
/// Its node port, where it has one.
const NODE_PORT: u16 = 30_191;
/// How long the client goes on.
const GOES_ON: Duration = Duration::from_secs(16);
/// When the backend is replaced, and when the old one stops answering: what is still sent to it is lost from then on.
const REPLACED: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(10);

/// Answers that a client gets at least, also of a service that is away for a part of the time, and from an OVS that takes 10 ms for each as the
/// machine is busy. Whether the client follows is told by its last answer: a client that does not has none from [`SILENT`] on.
const ENOUGH: u64 = 250;

/// How long the client goes on where the service is deleted and made again.
const AGAIN: Duration = Duration::from_secs(22);
/// How long the client goes on that is looked at meanwhile.
const LOOKED_AT: Duration = Duration::from_secs(30);
/// OVN has forgotten the service.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// The agent has started, and looked through all connections 0.7 and 4 s after it knew all services.
const LOOKED: Duration = Duration::from_secs(9);

/// From a backend on the client's node to one on the other, and back; and from the other node to the own one, as a traffic policy wants it.
pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for (old, new) in [(("n1", "web-1"), ("n2", "web-2")), (("n2", "web-2"), ("n1", "web-1"))] {
        let what = format!("UDP follows from the backend on {} to the one on {}", old.0, new.0);
        checks.check(what, replaced(bed, old, new).map_err(|e| format!("{e:#}")));
    }
    let what = "UDP from outside follows to the node's own backend when externalTrafficPolicy becomes Local";
    checks.check(what, policy(bed).map_err(|e| format!("{e:#}")));
    let what =
        "UDP follows to the backend of a service that was deleted while no agent was there, and made again";
    checks.check(what, made_again(bed).map_err(|e| format!("{e:#}")));
    let what = "UDP of the node itself follows to a service that is made after it began, and made again with another address";
    checks.check(what, of_the_node(bed).map_err(|e| format!("{e:#}")));
    let what = "UDP of a pod to its own node's port, from before a service that was made while no agent was there, shows the pod";
    checks.check(what, shown(bed).map_err(|e| format!("{e:#}")));
    Ok(())
}

/// Where a client sends to, and what of the service changes meanwhile.
struct Change<'a> {
    client: Place,
    /// Where the client sends to; none: the service's address.
    target: Option<(IpAddr, u16)>,
    before: Service<'a>,
    after: Service<'a>,
}

fn replaced(bed: &Bed, old: (&'static str, &str), new: (&'static str, &str)) -> Result<String> {
    let pods = Pods::list(bed)?;
    let first = [(pods.find(old.1)?.1.into(), old.0)];
    let second = [(pods.find(new.1)?.1.into(), new.0)];
    let client =
        Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    let change = Change {
        client,
        target: None,
        before: service(&first, None, false),
        after: service(&second, None, false),
    };
    served(bed, &change, old, new)
}

/// The service is deleted while the agent of the client's node is away, and ovn-controller, which would end its connections; it is made again
/// with another backend when the agent has looked through the connections that it found.
fn made_again(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let (old, new) = (("n1", "web-1"), ("n2", "web-2"));
    let first = [(pods.find(old.1)?.1.into(), old.0)];
    let second = [(pods.find(new.1)?.1.into(), new.0)];
    let (before, after) = (service(&first, None, false), service(&second, None, false));
    let echo = Echo::in_pod(bed, old.0, pods.find(old.1)?.0)?;
    let _echo = Echo::in_pod(bed, new.0, pods.find(new.1)?.0)?;
    let own =
        before.create(bed)?.into_iter().find(IpAddr::is_ipv4).context("the service has no IPv4 address")?;
    let client =
        Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    let running = start(bed, &client, (own, PORT), AGAIN)?;
    thread::sleep(REPLACED);
    let host = bed.host("n1");
    let away =
        host.kill("node-agent").and_then(|()| host.kill("ovn-controller")).and_then(|()| before.delete(bed));
    // Other trials need them.
    host.restart("ovn-controller")?;
    thread::sleep(FORGOTTEN);
    host.restart("node-agent")?;
    away?;
    thread::sleep(LOOKED);
    let again = after.create_at(bed, own)?;
    drop(echo);
    let output = running.wait_with_output()?;
    after.delete(bed)?;
    ensure!(again.contains(&own), "the service has {again:?} now, not {own}");
    to_the_end(&output)
}

/// A process of the node asks its node port, which the node's own rules translate by the first packet: from before the service is there, and while
/// it is deleted and made again.
fn of_the_node(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let backends = [(pods.find("web-2")?.1.into(), "n2")];
    let service = service(&backends, Some(NODE_PORT), false);
    let _echo = Echo::in_pod(bed, "n2", pods.find("web-2")?.0)?;
    let running = start(bed, &Place::Host("n1".into()), (node_ip(1).into(), NODE_PORT), GOES_ON)?;
    thread::sleep(FORGOTTEN);
    let first = service.create(bed)?;
    thread::sleep(REPLACED);
    service.delete(bed)?;
    thread::sleep(FORGOTTEN);
    let second = service.create(bed)?;
    let output = running.wait_with_output()?;
    service.delete(bed)?;
    ensure!(first != second, "the service has {second:?} again");
    to_the_end(&output)
}

/// A pod asks a node port of its own node. What it sent before the service was there goes to the gateway router, which has the node port too
/// and hides the pod: policies do not know such a client. The service is made while the agent is away.
fn shown(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let (pod, address) = pods.find("client")?;
    let (backend, behind) = pods.find("web-1")?;
    let backends = [(behind.into(), "n1")];
    let service = service(&backends, Some(NODE_PORT), false);
    let _echo = Echo::in_pod(bed, "n1", backend)?;
    let client = Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pod.into() };
    let mut running = start(bed, &client, (node_ip(1).into(), NODE_PORT), LOOKED_AT)?;
    thread::sleep(FORGOTTEN);
    let host = bed.host("n1");
    let made = host.kill("node-agent").and_then(|()| service.create(bed));
    thread::sleep(FORGOTTEN);
    // Other trials need it.
    host.restart("node-agent")?;
    made?;
    thread::sleep(LOOKED);
    let seen = becomes_plain(bed, &mut running, address.into(), behind.into());
    let output = running.wait_with_output()?;
    service.delete(bed)?;
    let served = to_the_end(&output);
    seen.with_context(|| format!("the client: {served:?}"))?;
    served
}

/// Waits until OVS has only such connections of the client as do not hide it. There is none at all while the agent has just ended one and the
/// client waits for the answer that it will not get.
fn becomes_plain(bed: &Bed, running: &mut Child, client: IpAddr, backend: IpAddr) -> Result<()> {
    loop {
        let ended = running.try_wait()?.is_some();
        let table = bed.ovs("n1", "ovs-appctl", &["dpctl/dump-conntrack"])?;
        let [hidden, plain] = ways(&table, client, backend);
        if hidden == 0 && plain > 0 {
            return Ok(());
        }
        let theirs: Vec<_> = table.lines().filter(|line| line.contains(&format!("src={client},"))).collect();
        ensure!(
            !ended,
            "OVS has {hidden} connections that hide the pod, {plain} that do not; all of the pod: {theirs:#?}"
        );
        thread::sleep(Duration::from_millis(300));
    }
}

/// How many of OVS's connections answer a client from a node port that is not translated, and how many from its backend.
fn ways(table: &str, client: IpAddr, backend: IpAddr) -> [usize; 2] {
    let asked = [format!("orig=(src={client},dst={},", node_ip(1)), format!("dport={NODE_PORT})")];
    let ours = || table.lines().filter(|line| asked.iter().all(|part| line.contains(part)));
    let from =
        |ip: IpAddr| ours().filter(|line| line.contains(&format!("reply=(src={ip},dst={client},"))).count();
    [from(node_ip(1).into()), from(backend)]
}

/// The client asks the first node, whose service has a backend on the other one only, and then also one of its own.
fn policy(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let (other, own) = (("n2", "web-2"), ("n1", "web-1"));
    let first = [(pods.find(other.1)?.1.into(), other.0)];
    let both = [first[0], (pods.find(own.1)?.1.into(), own.0)];
    let change = Change {
        client: Place::Host("ext".into()),
        target: Some((node_ip(1).into(), NODE_PORT)),
        before: service(&first, Some(NODE_PORT), false),
        after: service(&both, Some(NODE_PORT), true),
    };
    served(bed, &change, other, own)
}

fn service<'a>(backends: &'a [(IpAddr, &'a str)], node_port: Option<u16>, local: bool) -> Service<'a> {
    Service { namespace: "shop", name: "replaced", port: PORT, backends, node_port, local }
}

/// The client is served to its end, though the first backend stops to answer some time after the change.
fn served(bed: &Bed, change: &Change<'_>, old: (&str, &str), new: (&str, &str)) -> Result<String> {
    let pods = Pods::list(bed)?;
    let echo = Echo::in_pod(bed, old.0, pods.find(old.1)?.0)?;
    let _echo = Echo::in_pod(bed, new.0, pods.find(new.1)?.0)?;
    let made = change.before.create(bed)?;
    let own = made.iter().find(|ip| ip.is_ipv4()).map(|ip| (*ip, PORT));
    let (address, port) = change.target.or(own).context("the service has no IPv4 address")?;
    let running = start(bed, &change.client, (address, port), GOES_ON)?;
    thread::sleep(REPLACED);
    change.after.create(bed)?;
    thread::sleep(SILENT.saturating_sub(REPLACED));
    drop(echo);
    let output = running.wait_with_output()?;
    let served = to_the_end(&output).with_context(|| tracked(bed));
    change.before.delete(bed)?;
    served
}

/// What OVS on the first node has of the client's connection, for who has to find out why it is not served.
fn tracked(bed: &Bed) -> String {
    let table = bed.ovs("n1", "ovs-appctl", &["dpctl/dump-conntrack"]).unwrap_or_else(|e| format!("{e:#}"));
    let ports = [PORT, NODE_PORT].map(|port| format!("dport={port})"));
    let ours: Vec<&str> =
        table.lines().filter(|line| ports.iter().any(|port| line.contains(port.as_str()))).collect();
    format!("OVS on n1 has the connections {ours:?}")
}

/// Starts a UDP client that goes on asking from one port.
fn start(bed: &Bed, client: &Place, (address, port): (IpAddr, u16), goes_on: Duration) -> Result<Child> {
    let mut client = echoes::client(bed, client)?;
    client.args(["--udp", "--pause", "2", "--timeout", "500", "--count", "1000000"]);
    client.args(["--seconds", &goes_on.as_secs().to_string(), &address.to_string(), &port.to_string()]);
    client.stdout(Stdio::piped()).spawn().context("cannot start the client")
}

/// Whether a client was served until it ended.
fn to_the_end(output: &Output) -> Result<String> {
    let seen = echoes::round_trips(&String::from_utf8_lossy(&output.stdout))?;
    let silent = seen.total_ms.saturating_sub(seen.last_answer_ms);
    let text =
        format!("{} answers, {} lost, the last answer {silent} ms before the end", seen.answers, seen.lost);
    ensure!(seen.answers > ENOUGH && silent < 2000, "{text}");
    Ok(text)
}

//! Networks that list each other: their pods reach one another with their own addresses, policies hold, and nothing goes further.

use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::demo::echoes::{self, Echo, PORT};
use crate::demo::ways::carried;
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::config::Datapath;
use testbed::exec;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial, Place};

use super::life::{eventually, running};
use super::policies::{KIND, LOOKED};
use super::scene::{GREEN, HEAL, RED, Scene, asking, network, networks};
use crate::objects::Objects;

/// The networks: two isolated ones, of two tenants, and one that is routed; only the middle one lists both others.
const LEFT: &str = "left";
const MIDDLE: &str = "middle";
const RIGHT: &str = "right";
const NAMED: u16 = 8080;
/// How long nothing answers before nothing will.
const SILENCE: Duration = Duration::from_millis(800);
/// How long a client asks, and from when on the peer holds it back.
const ASKED: Duration = Duration::from_secs(6);
const HELD: Duration = Duration::from_secs(2);

struct One {
    place: Place,
    addresses: Vec<IpAddr>,
}

impl One {
    fn of(tenant: &Objects<'_>, name: &str, node: &str) -> Result<Self> {
        let all = networks(tenant, name)?;
        let addresses = all.values().flat_map(|network| &network.ip_addresses).map(ipnet::IpNet::addr);
        let place = Place::Pod { node: node.into(), namespace: tenant.namespace.into(), name: name.into() };
        Ok(Self { place, addresses: addresses.collect() })
    }

    fn address(&self, six: bool) -> Result<IpAddr> {
        let mut all = self.addresses.iter().copied();
        all.find(|ip| ip.is_ipv6() == six)
            .with_context(|| format!("{}: no address of that family", self.place))
    }
}

fn list(tenant: &Objects<'_>, name: &str, reach: &str, third: u8, peers: &[&str]) -> Result<()> {
    let mut object = network(tenant.namespace, name, reach, third);
    object["spec"]["peers"] = json!(peers);
    tenant.apply(object)
}

/// All of it.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (red, green) = (&scene.red, &scene.green);
    list(red, LEFT, "Isolated", 81, &["green/middle"])?;
    list(green, MIDDLE, "Isolated", 82, &[])?;
    list(red, RIGHT, "ClusterRouter", 83, &["green/middle"])?;
    checks.check("a network whose peer does not list it says so", says(red, LEFT, "lists this one"));
    let wanted = |network: &str| json!([{"name": network, "interface": "net1"}]);
    red.apply(asking(RED, "early", Some("n1"), &wanted(LEFT)))?;
    checks.check("a pod of it runs", running(red, "early"));
    list(green, MIDDLE, "Isolated", 82, &["red/left", "red/right"])?;
    for (tenant, name) in [(red, LEFT), (green, MIDDLE), (red, RIGHT)] {
        checks.check(
            format!("{name} reaches all of its peers"),
            says(tenant, name, "it reaches all of its peers"),
        );
    }
    let pods = [
        (red, "left1", "n1", LEFT),
        (green, "middle1", "n1", MIDDLE),
        (green, "middle2", "n2", MIDDLE),
        (red, "right1", "n2", RIGHT),
    ];
    for (tenant, name, node, network) in pods {
        tenant.apply(asking(tenant.namespace, name, Some(node), &wanted(network)))?;
    }
    for (tenant, name, ..) in pods {
        checks.check(format!("pod {name} runs"), running(tenant, name));
    }
    let all =
        pods.iter().map(|(tenant, name, node, _)| One::of(tenant, name, node)).collect::<Result<Vec<_>>>()?;
    let [left, middle, far, right] = all.as_slice() else { bail!("as many as pods") };
    for six in [false, true] {
        for udp in [false, true] {
            let what = format!("{} over IPv{}", if udp { "UDP" } else { "TCP" }, if six { 6 } else { 4 });
            for (from, to, name, way) in [
                (left, middle, "middle1", "to the peer on the node"),
                (left, far, "middle2", "to the peer on another node"),
                (far, left, "left1", "and back"),
                (middle, right, "right1", "to the routed peer"),
                (right, far, "middle2", "and from it"),
            ] {
                let address = to.address(six)?;
                let dial = if udp { Dial::udp(address, NAMED) } else { Dial::tcp(address, NAMED) };
                let expect = Expect::only(&format!("{name} {}", from.address(six)?));
                let (_, verdict) = expect::settle(red.bed, &from.place, dial.times(3), &expect, HEAL);
                checks.check(format!("{way}: {what}"), verdict);
            }
        }
        // Also with a route there, nothing goes through a network to its peers.
        let [net, gateway] =
            if six { ["fd00:83::/64", "fd00:81::1"] } else { ["172.16.83.0/24", "172.16.81.1"] };
        route(scene, left, net, gateway)?;
        checks.check(
            format!("{} is not reached by its peer's peer", right.address(six)?),
            silent(scene, left, right.address(six)?),
        );
    }
    let early = One::of(red, "early", "n1")?;
    checks.check("a pod from before has no route there", silent(scene, &early, middle.address(false)?));
    policy(scene, left, far, checks)?;
    let ends = ended(scene, left, far).map_err(|error| format!("{error:#}"));
    checks.check("a flow across nodes ends when the peer is listed no more", ends);
    checks.check(
        "a network that lists another no more is not reached by it any more",
        eventually(|| silent(scene, left, middle.address(false)?).map_err(anyhow::Error::msg)),
    );
    let expect = Expect::only(&format!("right1 {}", middle.address(false)?));
    let dial = Dial::tcp(right.address(false)?, NAMED).times(3);
    checks.check("the other peer goes on", expect::settle(red.bed, &middle.place, dial, &expect, HEAL).1);
    red.delete(&["early", "left1", "right1"])?;
    green.delete(&["middle1", "middle2"])?;
    for (namespace, name) in [(RED, LEFT), (GREEN, MIDDLE), (RED, RIGHT)] {
        red.bed.kubectl(&["delete", "virtualnetwork", "-n", namespace, name, "--timeout=30s"])?;
    }
    let routers = red.bed.nbctl(&["lr-list"])?;
    let left = if routers.contains("_peers") { Err(routers) } else { Ok(String::new()) };
    checks.check("no router of them is left", left);
    Ok(())
}

fn says(tenant: &Objects<'_>, network: &str, word: &str) -> Result<String, String> {
    eventually(|| {
        let path = r#".status.conditions[?(@.type=="Peers")].message"#;
        let said = tenant.field(&format!("virtualnetwork/{network}"), path)?;
        ensure!(said.contains(word), "{said}");
        Ok(said)
    })
}

/// A pod that makes itself a route.
fn route(scene: &Scene<'_>, from: &One, net: &str, gateway: &str) -> Result<()> {
    let mut ip = traffic::command(scene.bed(), &from.place, "ip".as_ref())?;
    exec::output(ip.args(["route", "replace", net, "via", gateway, "dev", "net1"])).map(drop)
}

/// A client that asks all the time gets no answer from when on the network lists its peer no more.
fn ended(scene: &Scene<'_>, left: &One, far: &One) -> Result<String> {
    let bed = scene.bed();
    let _echo = Echo::at(bed, &far.place)?;
    let nodes = ["n1", "n2"];
    let count = || nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    let ebpf = bed.config().datapath == Datapath::Ebpf;
    let before = if ebpf { count()? } else { Vec::new() };
    let mut asking = echoes::client(bed, &left.place)?;
    asking.args(["--count", "100000000", "--seconds", &ASKED.as_secs().to_string(), "--size", "64", "--udp"]);
    asking.args([far.address(false)?.to_string(), PORT.to_string()]);
    let asking: Child = asking.stdout(Stdio::piped()).spawn().context("the client")?;
    thread::sleep(HELD);
    list(&scene.green, MIDDLE, "Isolated", 82, &["red/right"])?;
    let out = asking.wait_with_output().context("the client")?;
    let seen = echoes::round_trips(&String::from_utf8_lossy(&out.stdout))?;
    let silent = seen.total_ms.saturating_sub(seen.last_answer_ms);
    let carried = if ebpf { count()? } else { Vec::new() };
    let carried: Vec<u64> =
        carried.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    let text = format!(
        "{} answers, the last {silent} ms before the end; the flow cache carried {carried:?} packets on {nodes:?}",
        seen.answers
    );
    // OVS alone answers fewer on a busy machine.
    let fewest = if ebpf { 1_000 } else { 100 };
    ensure!(seen.answers > fewest && silent > u64::try_from(HELD.as_millis())?, "{text}");
    ensure!(carried.iter().all(|packets| *packets > seen.answers), "{text}");
    Ok(text)
}

/// Whether nobody answers.
fn silent(scene: &Scene<'_>, from: &One, to: IpAddr) -> Result<String, String> {
    let dial = Dial::tcp(to, NAMED).within(SILENCE).times(2);
    let attempts = traffic::dial(scene.bed(), &from.place, dial).map_err(|error| format!("{error:#}"))?;
    let text = traffic::summary(&attempts);
    if attempts.iter().any(|attempt| matches!(attempt.answer, Answer::Reply(_))) {
        Err(text)
    } else {
        Ok(text)
    }
}

/// A policy of the network holds for what comes from peers.
fn policy(scene: &Scene<'_>, left: &One, far: &One, checks: &mut Checks) -> Result<()> {
    let green = &scene.green;
    let rule = |net: &str| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
            "metadata": {"namespace": GREEN, "name": "peers", "annotations": {"k8s.v1.cni.cncf.io/policy-for": MIDDLE}},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"ipBlock": {"cidr": net}}]}]},
        })
    };
    green.apply(KIND)?;
    exec::retry(HEAL, "the kind is served", || green.apply(rule("172.16.99.0/24")))?;
    let held = exec::retry(LOOKED, "the policy is in force", || {
        silent(scene, left, far.address(false)?).map_err(anyhow::Error::msg)
    });
    checks
        .check("a policy that allows others holds the peer back", held.map_err(|error| format!("{error:#}")));
    green.apply(rule("172.16.81.0/24"))?;
    let expect = Expect::only(&format!("middle2 {}", left.address(false)?));
    let dial = Dial::tcp(far.address(false)?, NAMED).times(3);
    let (_, verdict) = expect::settle(scene.bed(), &left.place, dial, &expect, HEAL);
    checks.check("one that allows its range lets it in", verdict);
    scene.bed().kubectl(&["delete", "multi-networkpolicies.k8s.cni.cncf.io", "-n", GREEN, "peers"]).map(drop)
}

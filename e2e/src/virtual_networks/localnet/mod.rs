//! Networks on VLANs of a physical network: pods reach one another and an outside host there with their own addresses, on one node and
//! across nodes, and nothing of another VLAN; who may make such networks; nodes that do not have the physical network.

mod carried;
mod duplicates;
mod fabric;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::demo::echoes::{self, Echo, PORT};
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::OUTSIDE_IP;
use testbed::exec;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial, Place};

use super::life::{event, eventually, running};
use super::scene::{HEAL, RED, Scene, asking, network, networks};
use crate::objects::Objects;
use fabric::{Access, HOST, NAME};

const NODES: [&str; 2] = ["n1", "n2"];
const VLAN: u16 = 100;
const OTHER_VLAN: u16 = 200;
/// The networks: on one VLAN, and with the same range on another one.
const STORAGE: &str = "storage";
const BACKUP: &str = "backup";
const THIRD: u8 = 91;
/// The outside host's addresses on the first VLAN.
const OUTSIDE: [&str; 2] = ["172.16.91.250", "fd00:91::250"];
const SERVED: u16 = 9100;
const NAMED: u16 = 8080;
/// Pods of the first network, with nodes: one that asks for its addresses, one whose default route is there.
const PODS: [(&str, &str); 4] = [("d1", "n1"), ("d2", "n1"), ("d3", "n2"), ("d4", "n2")];
const STATIC: &str = "d2";
const ROUTED: &str = "d4";
/// Pods of the second network.
const OTHERS: [(&str, &str); 2] = [("v1", "n1"), ("v2", "n2")];
/// How long nothing answers before nothing will.
const SILENCE: Duration = Duration::from_millis(800);
/// Bytes of a round trip: several segments each way.
const LONG: &str = "20000";

/// All of it.
pub(super) fn check(scene: &Scene<'_>, ebpf: bool, checks: &mut Checks) -> Result<()> {
    let (bed, red) = (scene.bed(), &scene.red);
    let access = [
        Access { name: "dc100", vlan: VLAN, addresses: ["172.16.91.250/24", "fd00:91::250/64"] },
        Access { name: "dc200", vlan: OTHER_VLAN, addresses: ["172.16.92.250/24", "fd00:92::250/64"] },
    ];
    fabric::build(bed, &NODES, &access)?;
    rights(red, checks)?;
    nodes(red, checks)?;
    for (name, node) in PODS {
        let mut wanted = json!({"name": STORAGE, "interface": "net1"});
        if name == STATIC {
            wanted["ip_address"] = "172.16.91.77,fd00:91::77".into();
        }
        if name == ROUTED {
            wanted["defaultGateway"] = "true".into();
        }
        red.apply(asking(RED, name, Some(node), &json!([wanted])))?;
    }
    for (name, node) in OTHERS {
        let last = if name == "v1" { 88 } else { 89 };
        let wanted = json!([{"name": BACKUP, "interface": "net1",
            "ip_address": format!("172.16.{THIRD}.{last},fd00:{THIRD}::{last}")}]);
        red.apply(asking(RED, name, Some(node), &wanted))?;
    }
    for (name, _) in PODS.iter().chain(&OTHERS) {
        checks.check(format!("pod {name} runs"), running(red, name));
    }
    let own = bed.config().program("testbed").display().to_string();
    let serve =
        [&own, "probe", "serve", "--name", "dc", "--tcp", &SERVED.to_string(), "--udp", &SERVED.to_string()];
    bed.host(HOST).start("dc", &serve.map(AsRef::as_ref), &[])?;
    matrix(red, checks)?;
    long_ones(red, checks)?;
    default_route(red, checks)?;
    other_vlan(red, checks)?;
    spoofing(red, checks)?;
    duplicates::check(red, checks)?;
    if ebpf {
        carried::check(red, checks)?;
    }
    restart(red, checks)?;
    let names: Vec<&str> = PODS.iter().chain(&OTHERS).map(|(name, _)| *name).collect();
    red.delete(&names)?;
    for network in [STORAGE, BACKUP] {
        bed.kubectl(&["delete", "virtualnetwork", "-n", RED, network, "--timeout=30s"])?;
    }
    bed.host(HOST).kill("dc")?;
    fabric::remove(bed, &NODES)?;
    let told = || -> Result<String> { told_networks(bed, "n1") };
    checks.check(
        "a node without the bridge does not say that it has one",
        eventually(|| {
            let told = told()?;
            ensure!(told.is_empty(), "{told}");
            Ok(told)
        }),
    );
    Ok(())
}

/// What the flow cache carries of a VLAN, with OVS's datapath in the kernel: on a cluster without a scene.
pub(crate) fn on_kernel(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let red = Objects { bed, namespace: RED, heal: HEAL, soon: HEAL };
    let access = [Access { name: "dc100", vlan: VLAN, addresses: ["172.16.91.250/24", "fd00:91::250/64"] }];
    fabric::build(bed, &NODES, &access)?;
    red.make_namespace()?;
    red.apply(on_vlan(STORAGE, VLAN))?;
    for node in NODES {
        fabric::map(bed, node)?;
    }
    let wanted = json!([{"name": STORAGE, "interface": "net1"}]);
    let pods = &PODS[..3];
    for (name, node) in pods {
        red.apply(asking(RED, name, Some(node), &wanted))?;
    }
    for (name, _) in pods {
        checks.check(format!("pod {name} runs"), running(&red, name));
    }
    carried::of_kernel(&red, checks)?;
    red.delete(&pods.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    bed.kubectl(&["delete", "virtualnetwork", "-n", RED, STORAGE, "--timeout=60s"])?;
    fabric::remove(bed, &NODES)
}

/// A VLAN on a wire between two nodes, with a pod on each: both, and the address of the second one.
pub(crate) fn joined(bed: &Bed) -> Result<(Place, Place, IpAddr)> {
    let red = Objects { bed, namespace: RED, heal: HEAL, soon: HEAL };
    fabric::join(bed, NODES)?;
    red.make_namespace()?;
    red.apply(on_vlan(STORAGE, VLAN))?;
    let wanted = json!([{"name": STORAGE, "interface": "net1"}]);
    for (name, node) in [PODS[0], PODS[2]] {
        red.apply(asking(RED, name, Some(node), &wanted))?;
        running(&red, name).map_err(anyhow::Error::msg)?;
    }
    Ok((place(PODS[0].0)?, place(PODS[2].0)?, address(&red, PODS[2].0, false)?))
}

fn on_vlan(name: &str, vlan: u16) -> Value {
    let mut object = network(RED, name, "Localnet", THIRD);
    object["spec"]["localnet"] = json!({"physicalNetwork": NAME, "vlan": vlan});
    if name == STORAGE {
        object["spec"]["gateways"] = json!(OUTSIDE);
    }
    object
}

fn place(name: &str) -> Result<Place> {
    let all = PODS.iter().chain(&OTHERS);
    let (_, node) = all.into_iter().find(|(pod, _)| *pod == name).context("no such pod")?;
    Ok(Place::Pod { node: (*node).into(), namespace: RED.into(), name: name.into() })
}

fn address(red: &Objects<'_>, pod: &str, six: bool) -> Result<IpAddr> {
    let all = networks(red, pod)?;
    let mut addresses = all.values().flat_map(|network| &network.ip_addresses).map(ipnet::IpNet::addr);
    addresses
        .find(|ip| ip.is_ipv6() == six)
        .with_context(|| format!("pod {pod} has no address of that family"))
}

/// Who may make networks there: nobody but who has the right to use the physical network, or the VLAN.
fn rights(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let role = |name: &str, rule: Value| {
        [
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": RED, "name": name}, "rules": [rule]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": RED, "name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}]}),
        ]
    };
    let make = |object: &Value| -> Result<String> {
        let mut kubectl = red.bed.kubectl_command()?;
        exec::input_output(kubectl.args(["--as", "tenant", "create", "-f", "-"]), &object.to_string())
    };
    let refused = |object: &Value, word: &str| match make(object) {
        Ok(made) => bail!("made: {made}"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains(word), "{text}");
            Ok(text)
        }
    };
    for object in role(
        "tenant",
        json!({"apiGroups": ["slipstream.dev"], "resources": ["virtualnetworks"], "verbs": ["create"]}),
    ) {
        red.apply(object)?;
    }
    checks.check(
        "a tenant without the right makes no network on a VLAN",
        eventually(|| refused(&on_vlan(STORAGE, VLAN), "may not use physical network dc in namespace red")),
    );
    let mut without = on_vlan(STORAGE, VLAN);
    without["spec"]["localnet"] = Value::Null;
    checks.check(
        "the API server wants the physical network",
        refused(&without, "localnet belongs to reach Localnet").map_err(|error| format!("{error:#}")),
    );
    let right = json!({"apiGroups": ["slipstream.dev"], "resources": ["physicalnetworks"], "resourceNames": [format!("{NAME}.{VLAN}")], "verbs": ["use"]});
    for object in role("tenant-of-vlan", right) {
        red.apply(object)?;
    }
    checks.check(
        "with the right to use the VLAN the tenant does",
        eventually(|| make(&on_vlan(STORAGE, VLAN))),
    );
    checks.check(
        "and none on another VLAN",
        refused(&on_vlan(BACKUP, OTHER_VLAN), "dc.200").map_err(|error| format!("{error:#}")),
    );
    red.apply(on_vlan(BACKUP, OTHER_VLAN))?;
    let mut moved = on_vlan(STORAGE, VLAN);
    moved["spec"]["localnet"]["vlan"] = 101.into();
    let change = red.apply(moved).err().map(|error| format!("{error:#}"));
    let change = change.filter(|text| text.contains("localnet cannot be changed"));
    checks.check("the VLAN of a network cannot be changed", change.ok_or_else(|| "it is changed".to_owned()));
    let mut again = on_vlan("again", VLAN);
    again["spec"]["subnets"] = json!(["172.16.91.128/25"]);
    again["spec"]["gateways"] = json!([]);
    red.apply(again)?;
    checks.check(
        "a second network with these addresses on the VLAN is a conflict",
        eventually(|| {
            let said =
                red.field("virtualnetwork/again", r#".status.conditions[?(@.type=="Conflict")].message"#)?;
            ensure!(said.contains("which is on VLAN 100 of physical network dc as well"), "{said}");
            Ok(said)
        }),
    );
    red.bed.kubectl(&["delete", "virtualnetwork", "-n", RED, "again", "--timeout=30s"]).map(drop)
}

fn ready(red: &Objects<'_>, word: &str) -> Result<String, String> {
    eventually(|| {
        let said =
            red.field("virtualnetwork/storage", r#".status.conditions[?(@.type=="Ready")].message"#)?;
        ensure!(said.contains(word), "{said}");
        Ok(said)
    })
}

fn told_networks(bed: &Bed, node: &str) -> Result<String> {
    bed.kubectl(&[
        "get",
        "node",
        node,
        "-o",
        r"jsonpath={.metadata.annotations.slipstream\.dev/physical-networks}",
    ])
}

/// Nodes that do not have the physical network, and get it.
fn nodes(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    checks.check(
        "a network that no node can have says so",
        ready(red, "no node has a bridge for physical network dc"),
    );
    fabric::map(red.bed, "n1")?;
    checks.check("with the first node it is ready", ready(red, "pods may attach to it on the nodes"));
    red.apply(asking(RED, "late", Some("n2"), &json!([{"name": STORAGE, "interface": "net1"}])))?;
    checks.check(
        "a pod on a node that has not waits, and an event says why",
        event(red, "late", "node n2 has no bridge for physical network dc"),
    );
    fabric::map(red.bed, "n2")?;
    checks.check("it runs when its node has", running(red, "late"));
    red.delete(&["late"])
}

/// Asks until the right one answers and nobody else.
fn reaches(bed: &Bed, from: &Place, dial: Dial, expect: &str) -> Result<String, String> {
    expect::settle(bed, from, dial.times(3), &Expect::only(expect), HEAL).1
}

fn matrix(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let outside = Place::Host(HOST.into());
    for six in [false, true] {
        let family = if six { "IPv6" } else { "IPv4" };
        let own: IpAddr = OUTSIDE[usize::from(six)].parse()?;
        for udp in [false, true] {
            let dial = |to, port| if udp { Dial::udp(to, port) } else { Dial::tcp(to, port) };
            let what = format!("{} over {family}", if udp { "UDP" } else { "TCP" });
            for (from, to, way) in [
                ("d1", "d2", "same node, an address that was asked for"),
                ("d1", "d3", "other node"),
                ("d2", "d4", "other node, default route there"),
            ] {
                let expect = format!("{to} {}", address(red, from, six)?);
                let verdict = reaches(red.bed, &place(from)?, dial(address(red, to, six)?, NAMED), &expect);
                checks.check(format!("{way}: {what}"), verdict);
            }
            for (name, _) in PODS {
                let pod = address(red, name, six)?;
                let verdict = reaches(red.bed, &place(name)?, dial(own, SERVED), &format!("dc {pod}"));
                checks.check(format!("{name} to the outside host, {what}"), verdict);
                let verdict = reaches(red.bed, &outside, dial(pod, NAMED), &format!("{name} {own}"));
                checks.check(format!("the outside host to {name}, {what}"), verdict);
            }
        }
    }
    Ok(())
}

/// Round trips of several segments each way, so that lengths and checksums are right wherever they are computed.
fn long_ones(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    let _echoes = [
        Echo::at(bed, &place("d1")?)?,
        Echo::at(bed, &place("d3")?)?,
        Echo::at(bed, &Place::Host(HOST.into()))?,
    ];
    for six in [false, true] {
        let ways = [
            ("d3", place("d2")?, address(red, "d3", six)?),
            ("the outside host", place("d1")?, OUTSIDE[usize::from(six)].parse()?),
            ("d1", Place::Host(HOST.into()), address(red, "d1", six)?),
        ];
        for (to, from, address) in ways {
            let asked = || -> Result<String> {
                let mut asking = echoes::client(bed, &from)?;
                asking.args(["--count", "50", "--seconds", "10", "--size", LONG]);
                asking.args([address.to_string(), PORT.to_string()]);
                let seen = echoes::round_trips(&exec::output(&mut asking)?)?;
                let text = format!("{} answers, {} lost", seen.answers, seen.lost);
                ensure!(seen.answers == 50 && seen.lost == 0, "{text}");
                Ok(text)
            };
            let what = format!("long messages from {from} to {to} at {address}");
            checks.check(what, asked().map_err(|error| format!("{error:#}")));
        }
    }
    Ok(())
}

/// The physical network's router is a pod's way to everywhere, and sees the pod's own address.
fn default_route(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let expect = format!("dc {}", address(red, ROUTED, false)?);
    let verdict = reaches(red.bed, &place(ROUTED)?, Dial::tcp(OUTSIDE_IP, SERVED), &expect);
    checks
        .check("by the default route to beyond the physical network's router, without translation", verdict);
    Ok(())
}

/// Whether nobody answers.
fn silent(bed: &Bed, from: &Place, to: IpAddr, port: u16) -> Result<String, String> {
    let dial = Dial::tcp(to, port).within(SILENCE).times(2);
    let attempts = traffic::dial(bed, from, dial).map_err(|error| format!("{error:#}"))?;
    let text = traffic::summary(&attempts);
    if attempts.iter().any(|attempt| matches!(attempt.answer, Answer::Reply(_))) {
        Err(text)
    } else {
        Ok(text)
    }
}

/// Another VLAN with the same range: its pods reach one another, and nobody of the first VLAN.
fn other_vlan(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    for six in [false, true] {
        let (first, second) = (address(red, "v1", six)?, address(red, "v2", six)?);
        let verdict = reaches(bed, &place("v1")?, Dial::tcp(second, NAMED), &format!("v2 {first}"));
        checks.check(format!("on the other VLAN {second} is reached across nodes"), verdict);
        let own: IpAddr = OUTSIDE[usize::from(six)].parse()?;
        for (from, to, port) in [
            ("v1", own, SERVED),
            ("v1", address(red, "d1", six)?, NAMED),
            ("d1", first, NAMED),
            ("d1", second, NAMED),
        ] {
            checks.check(
                format!("{from} does not reach {to} of the other VLAN"),
                silent(bed, &place(from)?, to, port),
            );
        }
        checks.check(
            format!("nor does the outside host reach {first}"),
            silent(bed, &Place::Host(HOST.into()), first, NAMED),
        );
    }
    Ok(())
}

/// A pod that takes another MAC address than its own is heard by nobody, and is heard again with its own.
fn spoofing(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, pod) = (red.bed, place("d3")?);
    let outside: IpAddr = OUTSIDE[0].parse()?;
    let mac =
        networks(red, "d3")?.remove(STORAGE).context("it is not on the network")?.mac_address.to_string();
    let set = |mac: &str| -> Result<()> {
        let mut ip = traffic::command(bed, &pod, "ip".as_ref())?;
        exec::output(ip.args(["link", "set", "net1", "address", mac])).map(drop)
    };
    set("0a:00:00:00:00:99")?;
    checks
        .check("a pod with another MAC address is not heard on the VLAN", silent(bed, &pod, outside, SERVED));
    set(&mac)?;
    let expect = format!("dc {}", address(red, "d3", false)?);
    checks.check("and is again with its own", reaches(bed, &pod, Dial::tcp(outside, SERVED), &expect));
    Ok(())
}

/// Agents that are replaced leave the administrator's mapping as it is; traffic goes on.
fn restart(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    let before = fabric::mappings(bed, "n1")?;
    for node in NODES {
        bed.host(node).kill("node-agent")?;
        bed.host(node).restart("node-agent")?;
    }
    let expect = format!("d3 {}", address(red, "d1", false)?);
    let verdict = reaches(bed, &place("d1")?, Dial::tcp(address(red, "d3", false)?, NAMED), &expect);
    checks.check("after a restart of both agents", verdict);
    red.apply(asking(RED, "after", Some("n1"), &json!([{"name": STORAGE, "interface": "net1"}])))?;
    checks.check("a new pod runs", running(red, "after"));
    let after = fabric::mappings(bed, "n1")?;
    let same = if before == after { Ok(after) } else { Err(format!("{before}; then {after}")) };
    checks.check("the mapping is as the administrator left it", same);
    red.delete(&["after"])
}

//! Pods with interfaces of ours and of another plugin: what they have, what is told of it, and what passes each.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::exec;
use testbed::traffic::Dial;

use super::scene::{HEAL, RED, STAYING, Scene, holds, place, same};

/// How long a controller may take to take a network-status for its own, if it did.
const OVERWRITTEN: Duration = Duration::from_secs(3);

pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (red, bed) = (&scene.red, scene.bed());
    for (name, node) in STAYING {
        checks.check(format!("{name}: each interface and its status"), holds(|| told(scene, name, node)));
    }
    traffic(scene, checks)?;

    let asked = json!([
        {"name": "far", "interface": "net9", "ips": ["172.16.31.77"], "mac": "0a:00:00:00:00:77", "default-route": ["172.16.31.1"]},
        {"name": "own", "namespace": RED},
    ]);
    red.apply(scene.naming("asks", "n2", &asked.to_string())?)?;
    checks.check("a pod with address, MAC address, name and default route of its own", scene.runs(&["asks"]));
    checks.check(
        "it has what it asked for, and one default route",
        holds(|| {
            let inside = scene.inside("asks", "n2")?;
            same(&inside.defaults(), &vec!["172.16.31.1 net9".to_owned()])?;
            let interfaces = inside.interfaces();
            same(&interfaces.get("net9"), &Some(&vec!["172.16.31.77".to_owned()]))?;
            ensure!(interfaces.contains_key("net2"), "the second of the list is net2: {interfaces:?}");
            let status = scene.status("asks")?;
            let mac = status.iter().find(|one| one.interface == "net9").map(|one| one.mac.as_str());
            same(&mac, &Some("0a:00:00:00:00:77"))
        }),
    );
    red.delete(&["asks"])?;

    let status = scene.status("m1")?;
    bed.host("central").kill("controller")?;
    bed.host("central").restart("controller")?;
    thread::sleep(OVERWRITTEN);
    bed.verified()?;
    checks.check(
        "a controller that starts anew leaves what Multus has told",
        holds(|| same(&scene.status("m1")?, &status)),
    );
    Ok(())
}

/// The interfaces that are in the pod are those of its status, with these addresses.
fn told(scene: &Scene<'_>, name: &str, node: &str) -> Result<()> {
    let status = scene.status(name)?;
    let names: Vec<_> =
        status.iter().map(|one| (one.name.as_str(), one.interface.as_str(), one.default)).collect();
    let expected = [
        (scene.default_network(), "eth0", true),
        ("red/own", "net1", false),
        ("red/bridge", "net2", false),
        ("red/far", "data0", false),
    ];
    ensure!(names == expected, "{names:?}");
    let inside = scene.inside(name, node)?;
    let told = status.iter().map(|one| {
        let ips = one.ips.iter().filter(|ip| ip.is_ipv4()).map(IpAddr::to_string);
        (one.interface.clone(), ips.collect::<Vec<_>>())
    });
    same(&inside.interfaces(), &told.collect())?;
    let defaults = inside.defaults();
    ensure!(defaults.len() == 1 && defaults[0].ends_with(" eth0"), "default routes {defaults:?}");
    let (mut plugged, mut ours) =
        (scene.plugged(name)?, vec![format!("red.own_red_{name}"), format!("red.far_red_{name}")]);
    ours.extend(scene.is_default().then(|| format!("red_{name}")));
    plugged.sort();
    ours.sort();
    same(&plugged, &ours)
}

/// From one pod to the other by each network, but the bridges, which are apart.
fn traffic(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let bed = scene.bed();
    for network in ["red/own", "red/far", scene.default_network()] {
        let server = scene.address("m2", network)?;
        reaches(scene, checks, ("m1", "n1"), (&format!("m2 by {network}"), server), Some(network))?;
    }
    scene.red.apply(scene.naming("near", "n1", "bridge")?)?;
    checks.check("a pod with an interface of the other plugin alone", scene.runs(&["near"]));
    let server = scene.address("near", "red/bridge")?;
    reaches(scene, checks, ("m1", "n1"), ("near by red/bridge", server), Some("red/bridge"))?;
    scene.red.delete(&["near"])?;
    bed.verified().map(drop)
}

fn reaches(
    scene: &Scene<'_>,
    checks: &mut Checks,
    (client, node): (&str, &str),
    (what, server): (&str, Ipv4Addr),
    network: Option<&str>,
) -> Result<()> {
    let bed = scene.bed();
    let from = scene.address(client, network.unwrap_or_else(|| scene.default_network()))?;
    let name = what.split(' ').next().unwrap_or_default();
    let expect = Expect::only(&format!("{name} {from}"));
    let dial = Dial::tcp(server, 8080).to_pod(bed).times(3);
    let (_, verdict) = expect::settle(bed, &place(client, node), dial, &expect, HEAL);
    checks.check(format!("{client} reaches {what}"), verdict);
    Ok(())
}

/// What is there of the role, and not.
pub(super) fn role(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let bed = scene.bed();
    let default = scene.is_default();
    let annotation = scene.red.field("pod/m1", r".metadata.annotations.k8s\.ovn\.org/pod-networks")?;
    let entries: Value = serde_json::from_str(&annotation).context("pod-networks")?;
    let keys: Vec<&String> = entries.as_object().context("an object")?.keys().collect();
    let expected: &[&str] =
        if default { &["default", "red/far", "red/own"] } else { &["red/far", "red/own"] };
    checks.check(
        "the annotation has the networks of Slipstream alone",
        holds(|| {
            ensure!(keys == expected, "{keys:?}");
            Ok(())
        }),
    );
    for node in bed.config().node_names() {
        let conf = bed.host(&node).path("/etc/cni/net.d/10-slipstream.conf")?.exists();
        checks.note(format!("{node}: our configuration is there in the one role alone"), conf == default);
        let routes =
            exec::output(bed.host(&node).network_command("ip")?.args(["route", "show", "10.96.0.0/16"]))?;
        checks.note(format!("{node}: so is the route to services"), routes.trim().is_empty() != default);
        let condition =
            bed.node_condition(&node, "slipstream.dev/CNIConfigurationInUse")?.context("no condition")?;
        let reason = if default { "UsedByMultus" } else { "CalledByMultus" };
        checks.check(
            format!("{node}: the condition tells of Multus"),
            holds(|| {
                same(&(condition.status.as_str(), condition.reason.as_deref()), &("True", Some(reason)))
            }),
        );
    }
    let balancers = bed.nbctl(&["--bare", "--columns=name", "list", "Load_Balancer"])?;
    checks.note("services are served in the one role alone", balancers.trim().is_empty() != default);
    if default { with_the_first(scene, checks) } else { refused(scene, checks) }
}

/// An interface that no definition names comes with the first one.
fn with_the_first(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let mut pod = scene.naming("both", "n1", "own")?;
    pod["metadata"]["annotations"]["ovnNetwork"] =
        json!([{"name": "far", "interface": "net5"}]).to_string().into();
    scene.red.apply(pod)?;
    checks.check("a pod that asks by both annotations runs", scene.runs(&["both"]));
    checks.check(
        "with both interfaces",
        holds(|| {
            let interfaces = scene.inside("both", "n1")?.interfaces();
            same(
                &interfaces.into_keys().collect::<Vec<_>>(),
                &["eth0", "net1", "net5"].map(str::to_owned).to_vec(),
            )
        }),
    );
    scene.red.delete(&["both"])
}

/// What comes with the first interface alone is refused where another plugin makes it.
fn refused(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    for (name, key, value) in [
        ("by-name", "ovnNetwork", json!([{"name": "own", "interface": "net1"}])),
        ("by-address", "ovn", json!({"ip_address": "10.244.0.77/24"})),
    ] {
        let mut pod = scene.naming(name, "n1", "")?;
        pod["metadata"]["annotations"][key] = value.to_string().into();
        scene.red.apply(pod)?;
        let text = format!("annotation {key}: another plugin has the cluster's network");
        checks.check(
            format!("annotation {key} is refused, told as an Event"),
            scene.event(name, "NetworkAnnotationUnusable", &text),
        );
        scene.red.delete(&[name])?;
    }
    Ok(())
}

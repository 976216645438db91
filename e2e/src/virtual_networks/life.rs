//! Trials of suite `virtual_networks`: networks and pods that come and go.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::exec;
use testbed::traffic::Dial;

use super::scene::{HEAL, RED, Scene, asking, network, networks};
use crate::objects::Objects;

/// A pod that asks for a network that is not there waits, and an event says why; it runs when the network is made.
pub(super) fn waiting(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    red.apply(asking(RED, "early", Some("n1"), &json!([{"name": "later", "interface": "net1"}])))?;
    checks.check("a network that is not there: told as an Event", event(red, "early", "later"));
    let phase = red.field("pod/early", ".status.phase")?;
    let waits = if phase == "Running" { Err(phase) } else { Ok(phase) };
    checks.check("meanwhile the pod waits", waits);
    red.apply(network(RED, "later", "Isolated", 60))?;
    checks.check("it runs when the network is made", running(red, "early"));
    let twice = json!([{"name": "own", "interface": "net1"}, {"name": "routed", "interface": "net1"}]);
    red.apply(asking(RED, "twice", Some("n1"), &twice))?;
    checks.check("two interfaces of one name: told as an Event", event(red, "twice", "net1"));
    let taken = scene.pod("r1")?.address("own", false)?.to_string();
    let static_one = json!([{"name": "own", "interface": "net1", "ip_address": taken}]);
    red.apply(asking(RED, "thief", Some("n2"), &static_one))?;
    checks.check("the address of another pod: told as an Event", event(red, "thief", &taken));
    checks.check("also on the pod that has it", event(red, "r1", "pod red/thief asks for its address"));
    red.delete(&["early", "twice", "thief"])?;
    red.bed.kubectl(&["delete", "virtualnetwork", "-n", RED, "later", "--timeout=30s"])?;
    Ok(())
}

/// A pod with ten interfaces: it runs and answers, and nothing of it is left.
pub(super) fn ten_interfaces(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    // Nodes clean up after pods that are gone from the API.
    let before = red.quiet()?;
    let asked: Vec<_> =
        (0..10).map(|number| json!({"name": "own", "interface": format!("net{number}")})).collect();
    red.apply(asking(RED, "many", Some("n2"), &json!(asked)))?;
    checks.check("a pod with ten interfaces runs", running(red, "many"));
    let all = networks(red, "many")?;
    let ten = if all.len() == 10 { Ok(String::new()) } else { Err(format!("{all:?}")) };
    checks.check("each has addresses", ten);
    let client = scene.pod("r1")?;
    // Linux answers by the first of several interfaces on one network, so only that one's address is one to ask.
    if let Some(address) = all.get("own").and_then(|network| network.ip_addresses.first()) {
        let expect = Expect::only(&format!("many {}", client.address("own", false)?));
        let dial = Dial::tcp(address.addr(), 8080).times(2);
        let (_, verdict) = expect::settle(red.bed, &client.place, dial, &expect, HEAL);
        checks.check(format!("by the first of them, {}, the pod answers", address.addr()), verdict);
    }
    red.delete(&["many"])?;
    let same = eventually(|| before.equals(&red.snapshot()?).map(|()| String::new()));
    checks.check("nothing of it is left", same);
    Ok(())
}

/// Agents that are replaced know all interfaces: traffic goes on, and pods can be deleted and made.
pub(super) fn restart(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let bed = scene.bed();
    for node in ["n1", "n2"] {
        bed.host(node).kill("node-agent")?;
        bed.host(node).restart("node-agent")?;
    }
    let (client, server) = (scene.pod("r1")?, scene.pod("r3")?);
    for network in ["own", "routed", "out"] {
        let expect = Expect::only(&format!("r3 {}", client.address(network, false)?));
        let dial = Dial::tcp(server.address(network, false)?, 8080).times(3);
        let (_, verdict) = expect::settle(bed, &client.place, dial, &expect, HEAL);
        checks.check(format!("after a restart of both agents: network {network}"), verdict);
    }
    let asked = json!([{"name": "own", "interface": "net1"}]);
    scene.red.apply(asking(RED, "after", Some("n1"), &asked))?;
    checks.check("a new pod runs", running(&scene.red, "after"));
    scene.red.delete(&["after"])
}

/// A network that pods use stays until they are gone, and takes its switch with it.
pub(super) fn deleted(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, green) = (scene.bed(), &scene.green);
    let switches = || -> Result<String> {
        bed.nbctl(&["--bare", "--columns=name", "find", "Logical_Switch", "name=green.own"])
    };
    ensure!(switches()?.contains("green.own"), "there is no switch green.own");
    bed.kubectl(&["delete", "virtualnetwork", "-n", green.namespace, "own", "--wait=false"])?;
    checks.check(
        "a network in use that is deleted says so",
        eventually(|| {
            let path = r#".status.conditions[?(@.type=="InUse")].status"#;
            let said = green.field("virtualnetwork/own", path)?;
            ensure!(said == "True", "InUse is {said:?}");
            Ok(said)
        }),
    );
    let (client, server) = (scene.pod("g1")?, scene.pod("g2")?);
    let expect = Expect::only(&format!("g2 {}", client.address("own", false)?));
    let dial = Dial::tcp(server.address("own", false)?, 8080).times(2);
    let (_, verdict) = expect::settle(bed, &client.place, dial, &expect, HEAL);
    checks.check("its pods go on", verdict);
    green.delete(&["g1", "g2"])?;
    checks.check(
        "it goes with its last pod, and its switch too",
        eventually(|| {
            let left = bed.kubectl(&["get", "virtualnetworks", "-n", green.namespace, "-o", "name"])?;
            ensure!(left.trim().is_empty(), "left: {left}");
            let switches = switches()?;
            ensure!(switches.trim().is_empty(), "left: {switches}");
            Ok(String::new())
        }),
    );
    Ok(())
}

pub(super) fn running(tenant: &Objects<'_>, pod: &str) -> Result<String, String> {
    let ready = tenant.bed.pods_ready(tenant.namespace, Some(&[pod]), exec::patient(HEAL));
    ready.map(|()| String::new()).map_err(|error| format!("{error:#}"))
}

/// An event about a pod whose message has this text.
pub(super) fn event(tenant: &Objects<'_>, pod: &str, text: &str) -> Result<String, String> {
    eventually(|| {
        let said = tenant.bed.events(Some(tenant.namespace), pod)?;
        let lines = said.iter().map(|(reason, message)| format!("{reason}: {message}"));
        let found = lines.into_iter().find(|line| line.contains("Network") && line.contains(text));
        found.with_context(|| format!("events: {said:?}"))
    })
}

/// Tries until it holds, or the time is over.
pub(super) fn eventually(mut what: impl FnMut() -> Result<String>) -> Result<String, String> {
    let end = std::time::Instant::now() + exec::patient(HEAL);
    loop {
        match what() {
            Ok(text) => return Ok(text),
            Err(error) if std::time::Instant::now() > end => return Err(format!("{error:#}")),
            Err(_) => thread::sleep(Duration::from_millis(200)),
        }
    }
}

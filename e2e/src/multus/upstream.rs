//! Multus' own end-to-end cases (the scripts `test-…` of its sources), as far as they need no registry: with an image that is there in place of
//! theirs, and otherwise the same objects and expectations.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::Checks;
use testbed::exec;

use super::scene::{RED, Scene, definition, eventually, holds, ours, same};

/// Where the nodes' second interface is a device of its own in that project's clusters.
const MASTER: &str = "eth1";

pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    for node in scene.bed().config().node_names() {
        let host = scene.bed().host(&node);
        let mut add = host.command("ip")?;
        exec::output(add.args(["link", "add", MASTER, "type", "veth", "peer", "name", "eth1-far"]))?;
        for end in [MASTER, "eth1-far"] {
            exec::output(host.command("ip")?.args(["link", "set", end, "up"]))?;
        }
    }
    simple_pod(scene, checks)?;
    simple_macvlan(scene, checks)?;
    default_route(scene, checks)?;
    static_pod(scene, checks)?;
    Ok(())
}

fn simple_pod(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let mut pod = scene.naming("simple", "n1", "")?;
    pod["metadata"]["annotations"] = json!({});
    scene.red.apply(pod)?;
    checks.check("test-simple-pod: a pod without networks runs", scene.runs(&["simple"]));
    scene.red.delete(&["simple"])
}

fn macvlan(chained: bool) -> Value {
    let mut plugins = vec![json!({
        "type": "macvlan", "capabilities": {"ips": true}, "master": MASTER, "mode": "bridge", "ipam": {"type": "static"},
    })];
    plugins.extend(chained.then(|| json!({"type": "tuning"})));
    json!({"cniVersion": "1.0.0", "plugins": plugins})
}

fn simple_macvlan(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    scene.red.apply(definition("macvlan1-config", &macvlan(true)))?;
    let pods = [("macvlan1", "n1", "10.1.1.11"), ("macvlan2", "n2", "10.1.1.12")];
    for (name, node, ip) in pods {
        let asked = json!([{"name": "macvlan1-config", "ips": [format!("{ip}/24")]}]);
        scene.red.apply(scene.naming(name, node, &asked.to_string())?)?;
    }
    checks.check("test-simple-macvlan1: the pods run", scene.runs(&["macvlan1", "macvlan2"]));
    for (name, node, ip) in pods {
        checks.check(
            format!("{name} has {ip} on net1"),
            holds(|| same(&scene.inside(name, node)?.interfaces().get("net1"), &Some(&vec![ip.to_owned()]))),
        );
    }
    scene.red.delete(&["macvlan1", "macvlan2"])
}

fn default_route(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    scene.red.apply(definition("default-route-config", &macvlan(false)))?;
    let first =
        json!([{"name": "default-route-config", "ips": ["10.1.1.21/24"], "default-route": ["10.1.1.254"]}]);
    let second = json!([{"name": "default-route-config", "ips": ["10.1.1.22/24"]}]);
    for (name, asked) in [("route1", &first), ("route2", &second)] {
        scene.red.apply(scene.naming(name, "n1", &asked.to_string())?)?;
    }
    checks.check("test-default-route1: the pods run", scene.runs(&["route1", "route2"]));
    let usual = if scene.is_default() { "10.244." } else { "10.245." };
    // That Multus 4.2.3 leaves the default route of the first interface in its place, its own case prints and takes for good.
    for (name, ip) in [("route1", "10.1.1.21"), ("route2", "10.1.1.22")] {
        checks.check(
            format!("{name} has {ip} on net1, and one default route"),
            holds(|| {
                let inside = scene.inside(name, "n1")?;
                same(&inside.interfaces().get("net1"), &Some(&vec![ip.to_owned()]))?;
                let defaults = inside.defaults();
                let by_first = |route: &String| route.starts_with(usual) && route.ends_with(" eth0");
                let good = |route: &String| by_first(route) || name == "route1";
                ensure!(defaults.len() == 1 && defaults.iter().all(good), "{defaults:?}");
                Ok(())
            }),
        );
    }
    scene.red.delete(&["route1", "route2"])
}

/// Beside their bridge also a network of ours: the mirror of a static pod has another UID than the runtime names.
fn static_pod(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, node) = (scene.bed(), "n2");
    let bridge = json!({
        "cniVersion": "0.3.1", "name": "testnet", "type": "bridge", "bridge": "testnet0",
        "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "dataDir": "/run/cni-ipam"},
    });
    scene.red.apply(definition("bridge-nad", &bridge))?;
    scene.red.apply(ours("static-own", Some("own")))?;
    let mirror = format!("static-web-{node}");
    let mut pod = scene.naming("static-web", node, "bridge-nad,static-own")?;
    pod["spec"].as_object_mut().context("a spec")?.remove("nodeName");
    let directory = bed.host(node).path("/etc/kubernetes")?;
    let (new, file) = (directory.join("static-web.json"), directory.join("manifests/static-web.json"));
    fs::write(&new, pod.to_string())?;
    fs::rename(&new, &file)?;
    let there = eventually(|| scene.red.field(&format!("pod/{mirror}"), ".metadata.uid"));
    checks.check("test-static-pod: its mirror is in the API", there);
    checks.check("it runs", scene.runs(&[&mirror]));
    checks.check(
        "it has the bridge and our network",
        holds(|| {
            let interfaces: Vec<String> = scene.inside(&mirror, node)?.interfaces().into_keys().collect();
            ensure!(interfaces == ["eth0", "net1", "net2"], "{interfaces:?}");
            Ok(())
        }),
    );
    fs::remove_file(&file)?;
    checks.check(
        "it goes with its file, and nothing of it is plugged in",
        eventually(|| {
            let left =
                bed.kubectl(&["get", "pod", "-n", RED, "--ignore-not-found", "-o", "name", &mirror])?;
            let plugged = scene.plugged(&mirror)?;
            ensure!(left.trim().is_empty() && plugged.is_empty(), "{left} {plugged:?}");
            Ok(String::new())
        }),
    );
    Ok(())
}

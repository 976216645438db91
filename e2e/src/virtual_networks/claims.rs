//! Addresses that outlive pods: a pod of a StatefulSet that is made again on another node, also after the controller was replaced
//! meanwhile, and a pod that names a claim of its user.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::annotation::PodNetwork;
use serde_json::{Value, json};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::exec;
use testbed::pod;
use testbed::traffic::{Dial, Place};

use super::definitions;
use super::life::{event, eventually, running};
use super::scene::{HEAL, RED, Scene, asking, network, networks};
use crate::objects::Objects;

const NETWORK: &str = "keep";
const SET: &str = "db";
const POD: &str = "db-0";
/// The claim that is made for it.
const CLAIM: &str = "db-0.net1";
/// The claim of a user, and the address that it asks for.
const OWN_CLAIM: &str = "vm.keep";
const WANTED: &str = "172.16.70.200";

/// All of it.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    let mut kept = network(RED, NETWORK, "Isolated", 70);
    kept["spec"]["ipam"] = json!({"lifecycle": "Persistent"});
    red.apply(kept)?;
    let template = json!({"metadata": {"labels": {"app": SET}}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": RED, "name": SET},
        "spec": {"replicas": 0, "serviceName": SET, "selector": {"matchLabels": {"app": SET}}, "template": template},
    });
    let made = red.bed.apply(&set.to_string())?;
    let set = made.first().and_then(|set| set.metadata.uid.clone()).context("the StatefulSet has no UID")?;
    let first = again(red, &set, "n1", checks)?;
    checks.check("it has a claim that belongs to the set", eventually(|| claimed(red, &first, &set)));
    red.apply(asking(RED, "other", Some("n1"), &json!([{"name": NETWORK, "interface": "net1"}])))?;
    checks.check("another pod of the network runs", running(red, "other"));
    red.delete(&[POD])?;
    let second = again(red, &set, "n2", checks)?;
    checks.check("made again on another node it has the same addresses", same(&first, &second));
    let other = networks(red, "other")?;
    let client = address(&other, NETWORK, false)?;
    let place = Place::Pod { node: "n1".into(), namespace: RED.into(), name: "other".into() };
    for six in [false, true] {
        let expect = Expect::only(&format!("{POD} {}", address(&other, NETWORK, six)?));
        let dial = Dial::tcp(
            second
                .ip_addresses
                .iter()
                .map(ipnet::IpNet::addr)
                .find(|ip| ip.is_ipv6() == six)
                .context("no address")?,
            8080,
        );
        let (_, verdict) = expect::settle(red.bed, &place, dial.times(3), &expect, HEAL);
        checks.check(format!("{client} reaches it there, IPv{}", if six { 6 } else { 4 }), verdict);
    }
    red.delete(&[POD])?;
    let central = red.bed.host("central");
    central.kill("controller")?;
    central.restart("controller")?;
    let wanted = first.ip_addresses.first().context("no address")?.addr().to_string();
    let thief = json!([{"name": NETWORK, "interface": "net1", "ip_address": wanted}]);
    red.apply(asking(RED, "thief", Some("n1"), &thief))?;
    checks.check("a new controller gives the address to no pod that asks for it", event(red, "thief", CLAIM));
    let third = again(red, &set, "n1", checks)?;
    checks.check("and to the pod of the set", same(&first, &third));
    red.delete(&[POD])?;
    red.bed.kubectl(&["delete", "ipamclaim", "-n", RED, CLAIM])?;
    checks.check("without the claim it is anybody's", running(red, "thief"));
    red.delete(&["thief", "other"])?;
    named(red, checks)?;
    red.bed.kubectl(&["delete", "statefulset", "-n", RED, SET])?;
    red.bed.kubectl(&["delete", "ipamclaim", "-n", RED, "--all"])?;
    red.bed.kubectl(&["delete", "virtualnetwork", "-n", RED, NETWORK, "--timeout=30s"]).map(drop)
}

/// The set's pod, made on a node; what it has on the network.
fn again(red: &Objects<'_>, set: &str, node: &str, checks: &mut Checks) -> Result<PodNetwork> {
    let mut pod = asking(RED, POD, Some(node), &json!([{"name": NETWORK, "interface": "net1"}]));
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "uid": set, "controller": true}]);
    red.apply(pod)?;
    checks.check(format!("a pod of a StatefulSet runs on {node}"), running(red, POD));
    networks(red, POD)?.remove(NETWORK).context("it is not on the network")
}

fn address(networks: &BTreeMap<String, PodNetwork>, network: &str, six: bool) -> Result<std::net::IpAddr> {
    let found = networks.get(network).with_context(|| format!("not on {network}"))?;
    let mut all = found.ip_addresses.iter().map(ipnet::IpNet::addr);
    all.find(|ip| ip.is_ipv6() == six).context("no address of that family")
}

fn same(first: &PodNetwork, second: &PodNetwork) -> Result<String, String> {
    let told = |one: &PodNetwork| format!("{:?}, {}", one.ip_addresses, one.mac_address);
    let is_same = first.ip_addresses == second.ip_addresses && first.mac_address == second.mac_address;
    if is_same { Ok(told(first)) } else { Err(format!("{}; then {}", told(first), told(second))) }
}

fn claim(red: &Objects<'_>, name: &str) -> Result<Value> {
    let text = red.bed.kubectl(&["get", "ipamclaim", "-n", RED, name, "-o", "json"])?;
    serde_json::from_str(&text).with_context(|| format!("claim {text}"))
}

fn claimed(red: &Objects<'_>, pod: &PodNetwork, set: &str) -> Result<String> {
    let claim = claim(red, CLAIM)?;
    let right = claim["status"] == json!({"ips": pod.ip_addresses, "ownerPod": POD})
        && claim["metadata"]["ownerReferences"][0]["uid"] == *set
        && claim["spec"] == json!({"network": format!("{RED}/{NETWORK}"), "interface": "net1"});
    ensure!(right, "{claim}");
    Ok(claim["status"]["ips"].to_string())
}

/// A claim of a user, which a pod names where it names a definition.
fn named(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    definitions::install_kind(red)?;
    let config = json!({"cniVersion": "1.0.0", "type": "slipstream-cni", "network": NETWORK});
    exec::retry(HEAL, "the kind is served", || red.apply(definitions::definition("kept", &config)))?;
    exec::retry(definitions::LOOKED, "the controller knows the kind", || waits(red))?;
    checks.check("a pod that names a claim which is not there waits", event(red, "vm1", OWN_CLAIM));
    red.apply(json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": {"namespace": RED, "name": OWN_CLAIM},
        "spec": {"network": NETWORK, "interface": "net1", "ipRequests": [format!("{WANTED}/24")]},
    }))?;
    checks.check("and runs when the claim is made", running(red, "vm1"));
    let first = networks(red, "vm1")?.remove(NETWORK).context("it is not on the network")?;
    let has = first.ip_addresses.iter().any(|net| net.addr().to_string() == WANTED);
    let text = format!("{:?}", first.ip_addresses);
    checks.check("with the address that the claim asks for", if has { Ok(text) } else { Err(text) });
    red.apply(naming("vm2"))?;
    checks.check("a second pod waits for the first one's end", event(red, "vm2", "is in use by"));
    red.delete(&["vm1"])?;
    checks.check("and runs then", running(red, "vm2"));
    let second = networks(red, "vm2")?.remove(NETWORK).context("it is not on the network")?;
    checks.check("with the same addresses", same(&first, &second));
    checks.check(
        "the claim names the pod",
        eventually(|| {
            let claim = claim(red, OWN_CLAIM)?;
            ensure!(claim["status"] == json!({"ips": first.ip_addresses, "ownerPod": "vm2"}), "{claim}");
            Ok(String::new())
        }),
    );
    red.delete(&["vm2"])
}

fn naming(name: &str) -> Value {
    let mut pod = pod::manifest(RED, name, Some("n2"));
    let networks = json!([{"name": "kept", "interface": "net1", "ipam-claim-reference": OWN_CLAIM}]);
    pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": networks.to_string()});
    pod
}

/// The pod that is made here waits once the controller watches the kind of definitions; before that it runs without the network.
fn waits(red: &Objects<'_>) -> Result<()> {
    red.apply(naming("vm1"))?;
    // It has its network within a second or not at all.
    thread::sleep(Duration::from_secs(2));
    if red.bed.running_pod(RED, "vm1").is_err() {
        return Ok(());
    }
    red.delete(&["vm1"])?;
    bail!("pod vm1 did not wait")
}

//! A pod that asks for its address on the cluster's network, as pods of one interface did before there were others.

use std::net::IpAddr;

use anyhow::{Context, Result};
use api::annotation::{NODE_SUBNETS, NodeSubnets, PodNetwork, PodNetworks};
use serde_json::{Value, json};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::pod;
use testbed::traffic::Dial;

use super::life::{event, running};
use super::scene::{HEAL, RED, Scene};
use crate::objects::Objects;

/// Which address of its node's range the pod asks for.
const WANTED: u32 = 200;
/// Not one that follows from an address.
const MAC: &str = "0a:00:00:00:00:15";

/// It gets address and MAC address, both families reach it across nodes, and another pod that asks for the same waits.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, red) = (scene.bed(), &scene.red);
    let path = format!(".metadata.annotations.{}", NODE_SUBNETS.replace('.', r"\."));
    let subnets = NodeSubnets::default_of(&bed.kubectl(&[
        "get",
        "node",
        "n1",
        "-o",
        &format!("jsonpath={{{path}}}"),
    ])?)?;
    let four = subnets.iter().find(|net| net.addr().is_ipv4()).context("n1 has no IPv4 range")?;
    let wanted = api::addr::nth(four, WANTED).context("the range is too small")?;
    let ask = json!({"ip_address": format!("{wanted}/{}", four.prefix_len()), "mac_address": MAC});
    red.apply(asking("fixed", &ask))?;
    checks.check(format!("a pod that asks for {wanted} runs"), running(red, "fixed"));
    let given = own(red, "fixed")?;
    let addresses: Vec<IpAddr> = given.ip_addresses.iter().map(ipnet::IpNet::addr).collect();
    let right = addresses.contains(&wanted) && given.mac_address.to_string() == MAC;
    let text = format!("{addresses:?}, {}", given.mac_address);
    checks.check("it has that address and MAC address", if right { Ok(text) } else { Err(text) });
    let client = scene.pod("r3")?;
    for (address, source) in addresses.iter().zip(own(red, "r3")?.ip_addresses) {
        let expect = Expect::only(&format!("fixed {}", source.addr()));
        let (_, verdict) =
            expect::settle(bed, &client.place, Dial::tcp(*address, 8080).times(3), &expect, HEAL);
        checks.check(format!("a pod of the other node reaches {address}"), verdict);
    }
    red.apply(asking("second", &json!({"ip_address": wanted.to_string()})))?;
    checks.check("another pod that asks for it: told as an Event", event(red, "second", &wanted.to_string()));
    red.delete(&["fixed"])?;
    checks.check("which runs when the address is free", running(red, "second"));
    red.delete(&["second"])
}

/// What a pod has on the cluster's network.
fn own(tenant: &Objects<'_>, pod: &str) -> Result<PodNetwork> {
    let value = tenant.field(&format!("pod/{pod}"), r".metadata.annotations.k8s\.ovn\.org/pod-networks")?;
    PodNetworks::default_of(&value).with_context(|| format!("pod {pod}"))
}

fn asking(name: &str, ask: &Value) -> Value {
    let mut pod = pod::manifest(RED, name, Some("n1"));
    pod["metadata"]["annotations"] = json!({"ovn": ask.to_string()});
    pod
}

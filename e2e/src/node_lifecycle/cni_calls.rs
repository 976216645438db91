//! An older container runtime: it speaks an older version of the CNI protocol.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::world::{NAMESPACE, World};
use testbed::exec::{self, Captured};
use testbed::nodes::cni::{BIN_DIR, CONF_DIR};

const NODE: &str = "n1";
const POD: &str = "by-hand";
const CONTAINER: &str = "1ife0123456789abcdef";

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    let host = world.bed.host(NODE);
    // So that only the test plugs the pod in.
    host.kill("kubelet")?;
    let outcome = by_hand(world);
    let forced = ["delete", "pod", "-n", NAMESPACE, POD, "--grace-period=0", "--force", "--ignore-not-found"];
    let deleted = world.bed.kubectl(&forced);
    host.restart("kubelet")?;
    let seen = outcome?;
    deleted?;
    let clear = world.nothing_left(&before)?;
    world.wait_node(NODE, "True")?;
    Ok(format!("{seen}; nothing left {clear} later"))
}

fn by_hand(world: &World<'_>) -> Result<String> {
    world.create(POD, NODE)?;
    world.eventually("the pod has addresses", || {
        let path = ".metadata.annotations.k8s\\.ovn\\.org/pod-networks";
        ensure!(!world.field(&format!("pod/{POD}"), path)?.is_empty(), "no annotation");
        Ok(())
    })?;
    let mut seen = Vec::new();
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        world.run(NODE, "ip", &["netns", "add", POD])?;
        let outcome = add_and_del(world, version);
        world.run(NODE, "ip", &["netns", "delete", POD])?;
        seen.push(outcome.with_context(|| format!("CNI {version}"))?);
    }
    Ok(seen.join(", "))
}

fn add_and_del(world: &World<'_>, version: &str) -> Result<String> {
    let added = call(world, "ADD", version)?;
    ensure!(added.status.success(), "ADD: {}", added.stdout);
    let result: Value = serde_json::from_str(&added.stdout).with_context(|| added.stdout.clone())?;
    ensure!(result["cniVersion"] == version, "the result has version {}", result["cniVersion"]);
    let ip = &result["ips"][0];
    // Results had the family of each address until 1.0.0.
    let family = if version == "1.0.0" { Value::Null } else { "4".into() };
    ensure!(ip["version"] == family, "the address is {ip}");
    let address = ip["address"].as_str().and_then(|a| a.split('/').next()).context("no address")?;
    let inside = world.run(NODE, "ip", &["-n", POD, "-4", "-o", "addr", "show", "dev", "eth0"])?;
    ensure!(inside.contains(&format!(" {address}/")), "{address} is not in {inside:?}");
    let deleted = call(world, "DEL", version)?;
    ensure!(deleted.status.success(), "DEL: {}", deleted.stdout);
    Ok(format!("CNI {version} gives {address}"))
}

fn call(world: &World<'_>, verb: &str, version: &str) -> Result<Captured> {
    let file = world.file(NODE, CONF_DIR)?.join("10-slipstream.conf");
    let mut conf: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    conf["cniVersion"] = version.into();
    let uid = world.field(&format!("pod/{POD}"), ".metadata.uid")?;
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={POD};K8S_POD_UID={uid}");
    let mut command = world.bed.host(NODE).command(format!("{BIN_DIR}/slipstream-cni"))?;
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", CONTAINER).env("CNI_ARGS", args);
    command.env("CNI_NETNS", format!("/run/netns/{POD}")).env("CNI_IFNAME", "eth0").env("CNI_PATH", BIN_DIR);
    exec::capture(&mut command, &conf.to_string())
}

//! Invalid CNI calls: no such namespace, unknown versions and commands.

use std::fs;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::world::{HEAL, NAMESPACE, World};
use crate::objects::has;
use testbed::exec;
use testbed::nodes::cni::{BIN_DIR, CONF_DIR};
use testbed::nodes::kubelet::MANUAL_LABEL;
use testbed::pod;

/// The node on which the calls are made.
pub(super) const NODE: &str = "n1";
/// The container that they are about.
const CONTAINER: &str = "hardship0123456789";
/// A namespace that is not there.
const NOWHERE: &str = "/run/netns/hardship-nowhere";

/// What the executable answered.
#[derive(Debug)]
pub(super) struct Answer {
    good: bool,
    text: String,
}

impl Answer {
    fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("no JSON: {:?}", self.text))
    }

    /// It failed with this code and with all of these words in the message.
    pub(super) fn failed(&self, code: u64, words: &[&str]) -> Result<String> {
        ensure!(!self.good, "it succeeded: {}", self.text);
        let error = self.json()?;
        ensure!(error["code"] == code, "the code is not {code}: {}", self.text);
        has(error["msg"].as_str().unwrap_or_default(), words)
    }

    /// It succeeded.
    pub(super) fn succeeded(&self) -> Result<String> {
        ensure!(self.good, "it failed: {}", self.text);
        Ok(String::new())
    }
}

/// The network's configuration on the node.
fn configuration(world: &World<'_>) -> Result<String> {
    let directory = world.bed.host(NODE).path(CONF_DIR)?;
    let files = fs::read_dir(&directory).with_context(|| directory.display().to_string())?.flatten();
    let file = files.map(|f| f.path()).find(|p| p.extension().is_some_and(|e| e == "conf"));
    Ok(fs::read_to_string(file.ok_or_else(|| anyhow!("no configuration in {}", directory.display()))?)?)
}

/// Calls the executable as a runtime does.
pub(super) fn call(world: &World<'_>, verb: &str, netns: &str, pod: &str, config: &str) -> Result<Answer> {
    let uid = world.field(&format!("pod/{pod}"), ".metadata.uid")?;
    let arguments =
        format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod};K8S_POD_UID={uid}");
    let mut command = world.bed.host(NODE).command("timeout")?;
    command.args(["60", &format!("{BIN_DIR}/slipstream-cni")]);
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", CONTAINER).env("CNI_NETNS", netns);
    command.env("CNI_IFNAME", "eth0").env("CNI_PATH", BIN_DIR).env("CNI_ARGS", arguments);
    let ended = exec::capture(&mut command, config)?;
    Ok(Answer { good: ended.status.success(), text: ended.stdout })
}

/// As [`call`], with the node's own configuration.
pub(super) fn call_as_configured(world: &World<'_>, verb: &str, netns: &str, pod: &str) -> Result<Answer> {
    call(world, verb, netns, pod, &configuration(world)?)
}

/// A pod that the kubelet leaves to us; returns when it has its addresses.
pub(super) fn manual_pod(world: &World<'_>, name: &str) -> Result<()> {
    let mut object = pod::manifest(NAMESPACE, name, Some(NODE));
    object["metadata"]["labels"][MANUAL_LABEL] = "true".into();
    world.apply(object.to_string())?;
    exec::retry(HEAL, "the pod has addresses", || {
        let value = world.annotation(&format!("pod/{name}"), "pod-networks")?;
        ensure!(!value.is_empty(), "it has no annotation");
        Ok(())
    })
}

/// Makes a network namespace on the node; returns its path.
pub(super) fn make_netns(world: &World<'_>, name: &str) -> Result<String> {
    exec::output(world.bed.host(NODE).command("ip")?.args(["netns", "add", name]))?;
    Ok(format!("/run/netns/{name}"))
}

pub(super) fn delete_netns(world: &World<'_>, name: &str) -> Result<()> {
    exec::output(world.bed.host(NODE).command("ip")?.args(["netns", "delete", name])).map(drop)
}

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    manual_pod(world, "called")?;
    let before = world.quiet()?;
    let good = configuration(world)?;
    let with_version = |version: &str| -> Result<String> {
        let mut config: Value = serde_json::from_str(&good)?;
        config["cniVersion"] = version.into();
        Ok(config.to_string())
    };
    world.check("ADD with a namespace that is not there: code 3, naming it", |world| {
        call(world, "ADD", NOWHERE, "called", &good)?.failed(3, &["CNI_NETNS", NOWHERE])
    });
    world.check("ADD with a file that is no namespace: code 4, naming it", |world| {
        call(world, "ADD", "/etc/hostname", "called", &good)?.failed(4, &["CNI_NETNS", "/etc/hostname"])
    });
    world.check("nothing is left of these", |world| {
        world.eventually(HEAL, || before.equals(&world.snapshot()?))
    });
    world.check("DEL of what never was succeeds", |world| {
        call(world, "DEL", NOWHERE, "called", &good)?.succeeded()
    });
    world.check("a version that is not known: code 1, naming it and the known ones", |world| {
        call(world, "ADD", NOWHERE, "called", &with_version("9.9.9")?)?.failed(1, &["9.9.9", "1.1.0"])
    });
    world.check("a configuration that is no JSON: code 6", |world| {
        call(world, "ADD", NOWHERE, "called", "{\"cniVersion\"")?.failed(6, &["network configuration"])
    });
    world.check("a configuration without a name: code 7, naming the field", |world| {
        call(world, "ADD", NOWHERE, "called", r#"{"cniVersion":"1.1.0","type":"slipstream-cni"}"#)?
            .failed(7, &["`name`"])
    });
    world.check("a command that is not known: code 4, naming it", |world| {
        call(world, "FROB", NOWHERE, "called", &good)?.failed(4, &["CNI_COMMAND", "FROB"])
    });
    world.check("VERSION lists the known ones", |world| {
        let answer = call(world, "VERSION", NOWHERE, "called", &good)?;
        answer.succeeded()?;
        let listed = &answer.json()?["supportedVersions"];
        let known = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        ensure!(*listed == serde_json::json!(known), "it lists {listed}");
        Ok(known.join(" "))
    });
    world.delete(&["called"])
}

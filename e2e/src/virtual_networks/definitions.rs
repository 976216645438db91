//! Pods that name NetworkAttachmentDefinitions, and the calls that Multus makes for them.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::network_attachment::NetworkStatus;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::exec;
use testbed::nodes::cni::BIN_DIR;
use testbed::nodes::record::{self, PodRecord};
use testbed::pod;
use testbed::traffic::{Dial, Place};

use super::life::{event, eventually, running};
use super::scene::{HEAL, RED, Scene};
use crate::objects::Objects;

/// The kind as Multus installs it, without what its documentation says.
const KIND: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition, shortNames: [net-attach-def]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec: {type: object, properties: {config: {type: string}}}
";
const NODE: &str = "n1";
/// How long the controller may take to see that the API server knows another kind: its pauses grow to half a minute, and some more.
pub(super) const LOOKED: Duration = Duration::from_secs(90);

pub(super) fn definition(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": RED, "name": name}, "spec": {"config": config.to_string()},
    })
}

fn naming(name: &str, node: &str, networks: &str) -> Value {
    let mut pod = pod::manifest(RED, name, Some(node));
    pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": networks});
    pod
}

fn status(red: &Objects<'_>, name: &str) -> Result<Vec<NetworkStatus>> {
    let pod: Pod = red.bed.read(RED, name)?;
    let annotations = pod.metadata.annotations.unwrap_or_default();
    let text = annotations.get("k8s.v1.cni.cncf.io/network-status").context("there is no status")?;
    serde_json::from_str(text).with_context(|| format!("status {text}"))
}

/// Definitions of ours and of another plugin, by both forms of the annotation, before and after the kind and the definition are there.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    red.apply(naming("before", NODE, "absent"))?;
    checks.check("where the kind is not installed, the annotation is nobody's", running(red, "before"));
    install_kind(red)?;
    exec::retry(HEAL, "the kind is served", || {
        red.apply(definition("macvlan", &json!({"cniVersion": "1.0.0", "type": "macvlan"})))
    })?;
    exec::retry(LOOKED, "the controller knows the kind", || knows_the_kind(red))?;
    checks.check(
        "a pod that names one that is not there waits, told as an Event",
        event(red, "d1", "red/own-again"),
    );
    red.apply(definition(
        "own-again",
        &json!({"cniVersion": "1.0.0", "type": "slipstream-cni", "network": "own"}),
    ))?;
    checks.check("it runs when the definition is made", running(red, "d1"));
    let json = json!([{"name": "own-again", "interface": "data0", "ips": ["172.16.30.77", "fd00:30::77"], "mac": "0a:00:00:00:00:77"}]);
    red.apply(naming("d2", "n2", &json.to_string()))?;
    checks.check("as JSON, with addresses, hardware address and name", running(red, "d2"));
    let (first, second) = (status(red, "d1")?, status(red, "d2")?);
    checks.check(
        "each says what it got",
        told(&first, "net2").and_then(|()| told(&second, "data0")).map(|()| String::new()),
    );
    let wanted = second.get(1).is_some_and(|one| {
        one.mac == "0a:00:00:00:00:77" && one.ips.iter().any(|ip| ip.to_string() == "172.16.30.77")
    });
    checks.check(
        "the second what it asked for",
        if wanted { Ok(String::new()) } else { Err(format!("{second:?}")) },
    );
    let place = Place::Pod { node: NODE.into(), namespace: RED.into(), name: "d1".into() };
    let client = first.get(1).and_then(|one| one.ips.iter().find(|ip| ip.is_ipv4())).context("no address")?;
    let dial = Dial::tcp(Ipv4Addr::new(172, 16, 30, 77), 8080).times(3);
    let (_, verdict) = expect::settle(red.bed, &place, dial, &Expect::only(&format!("d2 {client}")), HEAL);
    checks.check("they reach each other on the network", verdict);
    multus(red, &first, checks)?;
    let (_, verdict) = expect::settle(red.bed, &place, dial, &Expect::only(&format!("d2 {client}")), HEAL);
    checks.check("after these calls, too", verdict);
    red.delete(&["before", "d1", "d2"])
}

/// Makes the kind, if it is not there.
pub(super) fn install_kind(red: &Objects<'_>) -> Result<()> {
    red.apply(KIND)
}

/// The pod that is made here waits once the controller watches the kind; before that it runs without the network.
fn knows_the_kind(red: &Objects<'_>) -> Result<()> {
    red.apply(naming("d1", NODE, "macvlan,own-again"))?;
    // It has its network within a second or not at all.
    thread::sleep(Duration::from_secs(2));
    if red.bed.running_pod(RED, "d1").is_err() {
        return Ok(());
    }
    red.delete(&["d1"])?;
    bail!("pod d1 did not wait")
}

fn told(status: &[NetworkStatus], interface: &str) -> Result<(), String> {
    let names: Vec<_> = status.iter().map(|one| (one.name.as_str(), one.interface.as_str())).collect();
    let expected = [("slipstream", "eth0"), ("red/own-again", interface)];
    if names == expected { Ok(()) } else { Err(format!("{names:?}")) }
}

/// Calls as those of Multus for the second network, after those of the runtime for the first.
fn multus(red: &Objects<'_>, status: &[NetworkStatus], checks: &mut Checks) -> Result<()> {
    let find = ["--bare", "--columns=external_ids", "find", "Interface", "external_ids:iface-id=red_d1"];
    let ids = red.bed.vsctl(NODE, &find)?;
    let container =
        ids.split_whitespace().find_map(|word| word.strip_prefix("sandbox=")).context("no sandbox")?;
    let uid = red.field("pod/d1", ".metadata.uid")?;
    let records = red.bed.host(NODE).path(record::DIRECTORY)?;
    let netns = PodRecord::find(&records, RED, "d1")?.netns.context("no namespace")?;
    let call = |verb: &str, ifname: &str| -> Result<(bool, Value)> {
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={RED};K8S_POD_NAME=d1;K8S_POD_UID={uid}");
        let mut command = red.bed.host(NODE).command("timeout")?;
        command.args(["60", &format!("{BIN_DIR}/slipstream-cni")]);
        command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", container).env("CNI_NETNS", &netns);
        command.env("CNI_IFNAME", ifname).env("CNI_PATH", BIN_DIR).env("CNI_ARGS", arguments);
        let config =
            json!({"cniVersion": "1.0.0", "name": "own-again", "type": "slipstream-cni", "network": "own"});
        let ended = exec::capture(&mut command, &config.to_string())?;
        Ok((ended.status.success(), serde_json::from_str(&ended.stdout).unwrap_or_default()))
    };
    let (good, result) = call("ADD", "net2")?;
    let same = || -> Result<String> {
        ensure!(good, "{result}");
        let own = status.iter().find(|one| one.interface == "net2").context("no net2")?;
        ensure!(
            result["interfaces"][1]["name"] == "net2" && result["interfaces"][1]["mac"] == own.mac.as_str(),
            "{result}"
        );
        let ips = result["ips"].as_array().context("no ips")?;
        ensure!(ips.len() == own.ips.len(), "{result}");
        Ok(String::new())
    };
    checks.check("ADD for net2 says what there is", same().map_err(|error| format!("{error:#}")));
    let (good, result) = call("ADD", "net9")?;
    let refused = !good && result["msg"].as_str().is_some_and(|said| said.contains("it has net2"));
    checks.check(
        "ADD for an interface that there is not is refused",
        if refused { Ok(String::new()) } else { Err(result.to_string()) },
    );
    let (good, result) = call("DEL", "net2")?;
    checks.check("DEL for net2", if good { Ok(String::new()) } else { Err(result.to_string()) });
    let ports = || {
        let of = format!("external_ids:sandbox={container}");
        red.bed.vsctl(NODE, &["--bare", "--columns=external_ids", "find", "Interface", &of])
    };
    checks.check(
        "removes that interface alone",
        eventually(|| {
            let ports = ports()?;
            ensure!(ports.contains("pod-if-name=eth0") && !ports.contains("pod-if-name=net2"), "{ports}");
            Ok(String::new())
        }),
    );
    let (good, result) = call("ADD", "net2")?;
    let there = good && ports()?.contains("pod-if-name=net2");
    checks.check("and ADD makes it again", if there { Ok(String::new()) } else { Err(result.to_string()) });
    Ok(())
}

//! Policies of virtual networks: who reaches a pod on the network that a policy is about, and that nothing else changes; a flow that a
//! policy ends.

use std::process::{Child, Stdio};
use std::time::Duration;
use std::{net::IpAddr, thread};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::demo::echoes;
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::exec;
use testbed::traffic::Dial;

use super::life::eventually;
use super::scene::{HEAL, RED, Scene};

/// The kind as its project installs it, without what its documentation says.
pub(super) const KIND: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: multi-networkpolicies.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: multi-networkpolicies, singular: multi-networkpolicy, kind: MultiNetworkPolicy, shortNames: [multi-policy]}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";
const NAME: &str = "only";
/// Where pods answer with their names.
const NAMED: u16 = 8080;
/// The controller looks for a kind that it does not know from time to time, at most this long apart.
pub(super) const LOOKED: Duration = Duration::from_secs(90);
/// How long a client asks, and from when on the policy holds it back.
const ASKED: Duration = Duration::from_secs(6);
const HELD: Duration = Duration::from_secs(2);

/// A policy about r3 on network `own`.
fn policy(ingress: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
        "metadata": {"namespace": RED, "name": NAME, "annotations": {"k8s.v1.cni.cncf.io/policy-for": "own"}},
        "spec": {"podSelector": {"matchLabels": {"app": "r3"}}, "policyTypes": ["Ingress"], "ingress": ingress},
    })
}

fn from_pod(name: &str) -> Value {
    json!([{"from": [{"podSelector": {"matchLabels": {"app": name}}}]}])
}

/// All of it.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    red.apply(KIND)?;
    exec::retry(HEAL, "the kind is served", || red.apply(policy(&from_pod("r1"))))?;
    for six in [false, true] {
        let held = reaches(scene, "r2", "own", six, false, LOOKED)?;
        checks.check(told("a pod that no rule names does not reach the pod on the network", six), held);
        checks.check(told("one that a rule names does", six), reaches(scene, "r1", "own", six, true, HEAL)?);
        for network in ["routed", "out"] {
            let open = reaches(scene, "r2", network, six, true, HEAL)?;
            checks.check(told(&format!("network {network} is as before"), six), open);
        }
        checks.check(told("so is what the pod itself asks", six), asks(scene, "r3", "r2", six)?);
        checks.check(told("so is another network with the same range", six), other_tenant(scene, six)?);
    }
    let address: IpAddr = red.field("pod/r3", ".status.podIP")?.parse()?;
    let client = scene.pod("r2")?;
    let expect = Expect::only(&format!("r3 {}", red.field("pod/r2", ".status.podIP")?));
    let (_, verdict) =
        expect::settle(red.bed, &client.place, Dial::tcp(address, NAMED).times(3), &expect, HEAL);
    checks.check("the cluster's network is as before", verdict);
    red.bed.kubectl(&["label", "pod", "-n", RED, "r2", "--overwrite", "app=r1"])?;
    checks.check("a label lets it through", reaches(scene, "r2", "own", false, true, HEAL)?);
    red.bed.kubectl(&["label", "pod", "-n", RED, "r2", "--overwrite", "app=r2"])?;
    checks.check("and without it is held again", reaches(scene, "r2", "own", false, false, HEAL)?);
    let port = json!([{"ports": [{"protocol": "TCP", "port": NAMED}]}]);
    red.apply(policy(&port))?;
    checks.check("a rule with a port lets all pods to it", reaches(scene, "r2", "own", false, true, HEAL)?);
    for udp in [false, true] {
        red.apply(policy(&json!([{}])))?;
        checks.check(told("all may ask", false), reaches(scene, "r1", "own", false, true, HEAL)?);
        checks.check(
            format!("a flow of {} ends when its rule goes", if udp { "UDP" } else { "TCP" }),
            ended(scene, udp).map_err(|error| format!("{error:#}")),
        );
    }
    let mut wrong = policy(&from_pod("r1"));
    wrong["metadata"]["name"] = json!("nameless");
    wrong["metadata"]["annotations"] = json!({});
    red.apply(wrong)?;
    let said = eventually(|| {
        let said = red.bed.events(Some(RED), "nameless")?;
        let found = said.iter().find(|(_, message)| message.contains("policy-for is missing"));
        found.map(|(reason, _)| reason.clone()).with_context(|| format!("events: {said:?}"))
    });
    checks.check("a policy that names no network: told as an Event", said);
    red.bed.kubectl(&["delete", "multi-networkpolicies", "-n", RED, "--all"])?;
    checks.check("without policies all is open", reaches(scene, "r2", "own", false, true, HEAL)?);
    let left = eventually(|| {
        let groups = red.bed.nbctl(&["--bare", "--columns=external_ids", "find", "Port_Group"])?;
        let sets = red.bed.nbctl(&["--bare", "--columns=external_ids", "find", "Address_Set"])?;
        ensure!(!groups.contains("Multi") && !sets.contains("Multi"), "left: {groups} {sets}");
        Ok(String::new())
    });
    checks.check("and no row of them is left", left);
    Ok(())
}

fn told(what: &str, six: bool) -> String {
    format!("{what}, IPv{}", if six { 6 } else { 4 })
}

/// Whether a pod reaches r3 on a network, or does not.
fn reaches(
    scene: &Scene<'_>,
    from: &str,
    network: &str,
    six: bool,
    open: bool,
    limit: Duration,
) -> Result<Result<String, String>> {
    let (client, server) = (scene.pod(from)?, scene.pod("r3")?);
    let dial = Dial::tcp(server.address(network, six)?, NAMED).within(Duration::from_millis(800));
    let expect = match open {
        true => Expect::only(&format!("r3 {}", client.address(network, six)?)),
        false => Expect::Dropped,
    };
    Ok(expect::settle(scene.bed(), &client.place, dial.times(2), &expect, limit).1)
}

/// The pod that the policy is about asks another one.
fn asks(scene: &Scene<'_>, from: &str, to: &str, six: bool) -> Result<Result<String, String>> {
    let (client, server) = (scene.pod(from)?, scene.pod(to)?);
    let expect = Expect::only(&format!("{to} {}", client.address("own", six)?));
    let dial = Dial::tcp(server.address("own", six)?, NAMED).times(2);
    Ok(expect::settle(scene.bed(), &client.place, dial, &expect, HEAL).1)
}

fn other_tenant(scene: &Scene<'_>, six: bool) -> Result<Result<String, String>> {
    let (client, server) = (scene.pod("g1")?, scene.pod("g2")?);
    let expect = Expect::only(&format!("g2 {}", client.address("own", six)?));
    let dial = Dial::tcp(server.address("own", six)?, NAMED).times(2);
    Ok(expect::settle(scene.bed(), &client.place, dial, &expect, HEAL).1)
}

/// A client that asks all the time gets no answer from when on only another pod may ask.
fn ended(scene: &Scene<'_>, udp: bool) -> Result<String> {
    let (client, server) = (scene.pod("r1")?, scene.pod("r3")?);
    let mut asking = echoes::client(scene.bed(), &client.place)?;
    asking.args(["--count", "100000000", "--seconds", &ASKED.as_secs().to_string(), "--size", "64"]);
    asking.args(udp.then_some("--udp"));
    asking.args([server.address("own", false)?.to_string(), echoes::PORT.to_string()]);
    let asking: Child = asking.stdout(Stdio::piped()).spawn().context("the client")?;
    thread::sleep(HELD);
    scene.red.apply(policy(&from_pod("r2")))?;
    let out = asking.wait_with_output().context("the client")?;
    let seen = echoes::round_trips(&String::from_utf8_lossy(&out.stdout))?;
    let silent = seen.total_ms.saturating_sub(seen.last_answer_ms);
    let text = format!("{} answers, the last {silent} ms before the end", seen.answers);
    ensure!(seen.answers > 1_000 && silent > u64::try_from(HELD.as_millis())?, "{text}");
    Ok(text)
}

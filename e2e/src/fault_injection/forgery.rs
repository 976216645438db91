//! Network annotations by clients that may not write them: the API server rejects them, by `deploy/admission.yaml`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::world::{HEAL, NAMESPACE, World};
use crate::objects::has;
use testbed::cluster::{Actor, admission};
use testbed::{exec, pod};

/// An account with the role `edit` in the namespace.
const TENANT: &str = "tenant";
const POD_KEY: &str = "k8s.ovn.org/pod-networks";
/// What a pod would like to have: an address of n1's range, with the hardware address that belongs to it.
const CHOSEN: &str = r#"{"default":{"ip_addresses":["10.244.0.6/29"],"mac_address":"0a:58:0a:f4:00:06","gateway_ips":["10.244.0.1"]}}"#;
/// How the API server begins.
const DENIED: &str = "denied request";

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    world.check("the API server finds nothing wrong with the policies' expressions", |world| {
        exec::retry(HEAL, "it looks at them", || {
            world.bed.api(async || admission::type_checked(&world.bed.client(None).await?).await)
        })
    });
    make_tenant(world)?;
    pods(world)?;
    nodes(world);
    agents(world);
    Ok(())
}

pub(super) fn tenant() -> Actor {
    Actor::account(NAMESPACE, TENANT)
}

/// The rules of `edit` are in two parts, which also exist where no controller aggregates them.
fn make_tenant(world: &World<'_>) -> Result<()> {
    let part = |part: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": part, "namespace": NAMESPACE},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": format!("system:aggregate-to-{part}"),
            },
            "subjects": [{"kind": "ServiceAccount", "name": TENANT, "namespace": NAMESPACE}],
        })
    };
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": TENANT, "namespace": NAMESPACE},
    });
    let items = [account, part("edit"), part("view")];
    world.apply(json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())
}

/// Runs kubectl as `actor`; the command must be rejected with these words.
fn refused(world: &World<'_>, actor: &Actor, args: &[&str], input: &str, words: &[&str]) -> Result<String> {
    let mut command = world.bed.kubectl_command()?;
    let outcome = exec::capture(command.args(actor.flags()).args(args), input)?;
    ensure!(!outcome.status.success(), "it is accepted: {}", outcome.stdout.trim());
    has(&outcome.stderr, &[&[DENIED], words].concat())
}

/// Runs kubectl as `actor`, changing nothing; the command must be accepted.
fn accepted(world: &World<'_>, actor: &Actor, args: &[&str]) -> Result<String> {
    world.bed.kubectl_as(actor, &[args, &["--dry-run=server"]].concat()).map(|_| String::new())
}

/// A pod on n1 with this value of the annotation.
pub(super) fn forged(name: &str, networks: &str) -> Value {
    let mut object = pod::manifest(NAMESPACE, name, Some("n1"));
    object["metadata"]["annotations"][POD_KEY] = networks.into();
    object
}

fn annotation(value: &Value) -> String {
    json!({"metadata": {"annotations": {POD_KEY: value}}}).to_string()
}

fn pods(world: &mut World<'_>) -> Result<()> {
    let policy = "'slipstream-pod-networks'";
    let create = ["create", "-f", "-"];
    let object = forged("forged", CHOSEN).to_string();
    world.check("a tenant's pod with an address of its choice: refused, naming the annotation", |world| {
        refused(world, &tenant(), &create, &object, &[policy, POD_KEY])
    });
    world.check("the same by server-side apply", |world| {
        let apply = ["apply", "--server-side", "-f", "-"];
        refused(world, &tenant(), &apply, &object, &[policy, POD_KEY])
    });
    world.check("an administrator's pod with one: refused as well", |world| {
        refused(world, &Actor::user("root").with_all_rights(), &create, &object, &[policy, POD_KEY])
    });
    let plain = pod::manifest(NAMESPACE, "plain", Some("n1")).to_string();
    world.check("the tenant's pod without it is accepted, and answers", |world| {
        let mut command = world.bed.kubectl_command()?;
        exec::input_output(command.args(tenant().flags()).args(create), &plain)?;
        world.answers("plain")
    });
    let patch = ["patch", "pod", "-n", NAMESPACE, "plain", "--type=merge", "-p"];
    for (what, value) in [("written over", json!(CHOSEN)), ("emptied", json!("")), ("removed", Value::Null)] {
        let change = annotation(&value);
        world.check(&format!("a running pod's annotation {what} by the tenant: refused"), |world| {
            refused(world, &tenant(), &[&patch[..], &[&change]].concat(), "", &[policy, POD_KEY])
        });
    }
    world.check("all annotations of the pod removed: refused", |world| {
        let change = json!({"metadata": {"annotations": null}}).to_string();
        refused(world, &tenant(), &[&patch[..], &[&change]].concat(), "", &[policy, POD_KEY])
    });
    world.check("written over by its status: refused", |world| {
        let change = annotation(&json!(CHOSEN));
        let args = [&patch[..], &[&change, "--subresource=status"]].concat();
        refused(world, &Actor::user("root").with_all_rights(), &args, "", &[policy, POD_KEY])
    });
    world.check("another annotation and a label of the pod: accepted", |world| {
        let change = json!({"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}}).to_string();
        accepted(world, &tenant(), &[&patch[..], &[&change]].concat())
    });
    world.check("brought along by the pod's binding to a node: refused", |world| {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": "plain", "namespace": NAMESPACE, "annotations": {POD_KEY: CHOSEN}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/plain/binding");
        let words = ["'slipstream-pod-bindings'", POD_KEY];
        let actor = Actor::user("root").with_all_rights();
        refused(world, &actor, &["create", "--raw", &path, "-f", "-"], &binding.to_string(), &words)
    });
    world.check("after all this the pod answers as before", |world| world.answers("plain"));
    world.delete(&["plain"]).context("end of the tenant's pods")
}

/// Administrators and kubelets write nothing of what controller and agents say of a node.
fn nodes(world: &mut World<'_>) {
    let policy = "'slipstream-node-annotations'";
    for (who, actor) in
        [("a kubelet", Actor::kubelet("n1")), ("an administrator", Actor::user("root").with_all_rights())]
    {
        for key in ["node-subnets", "node-id", "l3-gateway-config", "node-chassis-id", "host-cidrs"] {
            let key = format!("k8s.ovn.org/{key}");
            world.check(&format!("{who} writes {key} of n1: refused"), |world| {
                let change = json!({"metadata": {"annotations": {&key: "{}"}}}).to_string();
                let args = ["patch", "node", "n1", "--type=merge", "-p", &change];
                refused(world, &actor, &args, "", &[policy, &key])
            });
        }
        world.check(&format!("{who} writes an annotation that is not ours: accepted"), |world| {
            accepted(world, &actor, &["annotate", "node", "n1", "example.org/a=b"])
        });
    }
    world.check("a kubelet removes all annotations by its status: refused", |world| {
        let change = json!({"metadata": {"annotations": null}}).to_string();
        let args = ["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", &change];
        // kubectl reads the status first, which kubelets may not.
        refused(world, &Actor::kubelet("n1").with_all_rights(), &args, "", &[policy, "node-subnets"])
    });
    world.check("a new Node that brings a range along: refused", |world| {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n9", "annotations": {"k8s.ovn.org/node-subnets": "{}"}},
        });
        let actor = Actor::user("root").with_all_rights();
        refused(world, &actor, &["create", "-f", "-"], &node.to_string(), &[policy, "node-subnets"])
    });
}

/// The agent of n1, as one would use it whose machine was taken over.
fn agents(world: &mut World<'_>) {
    let own = Actor::agent(Some("n1"));
    let policy = "'slipstream-node-agent'";
    let gateway = |node: &'static str| {
        ["annotate", "--overwrite", "node", node, r#"k8s.ovn.org/l3-gateway-config={"default":{}}"#]
    };
    world.check("the agent of n1 writes its own gateway: accepted", |world| {
        accepted(world, &own, &gateway("n1"))
    });
    let status = |of: Value| {
        let change = json!({"status": of}).to_string();
        ["patch", "node", "n1", "--subresource=status", "--type=strategic", "-p"]
            .into_iter()
            .map(str::to_owned)
            .chain([change])
            .collect::<Vec<_>>()
    };
    let condition = |kind: &str| {
        let now = "2026-01-01T00:00:00Z";
        json!({"conditions": [{
            "type": kind, "status": "False", "reason": "Scene", "message": "a scene",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }]})
    };
    // kubectl reads the status first, which agents may not.
    let reader = own.clone().with_all_rights();
    world.check("a condition of ours: accepted", |world| {
        let args = status(condition("slipstream.dev/Scene"));
        accepted(world, &reader, &args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    world.check("the gateway of n2: refused, naming both nodes", |world| {
        refused(world, &own, &gateway("n2"), "", &[policy, "n1", "n2"])
    });
    world.check("by a token that is bound to no node: refused", |world| {
        refused(world, &Actor::agent(None), &gateway("n1"), "", &[policy, "bound"])
    });
    let subnets = ["annotate", "--overwrite", "node", "n1", r#"k8s.ovn.org/node-subnets={"default":[]}"#];
    for (what, args, word) in [
        ("the range of n1", &subnets[..], "node-subnets"),
        (
            "an annotation of n1 that is somebody else's",
            &["annotate", "node", "n1", "example.org/a=b"],
            "example.org/a",
        ),
        ("a label of n1", &["label", "node", "n1", "example.org/a=b"], "labels"),
        ("a taint of n1", &["taint", "node", "n1", "example.org/a=b:NoSchedule"], "taints"),
        (
            "a finalizer of n1",
            &[
                "patch",
                "node",
                "n1",
                "--type=merge",
                "-p",
                r#"{"metadata":{"finalizers":["example.org/a"]}}"#,
            ],
            "finalizers",
        ),
    ] {
        world.check(&format!("{what}: refused"), |world| refused(world, &own, args, "", &[word]));
    }
    for (what, of) in [
        ("the condition Ready of n1", condition("Ready")),
        ("an address of n1", json!({"addresses": [{"type": "ExternalIP", "address": "192.0.2.77"}]})),
        ("the capacity of n1", json!({"capacity": {"example.org/a": "7"}})),
    ] {
        world.check(&format!("{what}: refused"), |world| {
            let args = status(of);
            refused(
                world,
                &reader,
                &args.iter().map(String::as_str).collect::<Vec<_>>(),
                "",
                &[policy, "status"],
            )
        });
    }
    world.check("n1 is as it was", |world| {
        let labels = world.field("node/n1", ".metadata.labels")?;
        let taints = world.field("node/n1", ".spec.taints")?;
        ensure!(!labels.contains("example.org") && !taints.contains("example.org"), "{labels} {taints}");
        world.others_go_on()
    });
}

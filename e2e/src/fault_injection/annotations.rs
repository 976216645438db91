//! Faults of suite `fault_injection`: annotations that another client has overwritten.

use anyhow::{Result, ensure};

use super::world::{HEAL, World};

const POD: &str = "k8s.ovn.org/pod-networks";
const SUBNETS: &str = "k8s.ovn.org/node-subnets";
const GATEWAY: &str = "k8s.ovn.org/l3-gateway-config";
/// An address that is none, in a field that must be named.
const BAD_ADDRESS: &str =
    r#"{"default":{"ip_addresses":["10.244.0.300/29"],"mac_address":"0a:58:0a:f4:00:03"}}"#;
/// How the Event is called.
const REASON: &str = "NetworkAnnotationUnusable";

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    before_allocation(world)?;
    somebody_elses_address(world)?;
    after_allocation(world)?;
    of_a_node(world)?;
    while_the_controller_is_away(world)
}

/// A new pod brings an annotation that cannot be read.
fn before_allocation(world: &mut World<'_>) -> Result<()> {
    let (controller, kubelet) = (world.log("central", "controller"), world.log("n1", "fake-node"));
    world.create("broken", "n1", Some(BAD_ADDRESS))?;
    let words: [&dyn std::fmt::Display; 3] = [&"pod hardship/broken", &POD, &"default.ip_addresses[0]"];
    world.check(
        "a new pod with a malformed annotation: the controller names pod, annotation and field",
        |_| controller.tells(&words),
    );
    world.check("the same as an Event", |world| world.event("broken", REASON));
    world.check("the same as the error of ADD", |_| kubelet.tells(&words));
    world.create("beside", "n1", None)?;
    world.check("another pod of the node gets its network meanwhile", |world| world.answers("beside"));
    world.annotate("pod/broken", "pod-networks", None)?;
    world.check("without the annotation it heals", |world| world.answers("broken"));
    world.delete(&["broken", "beside"])
}

/// A new pod brings the address of another one.
fn somebody_elses_address(world: &mut World<'_>) -> Result<()> {
    let log = world.log("central", "controller");
    let stolen = world.annotation("pod/good-1", "pod-networks")?;
    let address = world.field("pod/good-1", ".status.podIP")?;
    world.create("thief", "n1", Some(&stolen))?;
    world.check("a pod with another's address: refused, naming pod, annotation and address", |_| {
        log.tells(&[&"pod hardship/thief", &POD, &address])
    });
    world.check("the owner goes on", |world| world.answers("good-1"));
    world.annotate("pod/thief", "pod-networks", None)?;
    world.check("without the annotation it gets an address of its own", |world| {
        let own = world.running("thief", HEAL)?;
        ensure!(own.to_string() != address, "it runs with {own}, which is good-1's");
        world.answers("thief")
    });
    world.delete(&["thief"])
}

/// A running pod's annotation is written over.
fn after_allocation(world: &mut World<'_>) -> Result<()> {
    let log = world.log("central", "controller");
    let value = world.annotation("pod/good-1", "pod-networks")?;
    world.annotate("pod/good-1", "pod-networks", Some("{\"default\":5}"))?;
    world.check("a running pod's malformed annotation: named", |_| {
        log.tells(&[&"pod hardship/good-1", &POD, &"`default`"])
    });
    world.check("it is written again as it was", |world| {
        restored(world, "pod/good-1", "pod-networks", &value)
    });
    world.check("the pod goes on", |world| world.answers("good-1"));
    Ok(())
}

fn restored(world: &World<'_>, object: &str, name: &str, value: &str) -> Result<String> {
    world.eventually(HEAL, || {
        let now = world.annotation(object, name)?;
        ensure!(now == value, "it is {now:?} instead of {value:?}");
        Ok(())
    })
}

/// A node's annotations are written over.
fn of_a_node(world: &mut World<'_>) -> Result<()> {
    for (name, key, bad, field) in [
        ("l3-gateway-config", GATEWAY, r#"{"default":{"mode":"shared","bridge-id":7}}"#, "default.bridge-id"),
        ("node-subnets", SUBNETS, r#"{"default":["10.244.0.0/99"]}"#, "default[0]"),
    ] {
        let log = world.log("central", "controller");
        let value = world.annotation("node/n1", name)?;
        world.annotate("node/n1", name, Some(bad))?;
        world.check(&format!("a node's malformed {name}: node, annotation and field are named"), |_| {
            log.tells(&[&"node n1", &key, &field])
        });
        world.check(&format!("{name} is written again as it was"), |world| {
            restored(world, "node/n1", name, &value)
        });
        world.check(&format!("the pods go on after {name}"), World::others_go_on);
    }
    Ok(())
}

/// Annotations overwritten while the controller is down: the node waits, the others continue, and it recovers when the annotation is
/// corrected.
fn while_the_controller_is_away(world: &mut World<'_>) -> Result<()> {
    let value = world.annotation("node/n2", "node-subnets")?;
    let pod = world.annotation("pod/good-1", "pod-networks")?;
    let central = world.bed.host("central");
    central.kill("controller")?;
    world.annotate("node/n2", "node-subnets", Some("ten"))?;
    world.annotate("pod/good-1", "pod-networks", Some("[]"))?;
    // The new controller leads once the lease of the killed one has run out, after 15 s.
    let log = world.log("central", "controller").within(HEAL);
    central.restart("controller")?;
    world.check("ready after a start with malformed annotations", |world| {
        world.eventually(HEAL, || world.controller("/readyz").map(drop))
    });
    world
        .check("node, annotation and value are named", |_| log.tells(&[&"node n2", &SUBNETS, &"value: ten"]));
    world.check("a running pod's annotation is written again from its port", |world| {
        restored(world, "pod/good-1", "pod-networks", &pod)
    });
    world.create("beside", "n1", None)?;
    world.check("a new pod of the other node gets its network", |world| world.answers("beside"));
    world.annotate("node/n2", "node-subnets", Some(&value))?;
    world.check("with the annotation put right the node heals", World::others_go_on);
    world.delete(&["beside"])
}

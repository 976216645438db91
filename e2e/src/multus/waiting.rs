//! Bad input: a clear event, the pod waits, nothing of it is half plugged, and it heals where it can.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::harness::Checks;

use super::scene::{Scene, eventually, holds, network, ours};

pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let red = &scene.red;
    let before = red.quiet()?;
    red.apply(scene.naming("undefined", "n1", "own,later")?)?;
    checks.check(
        "a definition that is not there: told as an Event by the controller",
        scene.event(
            "undefined",
            "VirtualNetworkUnusable",
            "there is no NetworkAttachmentDefinition red/later",
        ),
    );
    checks.check(
        "and by Multus",
        scene.event(
            "undefined",
            "FailedCreatePodSandBox",
            "cannot find a network-attachment-definition (later)",
        ),
    );
    red.apply(ours("nowhere", Some("red/soon")))?;
    red.apply(scene.naming("unknown", "n2", "own,bridge,nowhere")?)?;
    checks.check(
        "a definition of a network that is not there: told as an Event",
        scene.event("unknown", "VirtualNetworkUnusable", "soon"),
    );
    let twice = json!([{"name": "own", "interface": "net4"}, {"name": "far", "interface": "net4"}]);
    red.apply(scene.naming("twice", "n1", &twice.to_string())?)?;
    checks.check(
        "two interfaces of one name: told as an Event",
        scene.event("twice", "NetworkAnnotationUnusable", "interface net4 is asked for twice"),
    );
    let taken = scene.address("m1", "red/own")?;
    red.apply(scene.naming("thief", "n2", &json!([{"name": "own", "ips": [taken]}]).to_string())?)?;
    checks.check(
        "the address of another pod: told as an Event",
        scene.event("thief", "VirtualNetworkUnusable", &taken.to_string()),
    );
    checks.check(
        "also on the pod that has it",
        scene.event("m1", "VirtualNetworkAddressConflict", "pod red/thief asks for its address"),
    );
    for pod in ["undefined", "unknown", "twice", "thief"] {
        checks.check(
            format!("{pod} waits, and nothing of it is plugged in"),
            holds(|| {
                let phase = red.field(&format!("pod/{pod}"), ".status.phase")?;
                let plugged = scene.plugged(pod)?;
                ensure!(phase == "Pending" && plugged.is_empty(), "{phase}, {plugged:?}");
                Ok(())
            }),
        );
    }
    red.apply(ours("later", Some("far")))?;
    red.apply(network("soon", 60))?;
    checks.check("they run when definition and network are made", scene.runs(&["undefined", "unknown"]));
    checks.check(
        "with all interfaces",
        holds(|| {
            for (pod, node, expected) in [
                ("undefined", "n1", vec!["eth0", "net1", "net2"]),
                ("unknown", "n2", vec!["eth0", "net1", "net2", "net3"]),
            ] {
                let interfaces: Vec<String> = scene.inside(pod, node)?.interfaces().into_keys().collect();
                ensure!(interfaces == expected, "{pod}: {interfaces:?}");
            }
            Ok(())
        }),
    );
    red.delete(&["undefined", "unknown", "twice", "thief"])?;
    let bed = scene.bed();
    bed.kubectl(&["delete", "virtualnetwork", "-n", "red", "soon", "--timeout=60s"])?;
    bed.kubectl(&["delete", "net-attach-def", "-n", "red", "later", "nowhere"])?;
    checks.check(
        "nothing of them is left",
        eventually(|| before.equals(&red.snapshot()?).map(|()| String::new())),
    );
    Ok(())
}

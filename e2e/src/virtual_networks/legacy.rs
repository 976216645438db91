//! The kind that networks had before: a network is made of an object, pods attach to it, what is wrong is told at the object, and the
//! network goes with it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::harness::Checks;

use super::life::{event, eventually, running};
use super::scene::{GREEN, RED, Scene, asking, network};

const NAME: &str = "ovn-ls-24";

fn object(name: &str, config: &Value) -> Value {
    json!({"apiVersion": "k8s.plugin.opnfv.org/v1", "kind": "onapNetwork", "metadata": {"namespace": RED, "name": name},
        "spec": {"config": config.to_string()}})
}

/// All of it.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, red) = (scene.bed(), &scene.red);
    let config = json!({"cnitype": "ovn", "name": format!(" {NAME}"), "subnet": " 172.16.24.0/24", "gateway": " 172.16.24.1"});
    red.apply(object(NAME, &config))?;
    let wanted = json!([{"name": NAME, "interface": "net1"}]);
    scene.green.apply(asking(GREEN, "old", Some("n1"), &wanted))?;
    checks.check("a pod of another namespace runs on the network", running(&scene.green, "old"));
    let switch =
        bed.nbctl(&["--bare", "--columns=other_config", "find", "Logical_Switch", &format!("name={NAME}")])?;
    let right = if switch.contains("172.16.24.0/24") { Ok(switch) } else { Err(switch) };
    checks.check("its switch has its name and range", right);
    let mut other = config.clone();
    other["subnet"] = "172.16.25.0/24".into();
    let change = red.apply(object(NAME, &other)).err().map(|error| format!("{error:#}"));
    let change = change.filter(|text| text.contains("config cannot be changed"));
    checks.check("it cannot be changed", change.ok_or_else(|| "it is changed".to_owned()));
    for (name, config, word) in [
        ("unknown", json!({"cnitype": "flannel", "subnet": "172.16.26.0/24"}), "spec.config.cnitype"),
        (
            "overlaps",
            json!({"subnet": "172.16.24.128/25"}),
            "overlaps 172.16.24.0/24 of virtual network red/ovn-ls-24",
        ),
        ("routed", json!({"subnet": "172.16.26.0/24"}), "was not made of this object"),
    ] {
        red.apply(object(name, &config))?;
        checks
            .check(format!("what is wrong with `{name}` is an event of the object"), event(red, name, word));
        bed.kubectl(&["delete", "onapnetwork", "-n", RED, name])?;
    }
    bed.kubectl(&["delete", "onapnetwork", "-n", RED, NAME])?;
    checks.check(
        "its network stays while a pod is attached to it",
        eventually(|| {
            let path = r#".status.conditions[?(@.type=="InUse")].message"#;
            let said = red.field(&format!("virtualnetwork/{NAME}"), path)?;
            ensure!(said.contains("it is deleted when"), "{said}");
            Ok(said)
        }),
    );
    scene.green.delete(&["old"])?;
    checks.check(
        "and goes with it, as do those of the others",
        eventually(|| {
            let left = bed.kubectl(&["get", "virtualnetworks", "-n", RED, "-o", "name"])?;
            ensure!(!left.contains(NAME) && !left.contains("overlaps"), "{left}");
            ensure!(left.contains("routed"), "somebody else's is gone: {left}");
            Ok(left)
        }),
    );
    // The name is free.
    red.apply(network(RED, NAME, "Isolated", 24))?;
    bed.kubectl(&["delete", "virtualnetwork", "-n", RED, NAME, "--timeout=30s"]).map(drop)
}

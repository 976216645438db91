//! Trial of suite `node_lifecycle`: a pod's image is not on its node.

use anyhow::{Result, ensure};

use super::world::{NAMESPACE, World};

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    let name = "no-image";
    let mut object = world.manifest(name, "n1")?;
    object["spec"]["containers"][0]["image"] = "invalid.registry.k8s.io/invalid/alpine:3.1".into();
    object["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    world.apply(&object)?;
    let reason = ".status.containerStatuses[0].state.waiting.reason";
    world.eventually("the kubelet says why it does not run", || {
        let said = world.field(&format!("pod/{name}"), reason)?;
        ensure!(said == "ErrImageNeverPull", "it says {said:?}");
        Ok(())
    })?;
    // Its network works, and that of other pods is not affected.
    let ip = world.address(name)?;
    world.answers("a1")?;
    world.answers("b1")?;
    world.delete(&[name])?;
    let clear = world.nothing_left(&before)?;
    let left =
        world.bed.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "jsonpath={.items[*].status.podIP}"])?;
    ensure!(!left.split(' ').any(|other| other == ip.to_string()), "{ip} is still a pod's");
    Ok(format!("ErrImageNeverPull at {ip}; others answer; nothing left {clear} after its end"))
}

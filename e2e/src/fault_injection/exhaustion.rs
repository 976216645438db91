//! Faults of suite `fault_injection`: more pods than addresses.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::world::{HEAL, NAMESPACE, World};

/// With `good-1` there is room for three of them.
const PODS: [&str; 4] = ["full-1", "full-2", "full-3", "full-4"];

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    let log = world.log("central", "controller");
    for name in &PODS[..3] {
        world.create(name, "n1", None)?;
        world.running(name, HEAL)?;
    }
    let waits = PODS[3];
    world.create(waits, "n1", None)?;
    world.check("a pod too many: pod, node and range are named", |_| {
        log.tells(&[&format!("pod {NAMESPACE}/{waits}"), &"node n1", &"10.244.0.0/29", &"no free address"])
    });
    world.check("the same as an Event", |world| world.event(waits, "NetworkAddressesExhausted"));
    world.check("it waits without an address", |world| {
        let status = world.field(&format!("pod/{waits}"), ".status.phase},{.status.podIP")?;
        ensure!(status == "Pending,", "its phase and address are {status}");
        Ok(String::new())
    });
    world.check("the other node has room", |world| {
        world.create("elsewhere", "n2", None)?;
        world.answers("elsewhere")
    });
    world.delete(&PODS[1..2])?;
    world.check("when one goes, the waiting one gets its network", |world| world.answers(waits));
    world.check("no address is given twice", |world| {
        let list = world.bed.kubectl(&[
            "get",
            "pods",
            "-n",
            NAMESPACE,
            "-o",
            "jsonpath={.items[*].status.podIP}",
        ])?;
        let all: Vec<_> = list.split_whitespace().collect();
        let unique: BTreeSet<_> = all.iter().collect();
        ensure!(all.len() == 6 && unique.len() == 6, "six pods have {list}");
        let ports = world.bed.nbctl(&[
            "--bare",
            "--columns=addresses",
            "find",
            "Logical_Switch_Port",
            &format!("external_ids:namespace={NAMESPACE}"),
        ])?;
        let ports: BTreeSet<_> = ports.lines().filter(|line| !line.is_empty()).collect();
        ensure!(ports.len() == 6, "six pods have the ports {ports:?}");
        Ok(all.join(" "))
    });
    world.delete(&[&PODS[..], &["elsewhere"]].concat()).context("end of the full range")
}

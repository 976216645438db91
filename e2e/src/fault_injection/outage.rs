//! Faults of suite `fault_injection`: databases that are down for a while.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::calls::{self, NODE};
use super::world::{HEAL, SOON, World};
use crate::objects::has;
use testbed::exec;

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    northbound(world)?;
    open_vswitch(world)
}

fn northbound(world: &mut World<'_>) -> Result<()> {
    let central = world.bed.host("central");
    central.kill("ovsdb-nb")?;
    world.check("northbound database away: /readyz of the controller says so", |world| {
        exec::retry(SOON, "it says so", || match world.controller("/readyz") {
            Ok(page) => anyhow::bail!("it says {page:?}"),
            Err(error) => has(&format!("{error:#}"), &["503", "northbound database"]).map(drop),
        })?;
        Ok(String::new())
    });
    world.create("meanwhile", NODE, None)?;
    world.check("pods that run go on", World::others_go_on);
    world.check("a new pod waits", |world| {
        thread::sleep(Duration::from_secs(1));
        let phase = world.field("pod/meanwhile", ".status.phase")?;
        ensure!(phase == "Pending", "its phase is {phase}");
        Ok(String::new())
    });
    central.restart("ovsdb-nb")?;
    world.check("after it is back the new pod has its network", |world| world.answers("meanwhile"));
    world.check("and the controller is ready", |world| {
        world.eventually(HEAL, || world.controller("/readyz").map(drop))
    });
    world.delete(&["meanwhile"])
}

fn open_vswitch(world: &mut World<'_>) -> Result<()> {
    calls::manual_pod(world, "plugged")?;
    let netns = calls::make_netns(world, "hardship")?;
    let host = world.bed.host(NODE);
    host.kill("ovsdb-server")?;
    world.check("Open_vSwitch database away: STATUS says so with code 50", |world| {
        exec::retry(SOON, "STATUS says so", || {
            calls::call_as_configured(world, "STATUS", "", "plugged")?.failed(50, &["Open_vSwitch"])
        })
    });
    world.check("ADD says so with code 11", |world| {
        calls::call_as_configured(world, "ADD", &netns, "plugged")?.failed(11, &["Open_vSwitch"])
    });
    host.restart("ovsdb-server")?;
    world.check("after it is back STATUS is good", |world| {
        world.eventually(HEAL, || {
            calls::call_as_configured(world, "STATUS", "", "plugged")?.succeeded().map(drop)
        })
    });
    world.check("ADD succeeds", |world| {
        calls::call_as_configured(world, "ADD", &netns, "plugged")?.succeeded()
    });
    world.check("DEL succeeds", |world| {
        calls::call_as_configured(world, "DEL", &netns, "plugged")?.succeeded()
    });
    world.check("pods that run go on", World::others_go_on);
    calls::delete_netns(world, "hardship")?;
    world.delete(&["plugged"])
}

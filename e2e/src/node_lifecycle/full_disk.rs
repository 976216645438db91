//! Trial of suite `node_lifecycle`: the disks of a node, or of a database, have no room.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::world::{NAMESPACE, World};

const NODE: &str = "n1";
const STATE: &str = "/var/lib/slipstream";
const DATABASE: &str = "/etc/openvswitch";
const FULL: &str = "No space left on device";

/// A small disk over a directory of the node; full once `fill` was called.
struct Small<'a, 'b> {
    world: &'a World<'b>,
    directory: &'static str,
}

impl<'a, 'b> Small<'a, 'b> {
    /// Mounts it, with the files that are there.
    fn mount(world: &'a World<'b>, directory: &'static str, size: &str) -> Result<Self> {
        let keep = "/run/testbed/kept";
        world.run(NODE, "cp", &["-a", directory, keep])?;
        let size = format!("size={size}");
        world.run(NODE, "mount", &["-t", "tmpfs", "-o", &size, "tmpfs", directory])?;
        world.run(NODE, "cp", &["-a", &format!("{keep}/."), directory])?;
        world.run(NODE, "rm", &["-r", keep])?;
        Ok(Self { world, directory })
    }

    fn filler(&self) -> String {
        format!("{}/filler", self.directory)
    }

    /// Leaves not a byte.
    fn fill(&self) -> Result<()> {
        let of = format!("of={}", self.filler());
        let filled = self.world.run(NODE, "dd", &["if=/dev/zero", &of, "bs=4096"]);
        let said = filled.err().context("the disk does not become full")?;
        ensure!(format!("{said:#}").contains(FULL), "{said:#}");
        Ok(())
    }

    fn make_room(&self) -> Result<()> {
        self.world.run(NODE, "rm", &["-f", &self.filler()]).map(drop)
    }

    fn unmount(self) -> Result<()> {
        self.world.run(NODE, "umount", &[self.directory]).map(drop)
    }
}

/// The agent's own state.
pub(super) fn state(world: &World<'_>) -> Result<String> {
    let host = world.bed.host(NODE);
    host.kill("node-agent")?;
    let small = Small::mount(world, STATE, "256k")?;
    let outcome = full_state(world, &small);
    host.kill("node-agent")?;
    small.unmount()?;
    host.restart("node-agent")?;
    world.eventually("the agent is ready", || world.page(NODE, "/readyz").map(drop))?;
    world.answers("a1")?;
    outcome
}

fn full_state(world: &World<'_>, small: &Small<'_, '_>) -> Result<String> {
    let host = world.bed.host(NODE);
    small.fill()?;
    host.restart("node-agent")?;
    // What it needs is there: nothing has to be written, neither at its start nor for a pod.
    world.eventually("the agent is ready", || world.page(NODE, "/readyz").map(drop))?;
    let started = world.start("while-full", NODE)?;
    world.delete(&["while-full"])?;
    // As on a new node: it has to write down what it is about to change, and cannot.
    host.kill("node-agent")?;
    let journal = world.file(NODE, STATE)?.join("gateway.json");
    small.make_room()?;
    fs::remove_file(&journal)?;
    small.fill()?;
    let log = world.log(NODE, "node-agent");
    host.restart("node-agent")?;
    log.tells(&[&format!("{STATE}/gateway"), &FULL])?;
    let page = world.page(NODE, "/readyz").err().context("the agent says that it is ready")?;
    ensure!(format!("{page:#}").contains(FULL), "readyz says {page:#}");
    let halves: Vec<_> = fs::read_dir(world.file(NODE, STATE)?)?.flatten().map(|e| e.file_name()).collect();
    // The settings of the kernel as they were are written when an agent first starts, and whole.
    let record = world.file(NODE, STATE)?.join("sysctls.json");
    serde_json::from_slice::<serde_json::Value>(&fs::read(record)?).context("sysctls.json")?;
    let whole = ["filler", "sysctls.json"];
    ensure!(halves.iter().all(|name| whole.iter().any(|one| name == *one)), "half-made files: {halves:?}");
    world.answers("a1").context("a pod that runs")?;
    small.make_room()?;
    let healed = world.eventually("the agent is ready", || world.page(NODE, "/readyz").map(drop))?;
    ensure!(journal.exists(), "{} is not there", journal.display());
    Ok(format!(
        "known node: ready, new pod {started}; new node: the agent names file and reason, running pods answer, ready {healed} \
         after there is room, without a restart"
    ))
}

/// The database of Open vSwitch, without which there is no port for a pod.
pub(super) fn database(world: &World<'_>) -> Result<String> {
    let before = world.quiet()?;
    let host = world.bed.host(NODE);
    host.kill("ovsdb-server")?;
    let small = Small::mount(world, DATABASE, "2m")?;
    host.restart("ovsdb-server")?;
    let outcome = full_database(world, &small);
    small.make_room()?;
    host.kill("ovsdb-server")?;
    // What was written meanwhile is what counts.
    world.run(NODE, "cp", &[&format!("{DATABASE}/conf.db"), "/run/testbed/conf.db"])?;
    small.unmount()?;
    world.run(NODE, "mv", &["/run/testbed/conf.db", &format!("{DATABASE}/conf.db")])?;
    host.restart("ovsdb-server")?;
    world.eventually("the agent is ready", || world.page(NODE, "/readyz").map(drop))?;
    let seen = outcome?;
    world.delete(&["no-room"])?;
    world.nothing_left(&before)?;
    Ok(seen)
}

/// A database that ends in the middle of a page can still grow to its end.
fn use_up_last_page(world: &World<'_>) -> Result<()> {
    for size in [2000, 400, 20] {
        let mut tries = 0..64;
        while tries.next().is_some_and(|i| {
            let value = format!("external_ids:filler={}", "x".repeat(size + i % 2));
            world
                .run(NODE, "ovs-vsctl", &["--no-wait", "--timeout=10", "set", "Open_vSwitch", ".", &value])
                .is_ok()
        }) {}
        ensure!(tries.next().is_some(), "the database still grows on a full disk");
    }
    Ok(())
}

fn full_database(world: &World<'_>, small: &Small<'_, '_>) -> Result<String> {
    world.eventually("the agent is ready", || world.page(NODE, "/readyz").map(drop))?;
    small.fill()?;
    use_up_last_page(world)?;
    let log = world.log(NODE, "node-agent");
    world.create("no-room", NODE)?;
    let told = log.tells(&[&"OVS port", &"write failed", &FULL])?;
    world.eventually("an event of the pod says so", || {
        let filter = "involvedObject.name=no-room,reason=FailedCreatePodSandBox";
        let note = "jsonpath={.items[*].message}";
        let said =
            world.bed.kubectl(&["get", "events", "-n", NAMESPACE, "--field-selector", filter, "-o", note])?;
        ensure!(said.contains(FULL), "it says {said:?}");
        Ok(())
    })?;
    world.answers("a1").context("a pod that runs")?;
    small.make_room()?;
    let clear = ["--no-wait", "remove", "Open_vSwitch", ".", "external_ids", "filler"];
    world.run(NODE, "ovs-vsctl", &clear)?;
    world.ready(&["no-room"]).context("once there is room")?;
    let answers = world.answers("no-room")?;
    let reason = told.find("OVS port").and_then(|at| told.get(at..)).unwrap_or(&told);
    let reason: String = reason.chars().take_while(|c| *c != '\x1b').take(160).collect();
    Ok(format!("running pods answer, ADD fails: {}; with room again, {answers}", reason.trim()))
}

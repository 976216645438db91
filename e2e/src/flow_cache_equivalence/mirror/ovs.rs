//! The mirror and its ports, by ovs-vsctl on the first node.

use anyhow::{Context, Result};

use super::super::scene::{NAMESPACE, Scene, Who};
use super::super::tap::Tap;
use super::trials::Trial;
use testbed::exec;

/// The node, and the port that gets the copies.
const NODE: &str = "n1";
const COPIES: &str = "eqcopies";
/// Name of the mirror.
const MIRROR: &str = "exact";

/// A port by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Pod(Who),
    /// The tunnel to the other node.
    Tunnel,
    /// The way to the gateway bridge.
    Patch,
    /// OVS's end of the uplink.
    Uplink,
    /// An internal port that exists for this test.
    Copies,
}

/// Which packets a mirror selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Select {
    All,
    From(Port),
    To(Port),
}

/// The internal port that gets the copies, with a tap.
pub(super) struct Copies {
    pub(super) tap: Tap,
}

impl Copies {
    pub(super) fn add(scene: &Scene<'_>, bridge: &str) -> Result<Self> {
        let bed = scene.bed;
        bed.vsctl(
            NODE,
            &["--may-exist", "add-port", bridge, COPIES, "--", "set", "Interface", COPIES, "type=internal"],
        )?;
        let mut ip = bed.host(NODE).network_command("ip")?;
        exec::output(ip.args(["link", "set", "dev", COPIES, "addrgenmode", "none", "up"]))?;
        let program = bed.config().program("testbed");
        let tap = Tap::start(bed.host(NODE).network_command(program)?, COPIES, false)?;
        Ok(Self { tap })
    }

    pub(super) fn remove(self, scene: &Scene<'_>, bridge: &str) -> Result<()> {
        scene.bed.vsctl(NODE, &["--if-exists", "del-port", bridge, COPIES]).map(drop)
    }
}

/// Name of a port on the bridge.
fn name(scene: &Scene<'_>, bridge: &str, port: Port) -> Result<String> {
    let find = |condition: &str| -> Result<String> {
        let args = ["--bare", "--columns=name", "find", "Interface", condition];
        let said = scene.bed.vsctl(NODE, &args)?;
        let on_bridge = scene.bed.vsctl(NODE, &["list-ports", bridge])?;
        let mut names = said.split_whitespace().filter(|name| on_bridge.lines().any(|one| one == *name));
        names.next().map(str::to_owned).with_context(|| format!("no port of {bridge} has {condition}"))
    };
    match port {
        Port::Pod(who) => find(&format!("external_ids:iface-id={NAMESPACE}_{}", who.name())),
        Port::Tunnel => find("type=geneve"),
        Port::Patch => find("type=patch"),
        Port::Uplink => Ok("so-eth0".to_owned()),
        Port::Copies => Ok(COPIES.to_owned()),
    }
}

/// The arguments of ovs-vsctl that make the mirror. `selected`: name of the port that it selects; `output`: of the one that gets copies.
fn arguments(bridge: &str, select: Select, selected: Option<&str>, output: &str) -> Vec<String> {
    let mut words: Vec<&str> = vec!["--", "--id=@output", "get", "Port", output];
    if let Some(port) = selected {
        words.extend(["--", "--id=@selected", "get", "Port", port]);
    }
    words.extend(["--", "--id=@mirror", "create", "Mirror", "name=exact", "output_port=@output"]);
    words.push(match select {
        Select::All => "select_all=true",
        Select::From(_) => "select_src_port=@selected",
        Select::To(_) => "select_dst_port=@selected",
    });
    words.extend(["--", "add", "Bridge", bridge, "mirrors", "@mirror"]);
    words.into_iter().map(str::to_owned).collect()
}

pub(super) fn set(scene: &Scene<'_>, trial: &Trial) -> Result<()> {
    let selected = match trial.select {
        Select::All => None,
        Select::From(port) | Select::To(port) => Some(name(scene, trial.bridge, port)?),
    };
    let output = name(scene, trial.bridge, trial.output)?;
    let words = arguments(trial.bridge, trial.select, selected.as_deref(), &output);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    scene.bed.vsctl(NODE, &words).map(drop)
}

/// Takes the mirror away, if it is there.
pub(super) fn unset(scene: &Scene<'_>, bridge: &str) -> Result<()> {
    let there =
        scene.bed.vsctl(NODE, &["--bare", "--columns=name", "find", "Mirror", &format!("name={MIRROR}")])?;
    if there.trim().is_empty() {
        return Ok(());
    }
    scene.bed.vsctl(NODE, &["clear", "Bridge", bridge, "mirrors"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_made_in_one_transaction() {
        let words = arguments("br-int", Select::From(Port::Tunnel), Some("ovn-n2-0"), "copies").join(" ");
        assert_eq!(
            words,
            "-- --id=@output get Port copies -- --id=@selected get Port ovn-n2-0 -- --id=@mirror create Mirror name=exact \
             output_port=@output select_src_port=@selected -- add Bridge br-int mirrors @mirror"
        );
        let words = arguments("br-int", Select::All, None, "copies").join(" ");
        assert!(words.contains("select_all=true") && !words.contains("@selected"), "{words}");
    }
}

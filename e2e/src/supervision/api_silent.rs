//! An API server that accepts connections and answers nothing, while the agent has something to write there and ovs-vswitchd is
//! restarted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use testbed::cluster::Bed;
use testbed::exec;

/// The server.
const SERVER: &str = "kube-apiserver";
/// Long enough for the agent to send what it has to write.
const HANGS: Duration = Duration::from_secs(1);
/// How long the flows may take to come back. The call that hangs is given 10 s, and every further one as long.
const BACK: Duration = Duration::from_secs(8);
/// What the agent has to write: an address that the node has got. No range of the cluster contains it.
const ADDRESS: &str = "198.51.100.77/32";
/// Bridge and where it takes OpenFlow on its node.
const BRIDGE: (&str, &str) = ("breth0", "unix:/run/openvswitch/breth0.mgmt");

/// Runs it on a node.
pub(super) fn run(bed: &Bed, node: &str) -> Result<String> {
    let before = flows(bed, node)?;
    ensure!(before > 10, "{} has only {before} flows", BRIDGE.0);
    let took = {
        let _paused = Paused::new(bed)?;
        address(bed, node, "add")?;
        std::thread::sleep(HANGS);
        let begin = Instant::now();
        bed.host(node).restart("ovs-vswitchd")?;
        exec::retry(BACK, "the bridge's flows come back", || {
            let now = flows(bed, node)?;
            ensure!(now >= before, "{now} flows of {before}");
            Ok(())
        })?;
        begin.elapsed()
    };
    announced(bed, node, true).context("once the API server answers again")?;
    address(bed, node, "del")?;
    announced(bed, node, false)?;
    Ok(format!("after {:.1} s", took.as_secs_f64()))
}

/// The API server, stopped for as long as this lives.
struct Paused<'a> {
    bed: &'a Bed,
    pid: String,
}

impl<'a> Paused<'a> {
    fn new(bed: &'a Bed) -> Result<Self> {
        let list = bed.host("central").processes()?;
        let pid = list.into_iter().find(|process| process.name == SERVER).and_then(|process| process.pid);
        let pid = pid.with_context(|| format!("{SERVER} does not run"))?.to_string();
        let paused = Self { bed, pid };
        paused.signal("-STOP")?;
        Ok(paused)
    }

    fn signal(&self, signal: &str) -> Result<()> {
        exec::output(self.bed.host("central").command("kill")?.args([signal, &self.pid])).map(drop)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.signal("-CONT") {
            testbed::ui::say(format_args!("{SERVER} cannot be woken: {error:#}"));
        }
    }
}

fn flows(bed: &Bed, node: &str) -> Result<usize> {
    Ok(bed.ovs(node, "ovs-ofctl", &["dump-flows", "--no-stats", BRIDGE.1])?.lines().count())
}

fn address(bed: &Bed, node: &str, verb: &str) -> Result<()> {
    exec::output(bed.host(node).network_command("ip")?.args(["address", verb, ADDRESS, "dev", BRIDGE.0]))
        .map(drop)
}

/// Waits until the Node object names the address, or does not any more.
fn announced(bed: &Bed, node: &str, wanted: bool) -> Result<()> {
    exec::retry(Duration::from_secs(40), "the node's addresses are announced", || {
        let query = r"jsonpath={.metadata.annotations.k8s\.ovn\.org/host-cidrs}";
        let said = bed.kubectl(&["get", "node", node, "-o", query])?;
        if said.contains(ADDRESS) == wanted { Ok(()) } else { bail!("{said}") }
    })
}

//! What a node's agent says of its path, and what it has counted.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::exec;

/// The path that the node chose, the reason, and that OVS forwards in the kernel.
pub(super) fn check(bed: &Bed, node: &str, ebpf: bool, checks: &mut Checks) {
    let status = || -> Result<Value> { Ok(serde_json::from_str(&bed.agent(node).page("/status")?)?) };
    let judged = status().and_then(|status| judge(&status, ebpf));
    let path = if ebpf { "ebpf" } else { "ovs, with the reason" };
    checks.check(format_args!("{node} takes the path {path}"), judged.map_err(|e| format!("{e:#}")));
    let datapath = || -> Result<String> {
        let mut command = bed.host(node).command(bed.config().ovs("ovs-appctl"))?;
        let shown = exec::output(command.env("OVS_RUNDIR", "/run/openvswitch").arg("dpif/show"))?;
        match shown.lines().next() {
            Some(first) if first.starts_with("system@") => Ok(first.trim_end_matches(':').to_owned()),
            _ => bail!("no kernel datapath: {}", shown.trim()),
        }
    };
    let what = format!("{node}: OVS forwards in the kernel");
    checks.check(what, datapath().map_err(|e| format!("{e:#}")));
}

fn judge(status: &Value, ebpf: bool) -> Result<String> {
    let text = |name: &str| status[name].as_str().unwrap_or_default();
    let (path, attach, reason) = (text("path"), text("attach"), text("reason"));
    let said = format!("{path}, {attach}, {reason}");
    let good = if ebpf {
        path == "ebpf" && attach == "direct"
    } else {
        // The only thing that these kernels lack is their age.
        path == "ovs" && reason.contains("kernel") && reason.contains("older than")
    };
    if good { Ok(said) } else { bail!("{said}") }
}

/// Packets that the fast path of a node has sent and received over tunnels, and moved between pods of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fast {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) delivered: u64,
}

/// Reads them.
pub(crate) fn fast(bed: &Bed, node: &str) -> Result<Fast> {
    let counters = bed.agent(node).counters()?;
    let sum = |list: &str, direction: &str| -> Result<u64> {
        let list = counters[list].as_array().with_context(|| format!("no {list} in {counters}"))?;
        let one = |of: &Value| of[direction]["fast"]["packets"].as_u64();
        list.iter().map(|of| one(of).with_context(|| format!("no fast packets in {of}"))).sum()
    };
    Ok(Fast {
        sent: sum("tunnels", "out")?,
        received: sum("tunnels", "in")?,
        delivered: sum("endpoints", "in")?,
    })
}

/// Times that OVS answered otherwise than the flow cache remembered.
pub(super) fn divergences(bed: &Bed, node: &str) -> Result<u64> {
    let status = bed.agent(node).status()?;
    let reasons = status["packetReasons"].as_object().context("no packetReasons in the status")?;
    // Those that were never counted are left out.
    Ok(reasons.iter().filter(|(name, _)| name.contains("diverged")).filter_map(|(_, n)| n.as_u64()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_without_ebpf_must_say_that_its_kernel_is_too_old() {
        let old =
            json!({"path": "ovs", "attach": "direct", "reason": "kernel 5.10.0-32-amd64 is older than 5.15"});
        assert!(judge(&old, false).is_ok() && judge(&old, true).is_err());
        let other = json!({"path": "ovs", "attach": "direct", "reason": "--datapath=ovs"});
        assert!(judge(&other, false).is_err());
    }

    #[test]
    fn on_a_kernel_datapath_programs_are_attached_to_the_ports_themselves() {
        let status = |attach: &str| json!({"path": "ebpf", "attach": attach, "reason": "loaded"});
        assert!(judge(&status("direct"), true).is_ok());
        assert!(judge(&status("interposed"), true).is_err());
    }
}

//! Whether the flow cache ever decided otherwise than OVS while the specs ran; queried from every node's agent at the end.
//!
//! Counters of the programs outlive the agent; the counters of `slipctl audit` start with the agent.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cluster::Cluster;
use crate::exec;

/// Name of the counter of packets for which OVS's decision differed from the entry (`ebpf::Reason`).
const DIVERGED: &str = "diverged";
/// Name of the counter of learned entries.
const LEARNED: &str = "learned";

/// Prints the counts of each node; true when none has a divergence and each could be queried.
pub(super) fn none(cluster: &Cluster, datapath: &str) -> Result<bool> {
    let mut good = true;
    for node in cluster.node_names()? {
        let judged = cluster.slipctl(&node, &["status"]).and_then(|status| judge(&status, datapath));
        match judged {
            Ok(line) => exec::say(format_args!("{node}: {line}")),
            Err(error) => {
                good = false;
                exec::say(format_args!("FAILED: {node}: {error:#}"));
            }
        }
    }
    Ok(good)
}

/// The report line of one node; an error if it has divergences or does not use the requested path.
fn judge(status: &Value, datapath: &str) -> Result<String> {
    let (path, reason) = (text(&status["path"])?, text(&status["reason"])?);
    if path == "ovs" {
        if datapath == "ebpf" {
            bail!("path ovs, where ebpf was asked for: {reason}");
        }
        return Ok(format!("path ovs ({reason}): nothing is remembered that could diverge"));
    }
    let reasons = status["packetReasons"].as_object().context("slipctl status has no packetReasons")?;
    // Counters of 0 are left out of the status.
    let count =
        |name: &str| reasons.get(name).map_or(Some(0), Value::as_u64).with_context(|| name.to_owned());
    let told = status["cache"]["divergences"].as_u64().context("slipctl status has no cache.divergences")?;
    let (diverged, learned) = (count(DIVERGED)?.max(told), count(LEARNED)?);
    if diverged > 0 {
        bail!(
            "divergence: {diverged} of OVS's answers were other than those remembered ({learned} flows learned)"
        );
    }
    Ok(format!("path ebpf, {learned} flows learned, divergence: 0"))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("slipctl status has no path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(path: &str, reasons: &Value, told: u64) -> Value {
        json!({"path": path, "reason": "x", "packetReasons": reasons, "cache": {"divergences": told}})
    }

    #[test]
    fn a_divergence_that_anybody_counted_is_a_failure() {
        let learned = json!({"learned": 9});
        assert!(judge(&status("ebpf", &learned, 0), "ebpf").unwrap().contains("divergence: 0"));
        assert!(judge(&status("ebpf", &json!({"learned": 9, "diverged": 1}), 0), "auto").is_err());
        assert!(judge(&status("ebpf", &learned, 1), "auto").is_err());
    }

    #[test]
    fn a_node_without_the_path_that_was_asked_for_proves_nothing() {
        assert!(judge(&status("ovs", &json!({}), 0), "ebpf").is_err());
        assert!(judge(&status("ovs", &json!({}), 0), "ovs").is_ok());
        assert!(judge(&json!({}), "auto").is_err(), "what cannot be read is no zero");
    }
}

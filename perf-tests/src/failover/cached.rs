//! Whether the flows are in the flow caches of their nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use testbed::bed::Bed;
use testbed::exec::retry;
use testbed::tools::load::PORT;

use crate::fastpath::cluster::is_used;

/// How long flows may take to be cached: after a restart of OVS the agents wait for ovn-controller.
const LEARN: Duration = Duration::from_secs(20);
/// The nodes, and by how many protocols and destinations the flows lead there or from there.
const NODES: [(&str, usize); 2] = [("n1", 6), ("n2", 2)];

/// Waits until all are. Whether they are then.
pub(super) fn wait(bed: &Bed) -> Result<bool> {
    let all = || -> Result<()> {
        for (node, expected) in NODES {
            // While it does not see OVS, cached flows go on for the rest of a hold that began before.
            let sight = bed.agent(node).status()?["cache"]["sight"].clone();
            anyhow::ensure!(sight == "open", "the agent of {node} does not see OVS: {sight}");
            let flows: Vec<Value> = bed.agent(node).slipctl_json(&["flows", "--limit", "100000"])?;
            let found = used(&flows).len();
            anyhow::ensure!(found >= expected, "{node} has {found} of {expected} flows in its cache");
        }
        Ok(())
    };
    let told = retry(LEARN, "all flows are cached", all);
    if let Err(error) = &told {
        testbed::ui::say(format_args!("{error:#}"));
    }
    Ok(told.is_ok())
}

/// Protocols and destinations of the flows of slipctl's list that are ours, valid and used.
fn used(flows: &[Value]) -> BTreeSet<(&str, &str)> {
    let ours = flows.iter().filter(|flow| is_used(flow, PORT));
    ours.filter_map(|flow| Some((flow["protocol"].as_str()?, flow["destination"].as_str()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_valid_and_used_and_ours_counts() {
        let flow = |protocol: &str, to: &str, valid: bool, packets: u64| json!({"protocol": protocol, "source": "10.0.0.1:1", "destination": to, "valid": valid, "packets": packets});
        let list = [
            flow("udp", "10.0.0.2:7000", true, 3),
            flow("udp", "10.0.0.2:7000", true, 9),
            flow("tcp", "10.0.0.2:7000", true, 3),
            flow("tcp", "10.0.0.3:7000", false, 3),
            flow("tcp", "10.0.0.4:7000", true, 0),
            flow("tcp", "10.0.0.5:7001", true, 3),
        ];
        assert_eq!(used(&list), BTreeSet::from([("udp", "10.0.0.2:7000"), ("tcp", "10.0.0.2:7000")]));
    }
}

//! The flows of the gateway bridge, as a set: cookies and order are left out.

use anyhow::Result;
use serde_json::{Value, json};

use testbed::cluster::Bed;
use testbed::exec;

/// The flows in what was kept about a node.
pub(super) fn expected(state: &str) -> Value {
    let flows = state.split("### breth0 flows\n").nth(1).unwrap_or_default();
    rows(flows.lines().take_while(|l| !l.starts_with("###")))
}

/// The flows of a node.
pub(super) fn actual(bed: &Bed, node: &str) -> Result<Value> {
    let mut command = bed.host(node).command(bed.config().ovs("ovs-ofctl"))?;
    command.args(["--names", "--no-stats", "dump-flows", "breth0"]);
    Ok(rows(exec::output(command.env("OVS_RUNDIR", "/run/openvswitch"))?.lines()))
}

/// One row a flow, named by its text.
fn rows<'a>(lines: impl Iterator<Item = &'a str>) -> Value {
    let rows: Vec<_> =
        lines.map(normal).filter(|l| l.contains("actions=")).map(|l| json!({ "_name": l })).collect();
    json!({ "flows": rows })
}

/// A flow without its cookie. In interposed mode the uplink's port has another name.
fn normal(line: &str) -> String {
    let line = line.trim();
    let line = match line.strip_prefix("cookie=").and_then(|l| l.split_once(", ")) {
        Some((_, rest)) => rest,
        None => line,
    };
    line.replace("\"so-eth0\"", "eth0").replace("so-eth0", "eth0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flows_of_the_reference_are_read_without_cookies() {
        let state = "### nft\nx\n### breth0 flows\ncookie=0x1, priority=9,in_port=eth0 actions=drop\npriority=0 actions=NORMAL\n";
        let expected = json!({"flows": [{"_name": "priority=9,in_port=eth0 actions=drop"}, {"_name": "priority=0 actions=NORMAL"}]});
        assert_eq!(super::expected(state), expected);
    }

    #[test]
    fn the_far_end_of_the_uplinks_pair_counts_as_the_uplink() {
        assert_eq!(
            normal(" cookie=0x9, in_port=\"so-eth0\" actions=output:\"so-eth0\""),
            "in_port=eth0 actions=output:eth0"
        );
    }
}

//! `slipctl status --all-nodes`: one line for each node, and what is wrong on it.

use api::admin::Status;
use serde_json::{Value, json};

use super::Reach;
use crate::client::Error;
use crate::table::{Column, table};

/// The status of every node: the agent's answer, or why there is none.
///
/// # Errors
/// The nodes cannot be listed.
pub(crate) fn status(reach: &Reach) -> Result<Value, Error> {
    let mut all = Vec::new();
    for node in reach.list(&["nodes"])? {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let answer = reach.on_node(name, &["slipctl", "-o", "json", "status"]);
        let status = answer.and_then(|text| {
            serde_json::from_str::<Value>(&text)
                .map_err(|error| Error::Program(format!("node {name}: {error}")))
        });
        all.push(match status {
            Ok(status) => json!({ "node": name, "status": status }),
            Err(error) => json!({ "node": name, "error": error.to_string() }),
        });
    }
    Ok(all.into())
}

/// The statuses as a table.
pub(crate) fn text(all: &[Value]) -> String {
    let columns = ["NODE", "READY", "PATH", "PODS", "FLOWS", "AGENT", "WHAT"].map(Column::Left);
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table(&columns, &rows)
}

fn row(one: &Value) -> Vec<String> {
    let node = one["node"].as_str().unwrap_or_default().to_owned();
    let status = match serde_json::from_value::<Status>(one["status"].clone()) {
        Ok(status) => status,
        Err(error) => {
            let what = one["error"].as_str().map_or_else(|| error.to_string(), str::to_owned);
            return [node.as_str(), "?", "?", "?", "?", "?", &what].map(str::to_owned).to_vec();
        }
    };
    let flows: u64 =
        status.maps.iter().filter(|map| map.map.starts_with("FLOWS")).map(|map| map.entries).sum();
    let mut what: Vec<String> = status.problems.iter().chain(&status.warnings).cloned().collect();
    if what.is_empty() {
        what.push(status.path.reason.clone());
    }
    let ready = if status.ready { "yes" } else { "no" };
    vec![
        node,
        ready.to_owned(),
        status.path.path.name().to_owned(),
        status.endpoints.len().to_string(),
        flows.to_string(),
        status.versions.agent.clone(),
        what.join("; "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_answer_is_a_line_too() {
        let good = json!({
            "node": "n1", "path": "ebpf", "reason": "eligible", "attach": "direct", "ovsDatapath": "system",
            "ready": true, "problems": [], "cache": null,
            "versions": {"agent": "0.1.0", "programs": null, "mapLayout": 2, "kernel": "6.1", "ovs": null},
            "endpoints": [], "maps": [{"map": "FLOWS", "entries": 7, "capacity": 9}], "packetReasons": {}
        });
        let all =
            [json!({"node": "n1", "status": good}), json!({"node": "n2", "error": "no pod runs there"})];
        assert_eq!(
            text(&all),
            "NODE  READY  PATH  PODS  FLOWS  AGENT  WHAT\nn1    yes    ebpf  0     7      0.1.0  eligible\n\
             n2    ?      ?     ?     ?      ?      no pod runs there\n"
        );
    }
}

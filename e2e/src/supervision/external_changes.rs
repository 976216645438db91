//! What another program changes on a node while the agent runs: the agent restores or reports it.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use testbed::cluster::Bed;
use testbed::exec;

/// How long the agent may take.
const SOON: Duration = Duration::from_secs(15);
/// Settings of the agent, and the values that another program gives them.
const SETTINGS: [(&str, &str); 2] = [("system-id", "another"), ("ovn-bridge-mappings", "physnet:br-other")];
/// A configuration that the container runtime takes before ours.
const CONFIGURATION: &str = "/etc/cni/net.d/05-another.conf";
/// The condition that tells of it.
const CONDITION: &str = api::annotation::CNI_CONFIGURATION_IN_USE;

/// Settings of ovn-controller that another program changes are restored.
pub(super) fn settings(bed: &Bed, node: &str) -> Result<String> {
    for (key, value) in SETTINGS {
        let get = || bed.vsctl(node, &["get", "Open_vSwitch", ".", &format!("external_ids:{key}")]);
        let before = get()?;
        bed.vsctl(node, &["set", "Open_vSwitch", ".", &format!("external_ids:{key}={value}")])?;
        exec::retry(SOON, "it is put back", || {
            let now = get()?;
            ensure!(now == before, "{key} is {now}, it was {before}");
            Ok(())
        })?;
    }
    let counted = bed.agent(node).metrics()?.sum("slipstream_node_chassis_settings_restored_total", &[])?;
    ensure!(counted >= 2, "{counted} settings were counted");
    Ok(String::new())
}

/// Another plugin's configuration before ours is a condition of the node.
pub(super) fn configuration(bed: &Bed, node: &str) -> Result<String> {
    condition(bed, node, "True ")?;
    let file = bed.host(node).path(CONFIGURATION)?;
    fs::write(&file, "{}")?;
    let told = condition(bed, node, &format!("False the container runtime uses {CONFIGURATION} instead of "));
    fs::remove_file(&file)?;
    told?;
    condition(bed, node, "True ")?;
    Ok(String::new())
}

/// Waits until the condition's status and message begin so.
fn condition(bed: &Bed, node: &str, wanted: &str) -> Result<()> {
    let of = |field: &str| format!("{{.status.conditions[?(@.type==\"{CONDITION}\")].{field}}}");
    let query = format!("jsonpath={} {}", of("status"), of("message"));
    exec::retry(SOON, "the condition says so", || {
        let said = bed.kubectl(&["get", "node", node, "-o", &query])?;
        if said.starts_with(wanted) { Ok(()) } else { bail!("it says {said:?}, not {wanted:?}") }
    })
}

//! That every program is loaded, attached, and sees packets: by what is pinned, and by what each program counts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::harness::Checks;
use testbed::cluster::Bed;

/// Where the agents pin, see `bed::node`.
const PINS: &str = "/sys/fs/bpf/slipstream";

/// The links of one node.
pub(super) fn check(bed: &Bed, node: &str, checks: &mut Checks) {
    let pinned = || -> Result<String> {
        let pins = bed.host(node).path(PINS)?;
        let uplink = programs(&pins.join("uplink"))?;
        ensure!(uplink == set(&["from_uplink", "to_uplink"]), "on the uplink: {uplink:?}");
        let endpoints = pins.join("endpoints");
        let mut count = 0;
        for endpoint in fs::read_dir(&endpoints).with_context(|| endpoints.display().to_string())? {
            let found = programs(&endpoint?.path())?;
            ensure!(found == set(&["from_pod", "to_pod"]), "on a pod: {found:?}");
            count += 1;
        }
        ensure!(count == 2, "{count} pods have programs instead of 2");
        Ok(format!("uplink and {count} pods"))
    };
    let what = format!("{node}: every program is attached");
    checks.check(what, pinned().map_err(|e| format!("{e:#}")));
    // Each direction of each kind of port is counted by a program of its own.
    let counted = || -> Result<String> {
        let metrics = bed.agent(node).metrics()?;
        let mut shown = Vec::new();
        for (metric, direction) in
            [("tunnel", "in"), ("tunnel", "out"), ("endpoint", "from"), ("endpoint", "to")]
        {
            let name = format!("slipstream_node_{metric}_packets_total");
            let packets = metrics.sum(&name, &[("direction", direction)])?;
            ensure!(packets > 0, "{metric} packets, {direction}: none");
            shown.push(format!("{metric} {direction} {packets}"));
        }
        Ok(shown.join(", "))
    };
    checks.check(format_args!("{node}: every program sees packets"), counted().map_err(|e| format!("{e:#}")));
}

/// The programs that are pinned in a directory: `PROGRAM-IFINDEX`.
fn programs(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    Ok(names.map(|name| name.rsplit_once('-').map_or(name.clone(), |(program, _)| program.into())).collect())
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

//! Networks as text.

use api::virtual_network::{VirtualNetworkSpec, VirtualNetworkStatus, condition};
use serde::Deserialize;
use serde_json::Value;

use crate::table::{Column, pairs, table};

fn name(object: &Value) -> String {
    let part = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", part("namespace"), part("name"))
}

fn status(object: &Value) -> VirtualNetworkStatus {
    VirtualNetworkStatus::deserialize(&object["status"]).unwrap_or_default()
}

/// One line for each network.
pub(super) fn list(all: &[Value]) -> String {
    let columns = [
        Column::Left("NETWORK"),
        Column::Left("SCOPE"),
        Column::Left("REACH"),
        Column::Left("SUBNETS"),
        Column::Left("READY"),
        Column::Right("USED"),
        Column::Right("FREE"),
    ];
    let row = |object: &Value| {
        let spec = VirtualNetworkSpec::read(&object["spec"]).unwrap_or_default();
        let status = status(object);
        let ready = if status.is(condition::READY) { "yes" } else { "no" };
        vec![
            name(object),
            spec.scope.to_string(),
            spec.reach.to_string(),
            spec.subnets.join(","),
            ready.to_owned(),
            status.addresses_used.to_string(),
            status.addresses_free.to_string(),
        ]
    };
    table(&columns, &all.iter().map(row).collect::<Vec<_>>())
}

/// A network with what the controller says of it.
pub(super) fn one(object: &Value) -> String {
    let spec = VirtualNetworkSpec::read(&object["spec"]).unwrap_or_default();
    let status = status(object);
    let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    let mut lines = vec![
        ("Network", name(object)),
        ("Scope", spec.scope.to_string()),
        (
            "Reach",
            spec.localnet
                .as_ref()
                .map_or_else(|| spec.reach.to_string(), |net| format!("{}: {net}", spec.reach)),
        ),
        ("Subnets", spec.subnets.join(", ")),
        ("Gateways", or(spec.gateways.join(", "), "the first address of each subnet")),
        ("Peers", or(spec.peers.join(", "), "none")),
        ("Excluded", or(spec.excluded_ranges.join(", "), "nothing")),
        ("MTU", spec.mtu.map_or_else(|| "the cluster's".to_owned(), |mtu| mtu.to_string())),
        ("MAC prefix", spec.mac_prefix.clone().unwrap_or_else(|| "0a:58".to_owned())),
        (
            "Lifecycle",
            match spec.is_persistent() {
                true => "addresses of a StatefulSet's pods are kept while the pods are away",
                false => "addresses end with their pods, but those of IPAMClaims that pods name",
            }
            .to_owned(),
        ),
        (
            "Interfaces",
            format!("{} have addresses, {} more could", status.addresses_used, status.addresses_free),
        ),
    ];
    for (kind, label) in
        [(condition::READY, "Ready"), (condition::CONFLICT, "Conflict"), (condition::IN_USE, "In use")]
    {
        let found = status.conditions.iter().find(|one| one.kind == kind);
        let text =
            found.map(|one| format!("{}: {}", if one.status == "True" { "yes" } else { "no" }, one.message));
        lines.push((label, text.unwrap_or_else(|| "the controller has said nothing yet".to_owned())));
    }
    let reached = status.conditions.iter().find(|one| one.kind == condition::PEERS);
    lines.extend(reached.map(|one| ("Reaches", one.message.clone())));
    pairs(&lines)
}

/// Why a network that is being deleted stays, if pods are attached to it.
pub(super) fn in_use(object: &Value) -> Option<String> {
    let status = status(object);
    let found = status.conditions.iter().find(|one| one.kind == condition::IN_USE && one.status == "True");
    found.map(|one| one.message.clone())
}

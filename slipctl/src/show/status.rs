//! Output of `slipctl status` and `slipctl path`.

use std::collections::BTreeMap;

use api::admin::Status;
use api::admin::{Cache, MonitorHealth, NodePath, PathStatus};

use super::{pod_or_container, short_id};
use crate::table::{Column, pairs, table};
use crate::units::{percent, span};

/// Renders the status of the node, its pods, maps and packet reasons.
pub(crate) fn text(status: &Status) -> String {
    let mut list = vec![("Node", status.node.clone()), ("Path", reasoned(&status.path))];
    if let Some(cache) = &status.cache {
        list.extend(cache_lines(cache));
    }
    let versions = &status.versions;
    let programs = versions.programs.as_deref().unwrap_or("none (agent built without an eBPF toolchain)");
    list.extend([
        ("Attach", format!("{}, OVS datapath {}", status.attach, status.ovs_datapath)),
        ("XDP", if status.xdp.is_empty() { "off".to_owned() } else { status.xdp.clone() }),
        (
            "Ready",
            if status.ready { "yes".to_owned() } else { format!("no: {}", status.problems.join("\n")) },
        ),
        ("Agent", format!("{}, programs {programs}, map layout {}", versions.agent, versions.map_layout)),
        ("Kernel", versions.kernel.clone()),
        (
            "OVS",
            versions.ovs.clone().unwrap_or_else(|| "unknown (no ovs_version in its database)".to_owned()),
        ),
    ]);
    if !status.warnings.is_empty() {
        list.push(("Warnings", status.warnings.join("\n")));
    }
    let mut out = pairs(&list);
    out.push('\n');
    out.push_str(&endpoints(status));
    for part in [maps(status), packet_reasons(status)].into_iter().flatten() {
        out.push('\n');
        out.push_str(&part);
    }
    out
}

/// Renders the result of `slipctl path node`.
pub(crate) fn path(wanted: NodePath, now: &PathStatus) -> String {
    format!("requested {}, now {}\n", wanted.name(), reasoned(now))
}

pub(super) fn reasoned(path: &PathStatus) -> String {
    let name = path.path.name();
    if path.reason.is_empty() { name.to_owned() } else { format!("{name}: {}", path.reason) }
}

fn cache_lines(cache: &Cache) -> Vec<(&'static str, String)> {
    let gate = cache.gate;
    let modes = [(gate.forward, "forward"), (gate.learn, "learn"), (gate.tcp, "tcp"), (gate.hold, "hold")];
    let modes: Vec<_> = modes.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    let modes = if modes.is_empty() { "none".to_owned() } else { modes.join(", ") };
    let epoch = cache.epoch.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
    let underlay = cache
        .underlay
        .as_ref()
        .map_or_else(|| "none".to_owned(), |u| format!("{}, MAC {}, MTU {}", u.address, u.mac, u.mtu));
    let mut lines = vec![
        ("Requested path", cache.wanted.name().to_owned()),
        ("TCP", reasoned(&cache.tcp)),
        ("Tunnel", reasoned(&cache.tunnel)),
        ("Gateway", reasoned(&cache.gateway)),
        ("Underlay", underlay),
        ("Epoch", epoch),
        ("Modes", format!("{modes}; refresh after {}", span(cache.refresh_ms))),
        ("OVS monitor", monitor(cache)),
        ("Invalidations by cause", by_cause(&cache.invalidations)),
        ("Scoped changes", by_cause(&cache.scoped_changes)),
        ("Divergences", cache.divergences.to_string()),
    ];
    if !cache.tracking_unheard.is_empty() {
        lines.push(("Connection tracking", format!("ends are not heard of: {}", cache.tracking_unheard)));
    }
    if !cache.unscoped_reason.is_empty() {
        lines.push(("Scopes", format!("each change of flows ends all entries: {}", cache.unscoped_reason)));
    }
    if !cache.slow_services.is_empty() {
        lines.push(("Services kept off", cache.slow_services.join(", ")));
    }
    lines
}

fn by_cause(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<_> = counts.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn monitor(cache: &Cache) -> String {
    let (state, held) = match (cache.monitor, cache.hold_ms) {
        (MonitorHealth::Synced, _) => ("synced", String::new()),
        (MonitorHealth::GracePeriod, Some(ms)) => ("lost, grace period for", format!(" {}", span(ms))),
        (MonitorHealth::GracePeriod, None) => ("lost, grace period", String::new()),
        (MonitorHealth::Stale, _) => ("lost, all packets through OVS", String::new()),
    };
    let why =
        if cache.unsynced_reason.is_empty() { String::new() } else { format!(": {}", cache.unsynced_reason) };
    format!("{state}{held}{why}")
}

fn endpoints(status: &Status) -> String {
    if status.endpoints.is_empty() {
        return "no pods on this node\n".to_owned();
    }
    let columns = [
        Column::Left("POD"),
        Column::Left("PATH"),
        Column::Left("ADDRESSES"),
        Column::Left("CONTAINER"),
        Column::Left("REASON"),
    ];
    let rows: Vec<_> = status
        .endpoints
        .iter()
        .map(|e| {
            vec![
                pod_or_container(e.pod.as_deref(), &e.id),
                e.path.path.name().to_owned(),
                e.addresses.join(","),
                short_id(&e.id),
                e.path.reason.clone(),
            ]
        })
        .collect();
    table(&columns, &rows)
}

fn maps(status: &Status) -> Option<String> {
    let columns =
        [Column::Left("MAP"), Column::Right("ENTRIES"), Column::Right("CAPACITY"), Column::Right("FULL")];
    let rows: Vec<_> = status
        .maps
        .iter()
        .map(|m| {
            let full = api::admin::share(m.entries, m.capacity.saturating_sub(m.entries));
            vec![m.map.clone(), m.entries.to_string(), m.capacity.to_string(), percent(full)]
        })
        .collect();
    (!rows.is_empty()).then(|| table(&columns, &rows))
}

fn packet_reasons(status: &Status) -> Option<String> {
    let rows: Vec<_> =
        status.packet_reasons.iter().map(|(reason, count)| vec![reason.clone(), count.to_string()]).collect();
    (!rows.is_empty()).then(|| table(&[Column::Left("PACKET REASON"), Column::Right("COUNT")], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "node": "n1", "path": "ebpf", "reason": "eligible", "attach": "interposed",
            "ovsDatapath": "netdev", "ready": true, "problems": [],
            "cache": {
                "wanted": "auto", "tcp": {"path": "ovs", "reason": "sequence check is on"},
                "tunnel": {"path": "ebpf", "reason": ""},
                "underlay": {"address": "172.18.0.2", "mac": "02:42:ac:12:00:02", "mtu": 1500},
                "epoch": 17, "gate": {"forward": true, "learn": true, "tcp": false, "hold": false},
                "sight": "hold", "blind": "connection closed by OVS", "holdMs": 1_500, "refreshMs": 2_000,
                "bumps": {"flows": 3}, "divergences": 0
            },
            "versions": {"agent": "0.1.0", "programs": "00ff", "mapLayout": 2, "kernel": "6.18.44", "ovs": "3.5.0"},
            "endpoints": [
                {"id": "c0ffee01c0ffee01", "pod": "default/web-1", "addresses": ["10.244.0.3/24"],
                 "path": "ovs", "reason": "requested"}
            ],
            "maps": [{"map": "FLOWS", "entries": 1, "capacity": 4}],
            "packetReasons": {"fragment": 2}
        }))
        .unwrap()
    }

    #[test]
    fn every_path_stands_with_its_reason() {
        let text = text(&status());
        for line in [
            "Path                    ebpf: eligible\n",
            "TCP                     ovs: sequence check is on\n",
            "Tunnel                  ebpf\n",
            "Modes                   forward, learn; refresh after 2.0s\n",
            "OVS monitor             lost, grace period for 1.5s: connection closed by OVS\n",
            "Invalidations by cause  flows 3\n",
            "Agent                   0.1.0, programs 00ff, map layout 2\n",
            "default/web-1  ovs   10.244.0.3/24  c0ffee01c0ff  requested\n",
            "FLOWS        1         4  25.0%\n",
            "fragment           2\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_xdp_program_is_shown_with_its_reason() {
        let mut status = status();
        assert!(
            text(&status).contains("XDP                     off\n"),
            "an agent that does not say has none"
        );
        status.xdp = "not attached: the uplink's driver has no native XDP".to_owned();
        let line = "XDP                     not attached: the uplink's driver has no native XDP\n";
        assert!(text(&status).contains(line));
    }

    #[test]
    fn warnings_are_shown_where_there_are_some() {
        let mut status = status();
        assert!(!text(&status).contains("Warnings"));
        status.warnings = vec!["gateway: the MTU is too large".to_owned()];
        assert!(text(&status).contains("Warnings                gateway: the MTU is too large\n"));
    }

    #[test]
    fn services_that_are_kept_off_the_cache_are_shown_where_there_are_some() {
        let mut status = status();
        assert!(!text(&status).contains("Services kept off"));
        status.cache.as_mut().unwrap().slow_services = vec!["shop/db".to_owned(), "shop/web".to_owned()];
        assert!(text(&status).contains("Services kept off       shop/db, shop/web\n"), "{}", text(&status));
    }

    #[test]
    fn ends_of_connections_that_are_not_heard_of_are_shown() {
        let mut status = status();
        assert!(!text(&status).contains("Connection tracking"));
        status.cache.as_mut().unwrap().tracking_unheard = "Operation not permitted".to_owned();
        assert!(
            text(&status).contains("ends are not heard of: Operation not permitted\n"),
            "{}",
            text(&status)
        );
    }

    #[test]
    fn a_node_without_ebpf_says_why_and_shows_no_empty_tables() {
        let mut status = status();
        status.cache = None;
        status.path = PathStatus::ovs("kernel 5.10 is too old");
        status.ready = false;
        status.problems = vec!["ovs: not connected".to_owned(), "pods: not read".to_owned()];
        (status.maps, status.endpoints) = (Vec::new(), Vec::new());
        let text = text(&status);
        assert!(text.contains("Path    ovs: kernel 5.10 is too old\n"), "{text}");
        assert!(text.contains("Ready   no: ovs: not connected\n        pods: not read\n"), "{text}");
        assert!(
            text.contains("no pods on this node") && !text.contains("MAP") && !text.contains("Modes"),
            "{text}"
        );
    }
}

//! Output of `slipctl flows`.

use api::admin::{Action, Flow, TunnelEnd};

use super::pod_or_container;
use crate::table::{Column, table};
use crate::units::{short_count, span};

const COLUMNS: [Column; 11] = [
    Column::Left("POD"),
    Column::Left("PROTO"),
    Column::Left("SOURCE"),
    Column::Left("DESTINATION"),
    Column::Left("TRANSLATED"),
    Column::Left("SERVICE"),
    Column::Left("ACTION"),
    Column::Right("AGE"),
    Column::Right("PACKETS"),
    Column::Right("EPOCH"),
    Column::Left("STATE"),
];

/// Renders flows as a table.
pub(crate) fn text(flows: &[Flow], limit: usize) -> String {
    if flows.is_empty() {
        return "no cached flows\n".to_owned();
    }
    let rows: Vec<_> = flows.iter().map(row).collect();
    let mut out = table(&COLUMNS, &rows);
    if flows.len() >= limit {
        out.push_str(&format!("list limited to {limit} flows; use --limit N for more\n"));
    }
    out
}

fn row(flow: &Flow) -> Vec<String> {
    vec![
        pod_or_container(flow.pod.as_deref(), &flow.endpoint),
        flow.flow.protocol.to_string(),
        flow.flow.source.to_string(),
        flow.flow.destination.to_string(),
        translated(flow),
        flow.service.clone().unwrap_or_else(|| "-".to_owned()),
        action(&flow.action),
        span(flow.age_ms),
        short_count(flow.packets),
        flow.epoch.to_string(),
        state(flow).to_owned(),
    ]
}

/// What OVS makes of source and destination; `-` where it leaves both.
fn translated(flow: &Flow) -> String {
    let Some(to) = flow.translated else { return "-".to_owned() };
    match (to.source == flow.flow.source, to.destination == flow.flow.destination) {
        (true, _) => format!("to {}", to.destination),
        (false, true) => format!("from {}", to.source),
        (false, false) => format!("from {} to {}", to.source, to.destination),
    }
}

/// State of an entry: `valid` is in use; `probing` is in use while a revalidation packet is inside OVS; `waiting` is unused until
/// the other direction of the connection is cached; `ovs` is of a service that is kept off the cache; `diverged` is unused in this epoch, as OVS's verdict differed; `stale` belongs
/// to an earlier epoch, or something that concerns it has changed, and is never used again.
fn state(flow: &Flow) -> &'static str {
    match flow {
        Flow { valid: true, probing: false, .. } => "valid",
        Flow { valid: true, probing: true, .. } => "probing",
        Flow { slow: true, .. } => "ovs",
        Flow { waiting: true, .. } => "waiting",
        Flow { diverged: true, .. } => "diverged",
        _ => "stale",
    }
}

/// Action of a flow with its remote node or local pod.
pub(crate) fn action(action: &Action) -> String {
    match action {
        Action::Tunnel(end) => format!("tunnel to {}", tunnel(end)),
        Action::Deliver(end) => format!("deliver from {}", tunnel(end)),
        Action::Local { to, pod } => format!("local to {}", pod_or_container(pod.as_deref(), to)),
    }
}

fn tunnel(end: &TunnelEnd) -> String {
    let node = end.node.clone().unwrap_or_else(|| end.remote.to_string());
    format!("{node} vni {}", end.vni)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows() -> Vec<Flow> {
        serde_json::from_value(serde_json::json!([
            {"endpoint": "c0ffee0100000000", "pod": "default/web-1", "protocol": "tcp",
             "source": "10.244.0.3:40000", "destination": "10.96.0.9:80",
             "translated": {"source": "10.244.0.3:40000", "destination": "10.244.1.4:8080"}, "service": "shop/web:http",
             "action": {"kind": "tunnel", "remote": "172.18.0.3", "node": "n2", "vni": 4, "option": 131_076},
             "ttlStep": 1, "epoch": 7, "valid": true, "waiting": false, "diverged": false, "probing": false, "ageMs": 61_000, "refreshInMs": 900,
             "packets": 123_456},
            {"endpoint": "c0ffee0100000000", "pod": null, "protocol": "udp",
             "source": "[fd00::3]:53", "destination": "[fd00::4]:5353",
             "action": {"kind": "local", "to": "c0ffee0200000000", "pod": null},
             "ttlStep": 0, "epoch": 6, "valid": false, "waiting": false, "diverged": false, "probing": true, "ageMs": 5, "refreshInMs": -3,
             "packets": 0}
        ]))
        .unwrap()
    }

    #[test]
    fn a_flow_is_one_line_and_says_whether_it_is_used() {
        assert_eq!(
            text(&flows(), 10),
            "POD            PROTO  SOURCE            DESTINATION     TRANSLATED          SERVICE        ACTION                   AGE  PACKETS  EPOCH  STATE\n\
             default/web-1  tcp    10.244.0.3:40000  10.96.0.9:80    to 10.244.1.4:8080  shop/web:http  tunnel to n2 vni 4     1m01s   123.5k      7  valid\n\
             c0ffee010000   udp    [fd00::3]:53      [fd00::4]:5353  -                   -              local to c0ffee020000    5ms        0      6  stale\n"
        );
    }

    #[test]
    fn a_list_that_may_be_cut_says_so_and_an_empty_one_too() {
        assert!(text(&flows(), 2).contains("limited to 2 flows"));
        assert_eq!(text(&[], 2), "no cached flows\n");
    }
}

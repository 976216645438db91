//! Output of `slipctl tunnels`.

use api::admin::{ByPath, TunnelCounters};

use crate::table::{Column, table};
use crate::units::{percent, short_count};

const COLUMNS: [Column; 9] = [
    Column::Left("NODE"),
    Column::Left("REMOTE"),
    Column::Right("VNI"),
    Column::Left("DIR"),
    Column::Right("FAST PACKETS"),
    Column::Right("BYTES"),
    Column::Right("SLOW PACKETS"),
    Column::Right("BYTES"),
    Column::Right("HIT"),
];

/// Renders a line for received and a line for sent packets of each tunnel and VNI.
pub(crate) fn text(tunnels: &[TunnelCounters]) -> String {
    if tunnels.is_empty() {
        return "no tunnel packets yet\n".to_owned();
    }
    let rows: Vec<_> = tunnels
        .iter()
        .flat_map(|tunnel| [row(tunnel, "in", &tunnel.received), row(tunnel, "out", &tunnel.sent)])
        .collect();
    table(&COLUMNS, &rows)
}

fn row(tunnel: &TunnelCounters, direction: &str, by_path: &ByPath) -> Vec<String> {
    vec![
        tunnel.node.clone().unwrap_or_else(|| "-".to_owned()),
        tunnel.remote.to_string(),
        tunnel.vni.to_string(),
        direction.to_owned(),
        by_path.fast.packets.to_string(),
        short_count(by_path.fast.bytes),
        by_path.slow.packets.to_string(),
        short_count(by_path.slow.bytes),
        percent(by_path.hit_ratio),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::admin::Amount;

    #[test]
    fn a_tunnel_has_a_line_for_each_direction_with_its_share_of_fast_packets() {
        let amount = |packets, bytes| Amount { packets, bytes };
        let tunnel = TunnelCounters {
            remote: "172.18.0.3".parse().unwrap(),
            node: Some("n2".to_owned()),
            vni: 4,
            received: ByPath::new(amount(3, 4_500), amount(1, 100)),
            sent: ByPath::new(amount(0, 0), amount(0, 0)),
        };
        assert_eq!(
            text(&[tunnel]),
            "NODE  REMOTE      VNI  DIR  FAST PACKETS  BYTES  SLOW PACKETS  BYTES    HIT\n\
             n2    172.18.0.3    4  in              3   4.5k             1    100  75.0%\n\
             n2    172.18.0.3    4  out             0      0             0      0      -\n"
        );
    }
}

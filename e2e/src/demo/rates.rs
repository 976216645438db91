//! Requests per second by every way, by the flow cache and by OVS alone, one after the other on the same cluster.

use anyhow::Result;

use super::table;
use super::ways::{Scene, Way};
use testbed::cluster::Bed;
use testbed::ui::say;

/// Requests of a connection.
const COUNT: u64 = 3000;

/// Measures and prints. The nodes' paths are as before afterwards.
pub(super) fn show(bed: &Bed) -> Result<()> {
    let scene = Scene::set(bed)?;
    let mut rows = vec![["way", "TCP cached", "OVS", "", "UDP cached", "OVS", ""].map(str::to_owned)];
    for way in scene.ways() {
        let mut row = vec![format!("{}{}", way.what, if way.to.is_ipv6() { ", IPv6" } else { "" })];
        for udp in [false, true] {
            let cached = rate(&scene, way, udp)?;
            let outcome = set(bed, way, "ovs").and_then(|()| rate(&scene, way, udp));
            // Whatever came of it.
            set(bed, way, "auto")?;
            let ovs = outcome?;
            row.extend([per_second(cached), per_second(ovs), format!("{:.1}x", cached / ovs)]);
        }
        rows.extend(<[String; 7]>::try_from(row));
    }
    say("Requests per second of one connection, 64 bytes, from the median of the round trips:");
    table::columns(&rows);
    scene.clear()
}

fn set(bed: &Bed, way: &Way, path: &str) -> Result<()> {
    way.nodes.iter().try_for_each(|node| bed.agent(node).slipctl(&["path", "node", path]).map(drop))
}

/// Requests per second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(scene: &Scene<'_>, way: &Way, udp: bool) -> Result<f64> {
    // Entries are there afterwards, and the next hops are known.
    scene.round_trips(way, udp, 200)?;
    let seen = scene.round_trips(way, udp, COUNT)?;
    Ok(1e9 / seen.p50_ns.max(1) as f64)
}

fn per_second(rate: f64) -> String {
    let text = format!("{rate:.0}");
    let cut = text.len().saturating_sub(3);
    match text.split_at_checked(cut) {
        Some((thousands, rest)) if !thousands.is_empty() => format!("{thousands},{rest}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([4.0, 999.4, 1000.0, 66_012.3].map(per_second), ["4", "999", "1,000", "66,012"]);
    }
}

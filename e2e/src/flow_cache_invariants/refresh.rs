//! Section 4.4: a refresh keeps OVS's connection tracking alive. The entries of busy flows must have nearly their full timeout left at
//! every look, although the cache carries nearly all of their packets. When the flows end the rest must shrink, or else it was not the
//! flows that kept the entries.
//!
//! Nothing shortens the timeouts: OVS 3.5 accepts a zone's timeout policy (`ovs-vsctl add-zone-tp netdev …`), but its userspace
//! datapath continues with 60 s for UDP. The remaining time shows more, and sooner.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::Stage;
use super::load_pods::NAMESPACE;
use super::scene::{FLOWS, Scene};
use testbed::cluster::Bed;
use testbed::tools::load::{Order, PORT};

/// How often, a second apart, there is a look.
const LOOKS: u32 = 14;
/// Seconds by which the rest may be below the full timeout: refresh, slack and grace (2.4 s), and OVS's resolution of one second.
const LESS: u64 = 4;
/// Looks after the end of the flows.
const AFTER: u64 = 8;

/// Where a flow is tracked: the pod whose zone it is, its node, the zone.
struct Place {
    pod: &'static str,
    node: String,
    zone: String,
}

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut scene = Scene::new(stage.bed).await?;
    let mut places = Vec::new();
    for (pod, node) in [("a", &scene.nodes[0]), ("b", &scene.nodes[1])] {
        let zone = zone(stage.bed, node, pod).with_context(|| format!("zone of {pod}"))?;
        places.push(Place { pod, node: node.clone(), zone });
    }
    scene.dial().await?;
    let to = scene.pods.ip("b")?.to_string();
    let entries: Vec<_> = places.iter().flat_map(|place| [("tcp", place), ("udp", place)]).collect();
    let mut rests = vec![Vec::new(); entries.len()];
    for _ in 0..LOOKS {
        sleep(Duration::from_secs(1)).await;
        for ((protocol, place), rests) in entries.iter().zip(&mut rests) {
            rests.push(rest(stage.bed, place, protocol, &to)?);
        }
    }
    for ((protocol, place), rests) in entries.iter().zip(&rests) {
        let what = format!("{protocol}: the entry in the zone of {} keeps its time", place.pod);
        stage.checks.check(what, kept(rests));
    }
    for (number, _) in (0..).zip(FLOWS) {
        scene.pods.order("a", &Order::Drop(number))?;
    }
    sleep(Duration::from_secs(AFTER)).await;
    for ((protocol, place), rests) in entries.into_iter().zip(rests) {
        let whole = rests.into_iter().flatten().max().unwrap_or_default();
        let left = rest(stage.bed, place, protocol, &to)?;
        let text = format!("{left:?} of {whole} s are left");
        // Closed TCP connections have another, shorter time.
        let outcome = if left.is_none_or(|left| left + LESS < whole) { Ok(text) } else { Err(text) };
        let what = format!("{protocol}: the entry in the zone of {} ages when the flow ends", place.pod);
        stage.checks.check(what, outcome);
    }
    scene.end().await
}

/// Whether the rest was always nearly the largest that was seen.
fn kept(rests: &[Option<u64>]) -> Result<String, String> {
    let (least, most) = (rests.iter().copied().min().flatten(), rests.iter().copied().max().flatten());
    let text = format!("{least:?} to {most:?} s were left");
    // No entry is less than any.
    let good = least.zip(most).is_some_and(|(least, most)| least + LESS >= most);
    if good { Ok(text) } else { Err(text) }
}

/// The connection-tracking zone of a pod's port; ovn-controller keeps it at the bridge.
fn zone(bed: &Bed, node: &str, pod: &str) -> Result<String> {
    let key = format!("external_ids:ct-zone-{NAMESPACE}_{pod}");
    let said = bed.vsctl(node, &["get", "Bridge", "br-int", &key])?;
    Ok(said.trim().trim_matches('"').to_owned())
}

/// Seconds until the connection to the load tool at an address expires, in a zone; none if there is no such connection.
fn rest(bed: &Bed, place: &Place, protocol: &str, to: &str) -> Result<Option<u64>> {
    let table = bed.ovs(&place.node, "ovs-appctl", &["dpctl/dump-conntrack", "-s"])?;
    Ok(find(&table, &place.zone, protocol, to))
}

/// The largest rest of such a connection, in OVS's table. One that has expired and was not swept yet has none.
fn find(table: &str, zone: &str, protocol: &str, to: &str) -> Option<u64> {
    let (begin, address, port) =
        (format!("{protocol},orig="), format!("dst={to},"), format!("dport={PORT})"));
    let zone = format!("zone={zone}");
    let matching = |line: &&str| {
        let here = line.split(',').any(|field| field == zone);
        here && line.starts_with(&begin) && line.contains(&address) && line.contains(&port)
    };
    let rest = |line: &str| line.split(',').find_map(|field| field.strip_prefix("timeout=")?.parse().ok());
    table.lines().filter(matching).filter_map(rest).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_that_of_the_connection_in_its_zone() {
        let line = |zone: &str, rest: &str| {
            format!(
                "udp,orig=(src=10.244.0.3,dst=10.244.1.3,sport=1,dport={PORT}),reply=(src=10.244.1.3,dst=10.244.0.3,\
                 sport={PORT},dport=1),zone={zone}{rest}\n"
            )
        };
        let table = line("5", ",timeout=57") + &line("5", "") + &line("55", ",timeout=60");
        assert_eq!(find(&table, "5", "udp", "10.244.1.3"), Some(57));
        assert_eq!(find(&table, "5", "tcp", "10.244.1.3"), None);
        assert_eq!(find(&table, "6", "udp", "10.244.1.3"), None);
    }

    #[test]
    fn a_rest_that_falls_or_ends_was_not_kept() {
        assert!(kept(&[Some(58), Some(60), Some(57)]).is_ok());
        assert!(kept(&[Some(60), Some(58), Some(55)]).is_err());
        assert!(kept(&[Some(60), None]).is_err());
        assert!(kept(&[None, None]).is_err() && kept(&[]).is_err());
    }
}

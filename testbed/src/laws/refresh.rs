//! Section 4.4: a refresh keeps OVS's connection tracking alive. With timeouts not much longer than the time between two
//! refreshes, the entries of busy flows must stay, although the cache carries nearly all of their packets; and they must go
//! when the flows end, or the timeouts were not in use.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::Stage;
use super::cast::NAMESPACE;
use super::scene::{FLOWS, Scene};
use crate::bed::Bed;
use crate::exec;
use crate::probe::load::{Order, PORT};

/// Longer than refresh, slack and grace (2.4 s), in seconds.
const TIMEOUT: u32 = 4;
/// How often, a second apart, the entries must be there: several timeouts long.
const LOOKS: u32 = 14;
/// Until an entry that nothing uses is gone: the timeout, and the sweeper of the userspace datapath, which comes every 20 s and
/// needs several rounds at times.
const GONE: Duration = Duration::from_secs(120);

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut scene = Scene::new(stage).await?;
    // The receiver only: the entry of the sender's zone did not follow a shorter timeout, so that it would prove nothing.
    let (pod, node) = ("b", scene.nodes[1].clone());
    let zone = zone(stage.bed, &node, pod).with_context(|| format!("zone of {pod}"))?;
    shorten(stage.bed, &node, &zone)?;
    let places = [(pod, node, zone)];
    // The timeout of an entry is that of its zone when it was made: all begin anew.
    for (_, node, _) in &places {
        let mut flush = stage.bed.host(node).command(stage.bed.config().ovs("ovs-appctl"))?;
        exec::output(flush.arg("dpctl/flush-conntrack"))?;
    }
    scene.dial().await?;
    let to = scene.cast.ip("b")?.to_string();
    for udp in [false, true] {
        let protocol = if udp { "udp" } else { "tcp" };
        for (pod, node, zone) in &places {
            let mut missing = 0;
            for _ in 0..LOOKS {
                sleep(Duration::from_secs(1)).await;
                missing += u32::from(entries(stage.bed, node, zone, protocol, &to)? == 0);
            }
            let outcome = if missing == 0 {
                Ok(String::new())
            } else {
                Err(format!("missing {missing} of {LOOKS} times"))
            };
            stage.checks.check(
                format_args!(
                    "{protocol}: the entry in the zone of {pod} outlives its timeout of {TIMEOUT} s"
                ),
                outcome,
            );
        }
    }
    for (number, _) in (0..).zip(FLOWS) {
        scene.cast.order("a", &Order::Drop(number))?;
    }
    for (pod, node, zone) in &places {
        let gone = exec::retry(GONE, "the entry goes", || {
            let left = entries(stage.bed, node, zone, "udp", &to)?;
            ensure!(left == 0, "{left} entries are left");
            Ok(String::new())
        });
        let outcome = gone.map_err(|error| format!("{error:#}"));
        stage.checks.check(format_args!("the entry in the zone of {pod} goes when the flow ends"), outcome);
    }
    for (_, node, zone) in &places {
        vsctl(stage.bed, node, &["--if-exists", "del-zone-tp", "netdev", &format!("zone={zone}")])?;
    }
    scene.end().await
}

/// Asks or changes the Open_vSwitch database of a node.
pub(super) fn vsctl(bed: &Bed, node: &str, args: &[&str]) -> Result<String> {
    let mut command = bed.host(node).command(bed.config().ovs("ovs-vsctl"))?;
    exec::output(command.args(["--timeout=10", "--db=unix:/run/openvswitch/db.sock"]).args(args))
}

/// The connection-tracking zone of a pod's port; ovn-controller keeps it at the bridge.
fn zone(bed: &Bed, node: &str, pod: &str) -> Result<String> {
    let key = format!("external_ids:ct-zone-{NAMESPACE}_{pod}");
    let said = vsctl(bed, node, &["get", "Bridge", "br-int", &key])?;
    Ok(said.trim().trim_matches('"').to_owned())
}

fn shorten(bed: &Bed, node: &str, zone: &str) -> Result<()> {
    let states = ["udp_first", "udp_single", "udp_multiple", "tcp_established"];
    let timeouts: Vec<String> = states.iter().map(|state| format!("{state}={TIMEOUT}")).collect();
    let mut args = vec!["add-zone-tp", "netdev"];
    let zone = format!("zone={zone}");
    args.push(&zone);
    args.extend(timeouts.iter().map(String::as_str));
    vsctl(bed, node, &args).map(drop)
}

/// Connections to the load tool at an address that the node's OVS tracks in a zone.
fn entries(bed: &Bed, node: &str, zone: &str, protocol: &str, to: &str) -> Result<usize> {
    let mut command = bed.host(node).command(bed.config().ovs("ovs-appctl"))?;
    let table = exec::output(command.args(["dpctl/dump-conntrack"]))?;
    let (begin, address, port) =
        (format!("{protocol},orig="), format!("dst={to},"), format!("dport={PORT})"));
    let zone = format!("zone={zone}");
    let matching = |line: &&str| {
        let here = line.split(',').any(|field| field == zone);
        here && line.starts_with(&begin) && line.contains(&address) && line.contains(&port)
    };
    Ok(table.lines().filter(matching).count())
}

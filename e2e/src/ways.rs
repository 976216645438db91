//! Every way of a connection: it is answered, and where there is a flow cache it carries both directions on every node.

use anyhow::{Result, ensure};

use testbed::cluster::Bed;
use testbed::cluster::config::OvsDatapath;
use testbed::demo::ways::{Scene, Way, carried};
use testbed::ui::Checks;

/// Round trips of a connection.
const COUNT: u64 = 1000;

/// Both protocols by every way. `ebpf`: there is a flow cache.
pub(crate) fn check(bed: &Bed, ebpf: bool, checks: &mut Checks) -> Result<()> {
    let scene = Scene::set(bed)?;
    for way in scene.ways() {
        for udp in [false, true] {
            let family = if way.to.is_ipv6() { "IPv6" } else { "IPv4" };
            let what = format!("{}, {} over {family}", way.what, if udp { "UDP" } else { "TCP" });
            checks.check(what, one(bed, &scene, way, udp, ebpf).map_err(|e| format!("{e:#}")));
        }
    }
    scene.clear()
}

fn one(bed: &Bed, scene: &Scene<'_>, way: &Way, udp: bool, ebpf: bool) -> Result<String> {
    let count = || way.nodes.iter().map(|node| carried(bed, node)).collect::<Result<Vec<u64>>>();
    // The first packets; OVN may have to find a next hop.
    scene.round_trips(way, udp, 1)?;
    let before = if ebpf { count()? } else { Vec::new() };
    let seen = scene.round_trips(way, udp, COUNT)?;
    let mut text = format!("{} answers, {} lost", seen.answers, seen.lost);
    ensure!(seen.answers > 100, "{text}");
    if !ebpf {
        return Ok(text);
    }
    let after = count()?;
    let carried: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    text += &format!("; the flow cache carried {carried:?} packets on {:?}", way.nodes);
    // In interposed mode nothing ties packets of UDP of which OVS translates both ends: see docs/services.md.
    let first_is_slow = udp && way.both_ends && bed.config().ovs_datapath == OvsDatapath::Netdev;
    let must = carried.iter().skip(first_is_slow.into());
    // Both directions; only the first packets and the refreshes go through OVS.
    ensure!(must.into_iter().all(|packets| *packets > seen.answers * 3 / 2), "{text}");
    Ok(text)
}

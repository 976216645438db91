//! Keeps OVS's neighbour cache warm. The userspace datapath resolves remote tunnel endpoints itself and learns only from replies that
//! pass through it while the tunnel exists; the first packet to an unresolved node is lost. So the host resolves each endpoint when its
//! tunnel appears, and OVS sees the reply.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ovsdb_client::vswitch::Interface;
use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
use tracing::{debug, warn};

use crate::kernel::link::{LinkError, Netlink};
use crate::ovs::Ovs;

/// OVS forgets a neighbour 15 minutes after it was last used or seen; asking again well before keeps it.
pub const REFRESH: Duration = Duration::from_secs(300);

/// Remotes of the tunnels that OVS has.
pub fn remotes(ovs: &Ovs) -> BTreeSet<IpAddr> {
    let snapshot = ovs.replica().read();
    let tunnels = snapshot.table::<Interface>().iter().filter(|row| row.r#type == "geneve");
    tunnels
        .filter(|row| row.ofport.is_some_and(|port| port > 0))
        .filter_map(|row| row.options.get("remote_ip")?.parse().ok())
        .collect()
}

/// Makes the host resolve the MAC addresses of `remotes` on the bridge.
pub async fn probe(netlink: &Netlink, bridge: &str, remotes: &BTreeSet<IpAddr>) {
    for remote in remotes {
        match probe_one(netlink, bridge, *remote).await {
            Ok(()) => debug!(%remote, bridge, "resolving the MAC of a remote tunnel endpoint"),
            Err(error) => {
                warn!(%remote, bridge, %error, "cannot resolve the MAC of a remote tunnel endpoint; the first packet to it is lost")
            }
        }
    }
}

async fn probe_one(netlink: &Netlink, bridge: &str, remote: IpAddr) -> Result<(), LinkError> {
    let link = netlink.get(bridge).await?;
    if netlink.permanent_neighbours(link.index, bridge).await?.iter().any(|n| n.ip == remote) {
        return Ok(());
    }
    // The kernel probes a known neighbour only when it is used and stale. It probes an unknown one at once (NTF_USE,
    // linux/neighbour.h).
    netlink.delete_neighbour(link.index, bridge, remote).await?;
    let request = netlink
        .raw()
        .neighbours()
        .add(link.index, remote)
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use)
        .replace();
    request
        .execute()
        .await
        .map_err(|e| LinkError::netlink(format!("{bridge} {remote}"), "resolve a neighbour", e))
}

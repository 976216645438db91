//! Keeping OVS's own neighbour cache warm. The userspace datapath resolves the far ends of tunnels itself and learns only from
//! answers that it sees pass while a tunnel exists; the first packet to a node it has not seen is lost. So the node asks for
//! each far end's MAC when its tunnel comes, and the answer passes through OVS.

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

/// Far ends of the tunnels that OVS has.
pub fn remotes(ovs: &Ovs) -> BTreeSet<IpAddr> {
    let snapshot = ovs.replica().read();
    let tunnels = snapshot.table::<Interface>().iter().filter(|row| row.r#type == "geneve");
    tunnels
        .filter(|row| row.ofport.is_some_and(|port| port > 0))
        .filter_map(|row| row.options.get("remote_ip")?.parse().ok())
        .collect()
}

/// Lets the node resolve the MACs of `remotes` anew on the bridge.
pub async fn probe(netlink: &Netlink, bridge: &str, remotes: &BTreeSet<IpAddr>) {
    for remote in remotes {
        match probe_one(netlink, bridge, *remote).await {
            Ok(()) => debug!(%remote, bridge, "asked for the tunnel end's MAC"),
            Err(error) => {
                warn!(%remote, bridge, %error, "cannot ask for the tunnel end's MAC; the first packet to it is lost")
            }
        }
    }
}

async fn probe_one(netlink: &Netlink, bridge: &str, remote: IpAddr) -> Result<(), LinkError> {
    let link = netlink.get(bridge).await?;
    if netlink.permanent_neighbours(link.index, bridge).await?.iter().any(|n| n.ip == remote) {
        return Ok(());
    }
    // A known neighbour is asked only when it is used and old. One that is not known is asked at once (NTF_USE,
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
        .map_err(|e| LinkError::netlink(format!("{bridge} {remote}"), "ask for a neighbour", e))
}

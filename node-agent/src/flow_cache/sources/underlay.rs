//! Reports changes of the underlay: link state of the uplink, routes and neighbours that tunnelled packets use.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage as Kernel;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::{MulticastGroup, new_multicast_connection};

use crate::flow_cache::invalidation::{Cause, Input};
use crate::flow_cache::state::Shared;
use crate::kernel::link::{Link, Netlink};

/// Delay for removed neighbours and routes. When ovs-vswitchd exits, the kernel reports the removal of its interfaces' neighbours and
/// routes before its socket is closed. The delay lets the state machine see the lost monitor first, after which these removals do not
/// invalidate. A removed neighbour or route never sends packets where OVS would not have sent them before.
const OVS_ENDS: Duration = Duration::from_millis(100);

/// Last known state of the underlay.
#[derive(Debug, Default)]
struct Seen {
    uplink: String,
    /// Last reported state of the uplink.
    link: Option<(u32, bool, u32, Option<api::MacAddr>)>,
    neighbours: HashMap<(u32, IpAddr), Vec<u8>>,
}

/// Subscribes to the kernel's notifications and reports relevant ones. A broken subscription is renewed and the cache invalidated, as
/// notifications may have been lost. Never returns.
pub(in crate::flow_cache) async fn follow(shared: Arc<Shared>, netlink: Netlink, uplink: String) {
    let mut seen = Seen { uplink, ..Seen::default() };
    loop {
        let groups =
            [MulticastGroup::Link, MulticastGroup::Neigh, MulticastGroup::Ipv4Route, MulticastGroup::Tc];
        match new_multicast_connection(&groups) {
            Ok((connection, _handle, mut messages)) => {
                let connection = tokio::spawn(connection);
                if let Ok(Some(link)) = netlink.find(&seen.uplink).await {
                    seen.link = Some(facts(&link));
                }
                shared.decide.notify_one();
                while let Some((message, _)) = messages.next().await {
                    match message.payload {
                        NetlinkPayload::InnerMessage(
                            Kernel::NewQueueDiscipline(_) | Kernel::DelQueueDiscipline(_),
                        ) => shared.decide.notify_one(),
                        NetlinkPayload::InnerMessage(message) => match seen.hear(message) {
                            Some((source, Duration::ZERO)) => tell(&shared, source),
                            Some((source, delay)) => {
                                tokio::spawn(tell_later(Arc::clone(&shared), source, delay));
                            }
                            None => {}
                        },
                        // Notifications were lost because the socket buffer was full.
                        NetlinkPayload::Overrun(_) => {
                            shared.take(Input::Changed(Cause::Links));
                        }
                        _ => {}
                    }
                }
                connection.abort();
                tracing::warn!("subscription to links and neighbours ended; renewing it");
                shared.take(Input::Changed(Cause::Links));
            }
            Err(error) => tracing::warn!(%error, "cannot subscribe to links and neighbours; retrying"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn tell(shared: &Shared, source: Cause) {
    shared.take(Input::Changed(source));
    shared.decide.notify_one();
}

async fn tell_later(shared: Arc<Shared>, source: Cause, delay: Duration) {
    tokio::time::sleep(delay).await;
    tell(&shared, source);
}

fn facts(link: &Link) -> (u32, bool, u32, Option<api::MacAddr>) {
    (link.index, link.up, link.mtu, link.mac)
}

impl Seen {
    /// Cause of invalidation for a notification, and the delay; `None` when it is not relevant.
    fn hear(&mut self, message: Kernel) -> Option<(Cause, Duration)> {
        let gone = matches!(message, Kernel::DelNeighbour(_) | Kernel::DelRoute(_));
        let delay = if gone { OVS_ENDS } else { Duration::ZERO };
        self.take(message).map(|source| (source, delay))
    }

    /// Cause of invalidation for a notification; `None` when it is not relevant.
    fn take(&mut self, message: Kernel) -> Option<Cause> {
        match message {
            Kernel::NewLink(message) => {
                let link = Link::from(message);
                let now = (link.name == self.uplink).then(|| facts(&link))?;
                let before = self.link.replace(now);
                (before != Some(now)).then_some(Cause::Links)
            }
            Kernel::DelLink(message) => {
                let index = message.header.index;
                self.neighbours.retain(|(link, _), _| *link != index);
                self.link.take_if(|link| link.0 == index).map(|_| Cause::Links)
            }
            Kernel::NewNeighbour(message) => self.neighbour(&message),
            Kernel::DelNeighbour(message) => {
                let key = key(&message)?;
                self.neighbours.remove(&key).map(|_| Cause::Neighbours)
            }
            Kernel::NewRoute(_) | Kernel::DelRoute(_) => Some(Cause::Neighbours),
            _ => None,
        }
    }

    /// Only a changed or lost MAC is relevant: the state of an entry changes all the time.
    fn neighbour(&mut self, message: &NeighbourMessage) -> Option<Cause> {
        let key = key(message)?;
        let mac = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => Some(mac.clone()),
            _ => None,
        });
        let gone = matches!(message.header.state, NeighbourState::Failed | NeighbourState::Incomplete);
        match mac.filter(|_| !gone) {
            Some(mac) => {
                let before = self.neighbours.insert(key, mac.clone());
                before.is_some_and(|before| before != mac).then_some(Cause::Neighbours)
            }
            None => self.neighbours.remove(&key).map(|_| Cause::Neighbours),
        }
    }
}

fn key(message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        _ => None,
    })?;
    concerns(address).then_some((message.header.ifindex, address))
}

/// Whether a neighbour's or route's address concerns tunnels: multicast and loopback ones do not, nor do those of IPv6, as the flow
/// cache crosses tunnels over IPv4 only.
fn concerns(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_loopback(),
        IpAddr::V6(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::link::LinkMessage;
    use rtnetlink::packet_route::route::RouteMessage;

    use super::*;

    fn neighbour(state: NeighbourState, mac: Option<[u8; 6]>, address: &str) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 2;
        message.header.state = state;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address.parse().unwrap())));
        message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
        message
    }

    #[test]
    fn a_neighbour_is_news_when_its_mac_changes_or_it_is_lost_and_not_when_it_ages() {
        let mut seen = Seen::default();
        let mut take = |state, mac, address| seen.take(Kernel::NewNeighbour(neighbour(state, mac, address)));
        let (one, other) = (Some([2, 0, 0, 0, 0, 1]), Some([2, 0, 0, 0, 0, 2]));
        assert_eq!(take(NeighbourState::Reachable, one, "172.18.0.3"), None);
        assert_eq!(take(NeighbourState::Stale, one, "172.18.0.3"), None);
        assert_eq!(take(NeighbourState::Reachable, other, "172.18.0.3"), Some(Cause::Neighbours));
        assert_eq!(take(NeighbourState::Failed, None, "172.18.0.3"), Some(Cause::Neighbours));
        assert_eq!(take(NeighbourState::Failed, None, "172.18.0.3"), None);
        assert_eq!(take(NeighbourState::Noarp, one, "224.0.0.1"), None);
        assert_eq!(take(NeighbourState::Noarp, other, "224.0.0.1"), None);
    }

    #[test]
    fn what_may_be_a_sign_that_ovs_ends_is_told_later_and_all_else_at_once() {
        let mut seen = Seen { uplink: "eth0".into(), link: Some((2, true, 1500, None)), ..Seen::default() };
        let there = || neighbour(NeighbourState::Reachable, Some([2, 0, 0, 0, 0, 1]), "172.18.0.3");
        let moved = || neighbour(NeighbourState::Reachable, Some([2, 0, 0, 0, 0, 2]), "172.18.0.3");
        let mut hear = |message| seen.hear(message);
        assert_eq!(hear(Kernel::NewNeighbour(there())), None);
        assert_eq!(hear(Kernel::NewNeighbour(moved())), Some((Cause::Neighbours, Duration::ZERO)));
        assert_eq!(hear(Kernel::DelNeighbour(moved())), Some((Cause::Neighbours, OVS_ENDS)));
        assert_eq!(hear(Kernel::DelNeighbour(moved())), None, "it was gone");
        assert_eq!(
            hear(Kernel::NewRoute(RouteMessage::default())),
            Some((Cause::Neighbours, Duration::ZERO))
        );
        assert_eq!(hear(Kernel::DelRoute(RouteMessage::default())), Some((Cause::Neighbours, OVS_ENDS)));
        let mut uplink = LinkMessage::default();
        uplink.header.index = 2;
        assert_eq!(hear(Kernel::DelLink(uplink)), Some((Cause::Links, Duration::ZERO)));
    }
}

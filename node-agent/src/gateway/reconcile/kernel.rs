//! Notifications of the kernel about links, addresses, routes and rules: which of them matter to the gateway.

use futures::channel::mpsc::UnboundedReceiver;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressScope;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::sys::SocketAddr;

use super::Worker;
use crate::gateway::uplink::snapshot as saved;

impl Worker {
    /// Whether a kernel notification, or one of those queued behind it, matters.
    pub(super) fn kernel_event(
        &mut self,
        first: NetlinkMessage<RouteNetlinkMessage>,
        rest: &mut UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    ) -> bool {
        let mut dirty = self.matters(&first);
        while let Ok((message, _)) = rest.try_recv() {
            dirty |= self.matters(&message);
        }
        dirty
    }

    fn matters(&mut self, message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
        let inner = match &message.payload {
            NetlinkPayload::InnerMessage(inner) => inner,
            // Notifications were lost: the bridge may have been down, and its routes lost with that.
            NetlinkPayload::Overrun(_) => {
                self.follower.disturb();
                self.second.iter_mut().for_each(|second| second.follower.disturb());
                return true;
            }
            _ => return false,
        };
        match inner {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                let Some(name) = name_of(link) else { return false };
                let gone = matches!(inner, RouteNetlinkMessage::DelLink(_));
                if gone || !link.header.flags.contains(LinkFlags::Up) {
                    self.went_down(name);
                }
                self.has(name)
            }
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                address.header.scope == AddressScope::Universe
            }
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                saved::oif(route).is_none_or(|index| self.interfaces.contains(&index))
            }
            RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => true,
            _ => false,
        }
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

//! Packets that cross the uplink on the slow path: counted for the port, and for their tunnel.

use ebpf::{
    layout::{
        flow::HEADER_LEN,
        maps::{Config, Count, Port, PortCounters, TunnelCounters, TunnelKey},
        reason::Reason,
    },
    packet::{
        self, Packet as _, Tunnel,
        wire::{self, Meta},
    },
};

use super::{count, peer::Found, skb::Skb};

/// Which way a packet goes, seen from the uplink.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    From,
    To,
}

impl Direction {
    #[inline(always)]
    fn of_port(self, counters: &mut PortCounters) -> &mut Count {
        match self {
            Self::From => &mut counters.slow_from,
            Self::To => &mut counters.slow_to,
        }
    }

    #[inline(always)]
    fn of_tunnel(self, counters: &mut TunnelCounters) -> &mut Count {
        match self {
            Self::From => &mut counters.slow_rx,
            Self::To => &mut counters.slow_tx,
        }
    }
}

/// Counts a packet of OVN's Geneve on the slow path. `peer`: the node that it is of.
#[inline(always)]
pub(super) fn tunnel(skb: &Skb, peer: Found, port: &Port, meta: Meta, direction: Direction) {
    let headers = if meta.gso_size == 0 { 0 } else { packet::headers(skb, HEADER_LEN - 14) };
    let amount = wire::amount(skb.len(), headers, meta);
    count::tunnel(peer.slot(), amount, |counters| direction.of_tunnel(counters));
    count::port(port.slot, amount, |counters| direction.of_port(counters));
}

/// Counts a packet that is known to be in no tunnel, on the slow path. The result is as that of [`other`].
#[inline(always)]
pub(super) fn plain(skb: &Skb, port: &Port, meta: Meta, direction: Direction) -> u32 {
    count::port(port.slot, wire::measure(skb, meta), |counters| direction.of_port(counters));
    0
}

/// Counts any other packet on the uplink, for its tunnel if it is Geneve after all. `wrong`: why the flow cache does not
/// carry it. The result is the offset of the Ethernet header that is in front of the packet of a pod or the node: 0 outside of a tunnel.
#[inline(always)]
pub(super) fn other(
    skb: &Skb,
    wrong: Option<Reason>,
    config: &Config,
    port: &Port,
    meta: Meta,
    direction: Direction,
) -> u32 {
    if let Some(reason) = wrong {
        count::reason(reason);
    }
    let aggregate = meta.gso_size != 0;
    let mut tunnel = Tunnel::default();
    let mut inner = 0;
    let amount = match packet::uplink(skb, config.geneve_port, aggregate, &mut tunnel) {
        Ok(true) => {
            inner = skb.forget(tunnel.inner);
            let headers = if aggregate { packet::headers(skb, tunnel.inner) } else { 0 };
            let amount = wire::amount(skb.len(), headers, meta);
            let remote = match direction {
                Direction::From => tunnel.source,
                Direction::To => tunnel.destination,
            };
            let slot = count::tunnel_slot(&TunnelKey { remote, vni: tunnel.vni });
            count::tunnel(slot, amount, |counters| direction.of_tunnel(counters));
            amount
        }
        Ok(false) => wire::measure(skb, meta),
        Err(reason) => {
            count::malformed(skb, reason);
            wire::measure(skb, meta)
        }
    };
    count::port(port.slot, amount, |counters| direction.of_port(counters));
    inner
}

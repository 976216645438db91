//! The programs' entry points. What the flow cache knows goes its way; everything else goes to OVS, is counted, and is
//! learned from when it comes back.
//!
//! All are TC classifiers. Where each one sits in the two attach modes is told in `docs/datapath.md`; the code is the
//! same in both, the port's entry in `ENDPOINTS` says what to do.
#![expect(unsafe_code, reason = "map values and packet context are raw pointers in BPF")]

mod conn;
mod count;
mod egress;
mod family;
mod ingress;
mod learn;
mod maps;
mod note;
mod refresh;
mod skb;

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::bpf_redirect,
    macros::classifier,
    programs::TcContext,
};
use ebpf::{
    decide::tag,
    decide::wiring::{Wiring, wiring},
    layout::flow::HEADER,
    layout::maps::{Config, Count, Port, PortCounters, TunnelCounters, TunnelKey, mapped},
    layout::reason::Reason,
    packet::wire::{self, Meta},
    packet::{self, Packet as _, Tunnel},
};
use egress::Outcome;
use skb::Skb;

/// Ingress of a pod's host veth: what the pod sends.
#[classifier]
#[inline(always)]
fn from_pod(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let outcome = egress::from_pod(&skb, port);
    if let Some(verdict) = outcome.verdict() {
        return verdict;
    }
    if outcome == Outcome::UNREAD {
        unread(skb.raw());
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_from);
    go_on(port)
}

/// Counts what is wrong with a pod's packet that the flow cache did not look at.
#[inline(never)]
fn unread(raw: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(raw);
    let skb = Skb::new(&ctx);
    if let Err(reason) = packet::pod(&skb, skb.meta().gso_size != 0) {
        count::malformed(&skb, reason);
    }
    0
}

/// Direct: egress of the pod's host veth. Interposed: ingress of the agent's end of the pod's shim, what OVS sent.
#[classifier]
#[inline(always)]
fn to_pod(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let tag = skb.tag();
    if tag == tag::FAST {
        skb.set_tag(0);
        return TC_ACT_UNSPEC;
    }
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    if tag::slot(tag).is_some() {
        skb.set_tag(0);
    }
    let (ifindex, port_verdict) = match wiring(Some(port)) {
        Wiring::Redirect(host) => (host, Wiring::Redirect(host)),
        other => (skb.ifindex(), other),
    };
    learn::to_pod(&skb, port, ifindex, tag);
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_to);
    act(port_verdict)
}

/// Ingress of the uplink.
#[classifier]
#[inline(always)]
fn from_uplink(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return go_on(port) };
    let meta = skb.meta();
    let front = skb.front(HEADER as u32 + 20 + 20);
    let seen = packet::outer(&front, skb.len(), config.geneve_port);
    if let Ok(Some(outer)) = &seen {
        let outcome = ingress::from_uplink(&skb, &front, outer, config, port, meta);
        if let Some(verdict) = outcome.verdict() {
            return verdict;
        }
        tunnel(&skb, outer.source, outer.vni, port, meta, Direction::From);
    } else {
        other(&skb, seen.err(), config, port, meta, Direction::From);
    }
    go_on(port)
}

/// Direct: egress of the uplink. Interposed: ingress of the agent's end of the uplink's shim, what OVS sent.
#[classifier]
#[inline(always)]
fn to_uplink(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let tag = skb.tag();
    if tag == tag::FAST {
        skb.set_tag(0);
        return TC_ACT_UNSPEC;
    }
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return go_on(port) };
    if tag::slot(tag).is_some() {
        skb.set_tag(0);
    }
    let meta = skb.meta();
    let front = skb.front(HEADER as u32 + 20 + 20);
    let seen = packet::outer(&front, skb.len(), config.geneve_port);
    if let Ok(Some(outer)) = &seen {
        let slot = tunnel(&skb, outer.destination, outer.vni, port, meta, Direction::To);
        learn::to_uplink(&skb, outer, slot, config, port, tag);
    } else {
        other(&skb, seen.err(), config, port, meta, Direction::To);
    }
    go_on(port)
}

/// Ingress of the OVS end of a shim: OVS has read the packet by its packet socket, the node's own stack must not
/// have it as well.
#[classifier]
fn stop(_ctx: TcContext) -> i32 {
    TC_ACT_SHOT
}

/// The time in ticks: for the agent, which runs it on a packet of its own.
#[classifier]
fn clock(_ctx: TcContext) -> i32 {
    skb::now().cast_signed()
}

/// Makes room for a tunnel header and takes it away again: for the agent, which asks so whether the kernel can. 0: it can.
#[classifier]
fn trial(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    if !egress::make_room(&skb) {
        return 1;
    }
    if ingress::take_room(&skb, 0) { 0 } else { 2 }
}

/// Which way a packet goes, seen from the uplink.
#[derive(Clone, Copy)]
enum Direction {
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

/// Counts a packet of OVN's Geneve on the slow path; the tunnel's slot.
#[inline(always)]
fn tunnel(skb: &Skb, remote: u32, vni: u32, port: &Port, meta: Meta, direction: Direction) -> u32 {
    let headers = if meta.gso_size == 0 { 0 } else { packet::headers(skb, HEADER as u32 - 14) };
    let amount = wire::amount(skb.len(), headers, meta);
    let slot = count::tunnel_slot(&TunnelKey { remote: mapped(remote.to_ne_bytes()), vni });
    count::tunnel(slot, amount, |counters| direction.of_tunnel(counters));
    count::port(port.slot, amount, |counters| direction.of_port(counters));
    slot
}

/// Counts any other packet on the uplink, for its tunnel if it is Geneve after all. `wrong`: why the flow cache does not
/// carry it.
#[inline(always)]
fn other(skb: &Skb, wrong: Option<Reason>, config: &Config, port: &Port, meta: Meta, direction: Direction) {
    if let Some(reason) = wrong {
        count::reason(reason);
    }
    let aggregate = meta.gso_size != 0;
    let mut tunnel = Tunnel::default();
    let amount = match packet::uplink(skb, config.geneve_port, aggregate, &mut tunnel) {
        Ok(true) => {
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
}

/// What the port's wiring says.
#[inline(always)]
fn go_on(port: &Port) -> i32 {
    act(wiring(Some(port)))
}

#[inline(always)]
fn act(verdict: Wiring) -> i32 {
    match verdict {
        Wiring::Pass => TC_ACT_UNSPEC,
        // SAFETY: the helper only records the target; flags 0 = egress of that interface.
        Wiring::Redirect(target) => unsafe { bpf_redirect(target, 0) as i32 },
        Wiring::Unknown => unknown(),
    }
}

#[inline(always)]
fn unknown() -> i32 {
    count::reason(Reason::UnknownPort);
    TC_ACT_UNSPEC
}

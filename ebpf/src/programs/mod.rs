//! The programs' entry points. What the flow cache knows goes its way; everything else goes to OVS, is counted, and is
//! learned from when it comes back.
//!
//! All but `xdp_uplink` are TC classifiers. Where each one sits in the two attach modes is told in `docs/datapath.md`; the code is the
//! same in both, the port's entry in `ENDPOINTS` says what to do.
#![expect(unsafe_code, reason = "map values and packet context are raw pointers in BPF")]
#![expect(clippy::needless_borrows_for_generic_args, reason = "a key given by value is copied on the stack")]

mod conn;
mod count;
mod entrance;
mod family;
mod forward;
mod frame;
mod global;
mod learn;
mod maps;
mod note;
mod pass;
mod peer;
mod peer_maps;
mod quoted;
mod room;
mod seen;
mod skb;
mod uplink;
mod versions;
mod xdp;
mod xdp_forward;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use ebpf::{
    decide::{
        tag,
        wiring::{Wiring, wiring},
    },
    layout::{
        flow::{HEADER_LEN, SIDE_NODE, SIDE_OUTSIDE, SIDE_POD},
        maps::{Config, PORT_INTERPOSED, Port},
        reason::Reason,
    },
    packet::{self, Packet as _, wire},
};
use pass::{Outcome, Pass};
use skb::Skb;
use uplink::Direction;

/// Ingress of a pod's host veth: what the pod sends.
#[classifier]
#[inline(always)]
fn from_pod(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let outcome = entrance::from_pod(&skb, port);
    if let Some(verdict) = outcome.verdict() {
        return verdict;
    }
    if outcome == Outcome::UNREAD {
        global::count_unread(skb.raw());
    }
    if outcome != Outcome::NOTED && port.flags & PORT_INTERPOSED != 0 {
        global::clean_mark(skb.raw(), 0, port.slot);
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_from);
    go_on(port)
}

/// Takes our mark off what an ICMP error quotes. `at`: offset of the Ethernet header in front of the IP header.
#[inline(always)]
fn unquote(skb: &Skb, at: u32) {
    match note::ethertype(skb, at) {
        packet::IPV4 => {
            global::unquote4(skb.raw(), at + 14);
        }
        packet::IPV6 => {
            global::unquote6(skb.raw(), at + 14);
        }
        _ => {}
    }
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
    let (ifindex, onward) = match wiring(Some(port)) {
        Wiring::Redirect(host) => (host, Wiring::Redirect(host)),
        other => (skb.ifindex(), other),
    };
    if let Some(config) = maps::config()
        && !learn::plain(&skb, config, port, SIDE_POD, ifindex, tag)
        && port.flags & PORT_INTERPOSED != 0
    {
        unquote(&skb, 0);
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_to);
    act(onward)
}

/// Ingress of the uplink.
#[classifier]
#[inline(always)]
fn from_uplink(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return go_on(port) };
    let meta = skb.meta();
    let front = skb.front_on_uplink(config.geneve_port);
    let seen = packet::outer(&front, skb.len(), config.geneve_port);
    let (gate, epoch, change) = (maps::gate(config), maps::epoch(config), maps::change(config));
    let pass = Pass { config, port, meta, gate, epoch, change, payer: port.slot, at_egress: false };
    if let Ok(Some(outer)) = &seen {
        let outcome = entrance::from_tunnel(&skb, &front, outer, &pass);
        if let Some(verdict) = outcome.verdict() {
            return verdict;
        }
        if outcome != Outcome::NOTED && port.flags & PORT_INTERPOSED != 0 {
            global::clean_mark(skb.raw(), HEADER_LEN - 14, port.slot);
        }
        uplink::tunnel(&skb, peer::find(outer.source, outer.vni, epoch), port, meta, Direction::From);
        return go_on(port);
    }
    let outcome = if seen.is_ok() { entrance::from_outside(&skb, &front, &pass) } else { Outcome::UNREAD };
    if let Some(verdict) = outcome.verdict() {
        return verdict;
    }
    let inner = if outcome == Outcome::UNREAD {
        uplink::other(&skb, seen.err(), config, port, meta, Direction::From)
    } else {
        uplink::plain(&skb, port, meta, Direction::From)
    };
    if outcome != Outcome::NOTED && port.flags & PORT_INTERPOSED != 0 {
        global::clean_mark(skb.raw(), inner, port.slot);
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
    let front = skb.front_on_uplink(config.geneve_port);
    let seen = packet::outer(&front, skb.len(), config.geneve_port);
    if let Ok(Some(outer)) = &seen {
        let peer = peer::find(outer.destination, outer.vni, maps::epoch(config));
        uplink::tunnel(&skb, peer, port, meta, Direction::To);
        if !learn::to_uplink(&skb, outer, peer, config, port, tag) && port.flags & PORT_INTERPOSED != 0 {
            unquote(&skb, HEADER_LEN - 14);
        }
        return go_on(port);
    }
    let plain = seen.is_ok() && learn::plain(&skb, config, port, SIDE_OUTSIDE, config.uplink, tag);
    if skb.forget(plain.into()) != 0 {
        uplink::plain(&skb, port, meta, Direction::To);
    } else {
        let inner = uplink::other(&skb, seen.err(), config, port, meta, Direction::To);
        if port.flags & PORT_INTERPOSED != 0 {
            global::release_mark(skb.raw(), inner);
            unquote(&skb, inner);
        }
    }
    go_on(port)
}

/// Egress of an interface by which the node itself sends into a bridge: `breth0`, `ovn-k8s-mp0`.
#[classifier]
#[inline(always)]
fn from_host(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return TC_ACT_UNSPEC };
    let (interposed, tag) = (port.flags & PORT_INTERPOSED != 0, skb.tag());
    if !interposed && is_of_tunnels(&skb, config) {
        return TC_ACT_UNSPEC;
    }
    let outcome = if interposed || tag == 0 {
        entrance::from_node(&skb, config, port)
    } else {
        if tag::slot(tag).is_none() {
            // A process of the node has set it, and a queue may look at it.
            count::reason(Reason::PriorityTaken);
        }
        Outcome::UNREAD
    };
    if let Some(verdict) = outcome.verdict() {
        return verdict;
    }
    if outcome != Outcome::NOTED && interposed {
        global::clean_mark(skb.raw(), 0, port.slot);
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_from);
    TC_ACT_UNSPEC
}

/// Ingress of such an interface: what OVS gives to the node.
#[classifier]
#[inline(always)]
fn to_host(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    if skb.mark() == tag::FAST {
        skb.set_mark(0);
        return TC_ACT_UNSPEC;
    }
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return TC_ACT_UNSPEC };
    let (interposed, tag) = (port.flags & PORT_INTERPOSED != 0, skb.tag());
    if !interposed {
        if is_of_tunnels(&skb, config) {
            return TC_ACT_UNSPEC;
        }
        if tag::slot(tag).is_some() {
            // Where the node passes a packet on it is another one.
            skb.set_tag(0);
        }
    }
    if !learn::plain(&skb, config, port, SIDE_NODE, skb.ifindex(), tag) && interposed {
        unquote(&skb, 0);
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_to);
    TC_ACT_UNSPEC
}

/// Ingress of the interface of a bridge that leads to a physical network; in direct mode only.
#[classifier]
#[inline(always)]
fn from_physical(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return TC_ACT_UNSPEC };
    if let Some(verdict) = entrance::from_physical(&skb, config, port).verdict() {
        return verdict;
    }
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_from);
    TC_ACT_UNSPEC
}

/// Egress of such an interface.
#[classifier]
#[inline(always)]
fn to_physical(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let tag = skb.tag();
    if tag == tag::FAST {
        skb.set_tag(0);
        return TC_ACT_UNSPEC;
    }
    let Some(port) = maps::port(skb.ifindex()) else { return unknown() };
    let Some(config) = maps::config() else { return TC_ACT_UNSPEC };
    if tag::slot(tag).is_some() {
        skb.set_tag(0);
    }
    learn::to_physical(&skb, config, port, tag);
    count::port(port.slot, wire::measure(&skb, skb.meta()), |counters| &mut counters.slow_to);
    TC_ACT_UNSPEC
}

/// Whether it is a packet of the kernel's Geneve tunnels, which send and receive by the bridge's own port. OVS has or gets what is
/// inside, with the number of its note; the programs on the uplink count it.
#[inline(always)]
fn is_of_tunnels(skb: &Skb, config: &Config) -> bool {
    packet::may_be_outer(&skb.front(14 + 20 + 8), config.geneve_port)
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
    if !room::make(&skb) {
        return 1;
    }
    if room::take(&skb) { 0 } else { 2 }
}

/// What the port's wiring says.
#[inline(always)]
fn go_on(port: &Port) -> i32 {
    act(wiring(Some(port)))
}

#[inline(always)]
fn act(wiring: Wiring) -> i32 {
    match wiring {
        Wiring::Pass => TC_ACT_UNSPEC,
        Wiring::Redirect(target) => skb::redirect(target),
        Wiring::Unknown => unknown(),
    }
}

#[inline(always)]
fn unknown() -> i32 {
    count::reason(Reason::UnknownPort);
    TC_ACT_UNSPEC
}

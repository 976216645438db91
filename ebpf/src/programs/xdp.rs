//! The uplink before the kernel has made a buffer of a packet: what comes by it and leaves by it, with the same entries and the same
//! answers as the TC programs. They see all other packets as they came.

use aya_ebpf::{
    bindings::{
        xdp_action::{XDP_DROP, XDP_PASS},
        xdp_md,
    },
    macros::xdp,
    programs::XdpContext,
};
use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    decide::{
        Terms,
        admit::{self, Next, Outside},
        learn, xdp as decide,
    },
    layout::{
        flow::{HEADER_LEN, SIDE_OUTSIDE, SIDE_TUNNEL},
        maps::Config,
        reason::Reason,
    },
    packet::{self, Outer, Packet, TCP, Tunnel, Window as _},
};

use super::{
    count,
    family::{Family, V4, V6},
    forward::Arrival,
    frame::{Frame, front},
    learn::is_geneve,
    maps,
    skb::{self, Front},
    xdp_forward::forward,
};

/// 1: malformed Geneve, and Geneve from addresses that OVS has no tunnel to, is dropped. A constant to the kernel's verifier.
#[unsafe(no_mangle)]
static XDP_DROPS: u8 = 0;

/// Whether something may be dropped.
#[inline(always)]
fn drops() -> bool {
    // SAFETY: a plain static; volatile, as the loader may have set another value than the compiler saw.
    unsafe { core::ptr::read_volatile(&raw const XDP_DROPS) != 0 }
}

/// The uplink, native only.
#[xdp]
#[inline(always)]
fn xdp_uplink(ctx: XdpContext) -> u32 {
    let raw = ctx.ctx;
    let front = front(raw);
    let Some(config) = maps::config() else { return XDP_PASS };
    // SAFETY: the context is valid for the length of the program.
    let ifindex = unsafe { (*raw).ingress_ifindex };
    // The shortest packet that the flow cache carries: IPv4 and UDP.
    if !front.has(14 + 28) || ifindex != config.uplink {
        return XDP_PASS;
    }
    if packet::may_be_outer(&front, config.geneve_port) {
        let verdict = tunnel(raw);
        if verdict == XDP_PASS && drops() { strangers(raw) } else { verdict }
    } else {
        match u16::from_be(front.u16(12)) {
            V4::TYPE => plain4(raw),
            V6::TYPE => plain6(raw),
            _ => XDP_PASS,
        }
    }
}

#[inline(always)]
fn terms(config: &Config) -> Terms<'_> {
    let (gate, epoch, change) = (maps::gate(config), maps::epoch(config), maps::change(config));
    Terms { config, gate, epoch, change, now: skb::now() }
}

/// A function of its own for each version, as they need stack.
#[inline(never)]
fn plain4(raw: *mut xdp_md) -> u32 {
    plain::<V4>(Frame::new(raw)).unwrap_or(XDP_PASS)
}

#[inline(never)]
fn plain6(raw: *mut xdp_md) -> u32 {
    plain::<V6>(Frame::new(raw)).unwrap_or(XDP_PASS)
}

#[inline(never)]
fn tunnel(raw: *mut xdp_md) -> u32 {
    let front = front(raw);
    if !front.has(HEADER_LEN) {
        return XDP_PASS;
    }
    match u16::from_be(front.u16(HEADER_LEN - 2)) {
        V4::TYPE => tunnelled4(raw),
        V6::TYPE => tunnelled6(raw),
        _ => XDP_PASS,
    }
}

#[inline(never)]
fn tunnelled4(raw: *mut xdp_md) -> u32 {
    tunnelled::<V4>(Frame::new(raw)).unwrap_or(XDP_PASS)
}

#[inline(never)]
fn tunnelled6(raw: *mut xdp_md) -> u32 {
    tunnelled::<V6>(Frame::new(raw)).unwrap_or(XDP_PASS)
}

/// A packet without a tunnel, as `entrance::from_outside` takes it. `None`: for TC.
#[inline(always)]
fn plain<F: Family>(frame: Frame) -> Option<u32> {
    let config = maps::config()?;
    let front = frame.front();
    let uplink = frame.ifindex();
    let port = maps::port(uplink)?;
    let terms = terms(config);
    if admit::endpoint(terms.gate, port, terms.epoch).is_err() || !front.has(14 + 28) {
        return None;
    }
    let macs = [front.u32(0), front.u32(4), front.u32(8)];
    if admit::for_node(&macs, &port.mac).is_err() {
        return None;
    }
    let Ok(mut flow) = F::parse(&front, 14, frame.len().wrapping_sub(14)) else { return None };
    flow.tuple.enter(SIDE_OUTSIDE);
    let tcp = flow.tuple.protocol() == TCP;
    let geneve = is_geneve(&flow.tuple, config);
    if admit::plain_packet(terms.gate, geneve, tcp, flow.changes_connection()) != Next::Lookup {
        return None;
    }
    let packet = Arrival::<F, 14> { flow: &flow, way: [uplink, 0, 0], macs };
    forward(frame, &packet, uplink, &terms)
}

/// A packet of a tunnel, as `entrance::from_tunnel` takes it. `None`: for TC.
#[inline(always)]
fn tunnelled<F: Family>(frame: Frame) -> Option<u32> {
    let config = maps::config()?;
    let front = frame.front();
    let seen = packet::outer(&front, frame.len(), config.geneve_port);
    let Ok(Some(outer)) = &seen else { return None };
    let terms = terms(config);
    if admit::tunnel(terms.gate, outside(&front, outer, config)).is_err() {
        return None;
    }
    let Ok(mut flow) = F::parse(&front, HEADER_LEN, frame.len().wrapping_sub(HEADER_LEN)) else {
        return None;
    };
    flow.tuple.enter(SIDE_TUNNEL);
    let (same_ecn, tcp) = (outer.ecn == flow.outer_ecn(), flow.tuple.protocol() == TCP);
    if admit::tunnel_packet(terms.gate, same_ecn, tcp, flow.changes_connection()) != Next::Lookup {
        return None;
    }
    const INNER: u32 = HEADER_LEN - 14;
    let macs = [front.u32(INNER), front.u32(INNER + 4), front.u32(INNER + 8)];
    let way = [outer.vni, outer.option, outer.source];
    let packet = Arrival::<F, HEADER_LEN> { flow: &flow, way, macs };
    forward(frame, &packet, frame.ifindex(), &terms)
}

#[inline(always)]
fn outside(front: &Front, outer: &Outer, config: &Config) -> Outside {
    Outside {
        // In the frame, where there is one: the agent attaches the program only where the card leaves it there.
        vlan: false,
        ours: admit::is_for_node([front.u32(0), front.u16(4).into()], outer.destination, config),
        plain: outer.plain,
        sum_is_right: packet::outer_sum_is_right(front),
    }
}

/// Drops a packet to Geneve's port of this node's tunnel endpoint that is of no tunnel of OVS, or malformed.
#[inline(never)]
fn strangers(raw: *mut xdp_md) -> u32 {
    let frame = Frame::new(raw);
    let front = frame.front();
    let Some(config) = maps::config() else { return XDP_PASS };
    if !front.has(38) || !admit::is_for_node([front.u32(0), front.u16(4).into()], front.u32(30), config) {
        return XDP_PASS;
    }
    let terms = terms(config);
    if !decide::may_drop(terms.gate, learn::is_agent_alive(maps::heartbeat(config), &terms).is_ok()) {
        return XDP_PASS;
    }
    if !maps::is_remote(front.u32(26)) {
        count::reason(Reason::XdpUnknownTunnel);
        return XDP_DROP;
    }
    let mut tunnel = Tunnel::default();
    if let Err(reason) = packet::uplink(&frame, config.geneve_port, false, &mut tunnel)
        && reason.is_malformed()
    {
        count::reason(reason);
        count::reason(Reason::XdpMalformedTunnel);
        return XDP_DROP;
    }
    XDP_PASS
}

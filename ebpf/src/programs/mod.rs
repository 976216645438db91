//! The programs' entry points: fetch, let the library look, count, pass on or redirect. Nothing is decided here.
//!
//! All are TC classifiers, attached by TCX. Where each one sits in the two attach modes is told in
//! `docs/datapath.md`; the code is the same in both, the port's entry in `ENDPOINTS` says what to do.
#![expect(unsafe_code, reason = "map values and packet context are raw pointers in BPF")]

mod count;
mod maps;
mod packet;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::bpf_redirect,
    macros::classifier,
    programs::TcContext,
};
use ebpf::{
    parse::{self, Packet as _, Seen, Tunnel},
    reason::Reason,
    verdict::{Verdict, wiring},
    wire,
};
use packet::Skb;

/// Ingress of a pod's host veth: what the pod sends.
#[classifier]
fn from_pod(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let meta = skb.meta();
    if let Err(reason) = parse::pod(&skb, meta.gso_size != 0) {
        count::malformed(&ctx, &skb, reason);
    }
    let amount = wire::measure(&skb, meta);
    act(&skb, amount, count::Direction::From)
}

/// Direct: egress of the pod's host veth. Interposed: ingress of the agent's end of the pod's shim, what OVS sent.
#[classifier]
fn to_pod(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let amount = wire::measure(&skb, skb.meta());
    act(&skb, amount, count::Direction::To)
}

/// Ingress of the uplink.
#[classifier]
fn from_uplink(ctx: TcContext) -> i32 {
    uplink(&ctx, count::Direction::From)
}

/// Direct: egress of the uplink. Interposed: ingress of the agent's end of the uplink's shim, what OVS sent.
#[classifier]
fn to_uplink(ctx: TcContext) -> i32 {
    uplink(&ctx, count::Direction::To)
}

/// Ingress of the OVS end of a shim: OVS has read the packet by its packet socket, the node's own stack must not
/// have it as well.
#[classifier]
fn stop(_ctx: TcContext) -> i32 {
    TC_ACT_SHOT
}

#[inline(always)]
fn uplink(ctx: &TcContext, direction: count::Direction) -> i32 {
    let skb = Skb::new(ctx);
    let meta = skb.meta();
    let aggregate = meta.gso_size != 0;
    let amount = match parse::uplink(&skb, maps::geneve_port(), aggregate) {
        Ok(Seen::Tunnel(tunnel)) => {
            let headers = if aggregate { parse::headers(&skb, tunnel.inner) } else { 0 };
            let amount = wire::amount(skb.len(), headers, meta);
            let Tunnel { source, destination, vni, .. } = tunnel;
            let remote = match direction {
                count::Direction::From => source,
                count::Direction::To => destination,
            };
            count::tunnel(remote, vni, amount, direction);
            amount
        }
        Ok(Seen::Other) => wire::measure(&skb, meta),
        Err(reason) => {
            count::malformed(ctx, &skb, reason);
            wire::measure(&skb, meta)
        }
    };
    act(&skb, amount, direction)
}

/// Counts the packet for the port it was seen on and does what the port's wiring says.
#[inline(always)]
fn act(skb: &Skb<'_>, amount: wire::Amount, direction: count::Direction) -> i32 {
    let port = maps::port(skb.ifindex());
    let verdict = wiring(port);
    if let (Some(port), false) = (port, matches!(verdict, Verdict::Unknown)) {
        count::port(port.slot, amount, direction);
    }
    match verdict {
        Verdict::Pass => TC_ACT_UNSPEC,
        // SAFETY: the helper only records the target; flags 0 = egress of that interface.
        Verdict::Redirect(target) => unsafe { bpf_redirect(target, 0) as i32 },
        Verdict::Unknown => {
            count::reason(Reason::UnknownPort);
            TC_ACT_UNSPEC
        }
    }
}

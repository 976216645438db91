//! Counters. All are per CPU: a program is not interrupted by another one on its CPU while it adds.

use aya_ebpf::{bindings::BPF_NOEXIST, programs::TcContext};
use aya_log_ebpf::debug;
use ebpf::{
    maps::{TunnelCounters, TunnelKey},
    parse::Packet as _,
    reason::Reason,
    wire::Amount,
};

use super::{
    maps::{ENDPOINT_STATS, REASONS, TUNNEL_STATS},
    packet::Skb,
};

/// Which way a packet goes, seen from the port.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    From,
    To,
}

/// One packet in this many is logged per reason and CPU, if logging is on at all.
const LOG_EVERY: u64 = 1024;

/// Counts a reason; the new count of this CPU.
#[inline(always)]
pub(super) fn reason(reason: Reason) -> u64 {
    let Some(count) = REASONS.get_ptr_mut(reason.index()) else { return 0 };
    // SAFETY: a value of a per-CPU array: valid, aligned, and only this CPU writes it.
    unsafe {
        *count += 1;
        *count
    }
}

/// Counts a packet that is wrong. With logging switched on, says so now and then; with logging off (the default) the
/// level is a constant to the verifier, which removes the branch.
#[inline(always)]
pub(super) fn malformed(ctx: &TcContext, skb: &Skb<'_>, why: Reason) {
    let count = reason(why);
    if count % LOG_EVERY == 1 {
        debug!(ctx, "reason {}, interface {}, {} bytes", why.index(), skb.ifindex(), skb.len());
    }
}

/// Counts a packet for its port.
#[inline(always)]
pub(super) fn port(slot: u32, amount: Amount, direction: Direction) {
    let Some(counters) = ENDPOINT_STATS.get_ptr_mut(slot) else { return };
    // SAFETY: a value of a per-CPU array: valid, aligned, and only this CPU writes it.
    let counters = unsafe { &mut *counters };
    match direction {
        Direction::From => {
            counters.from_packets += amount.packets;
            counters.from_bytes += amount.bytes;
        }
        Direction::To => {
            counters.to_packets += amount.packets;
            counters.to_bytes += amount.bytes;
        }
    }
}

/// Counts a Geneve packet for its tunnel; the first one makes the entry.
#[inline(always)]
pub(super) fn tunnel(remote: [u8; 16], vni: u32, amount: Amount, direction: Direction) {
    let key = TunnelKey { remote, vni };
    let counters = match TUNNEL_STATS.get_ptr_mut(&key) {
        Some(counters) => counters,
        None => {
            // Another CPU may have been first: then this fails, and the entry is there all the same.
            let _ = TUNNEL_STATS.insert(&key, TunnelCounters::default(), u64::from(BPF_NOEXIST));
            match TUNNEL_STATS.get_ptr_mut(&key) {
                Some(counters) => counters,
                None => {
                    reason(Reason::TunnelMapFull);
                    return;
                }
            }
        }
    };
    // SAFETY: a value of a per-CPU hash: valid, aligned, and only this CPU writes it. The map is not preallocated,
    // so an entry removed meanwhile is not reused before the program has ended (RCU).
    let counters = unsafe { &mut *counters };
    match direction {
        Direction::From => {
            counters.rx_packets += amount.packets;
            counters.rx_bytes += amount.bytes;
        }
        Direction::To => {
            counters.tx_packets += amount.packets;
            counters.tx_bytes += amount.bytes;
        }
    }
}

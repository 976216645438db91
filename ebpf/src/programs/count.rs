//! Counters. All are per CPU: a program is not interrupted by another one on its CPU while it adds.

use aya_ebpf::{bindings::BPF_NOEXIST, programs::TcContext};
use aya_log_ebpf::debug;
use ebpf::{
    layout::maps::{Count, PortCounters, TUNNEL_OTHER, TunnelCounters, TunnelKey, unmapped},
    layout::reason::Reason,
    packet::Packet as _,
    packet::wire::Amount,
};

use super::{
    maps::{ENDPOINT_STATS, REASONS, TUNNEL_FREE, TUNNEL_STATS, TUNNELS, is_remote},
    skb::Skb,
};

/// One packet in this many is logged per reason and CPU, if logging is on at all.
const LOG_EVERY: u64 = 1024;

/// 0: count nothing and compare nothing. Only for measuring what counting costs. A constant to the kernel's verifier,
/// which removes the code.
#[unsafe(no_mangle)]
static COUNTING: u8 = 1;

/// Whether counters and the audit are on.
#[inline(always)]
pub(super) fn counting() -> bool {
    // SAFETY: a plain static; volatile, as the loader may have set another value than the compiler saw.
    unsafe { core::ptr::read_volatile(&raw const COUNTING) != 0 }
}

/// Counts a reason; the new count of this CPU.
#[inline(always)]
pub(super) fn reason(reason: Reason) -> u64 {
    numbered(reason.index())
}

/// Counts the reason with this [index](Reason::index); the new count of this CPU.
#[inline(always)]
pub(super) fn numbered(reason: u32) -> u64 {
    if !counting() {
        return 0;
    }
    let Some(count) = REASONS.get_ptr_mut(reason) else { return 0 };
    // SAFETY: a value of a per-CPU array: valid, aligned, and only this CPU writes it.
    unsafe {
        *count += 1;
        *count
    }
}

/// Counts a packet that is wrong. With logging switched on, says so now and then; with logging off (the default) the
/// level is a constant to the verifier, which removes the branch.
#[inline(always)]
pub(super) fn malformed(skb: &Skb, why: Reason) {
    let count = reason(why);
    if count % LOG_EVERY == 1 {
        debug!(
            TcContext::new(skb.raw()),
            "reason {}, interface {}, {} bytes",
            why.index(),
            skb.ifindex(),
            skb.len()
        );
    }
}

/// Counts a packet for its port, in the counter that `which` chooses.
#[inline(always)]
pub(super) fn port(slot: u32, amount: Amount, which: impl FnOnce(&mut PortCounters) -> &mut Count) {
    if !counting() {
        return;
    }
    let Some(counters) = ENDPOINT_STATS.get_ptr_mut(slot) else { return };
    // SAFETY: a value of a per-CPU array: valid, aligned, and only this CPU writes it.
    add(which(unsafe { &mut *counters }), amount);
}

/// Counts a Geneve packet for its tunnel, in the counter that `which` chooses.
#[inline(always)]
pub(super) fn tunnel(slot: u32, amount: Amount, which: impl FnOnce(&mut TunnelCounters) -> &mut Count) {
    if !counting() {
        return;
    }
    let Some(counters) = TUNNEL_STATS.get_ptr_mut(slot) else { return };
    // SAFETY: a value of a per-CPU array: valid, aligned, and only this CPU writes it.
    add(which(unsafe { &mut *counters }), amount);
}

#[inline(always)]
fn add(count: &mut Count, amount: Amount) {
    count.packets += amount.packets;
    count.bytes += amount.bytes;
}

/// The slot of a tunnel; the first packet takes one. Strangers share a slot: whoever can send to port 6081 would otherwise use
/// up the rest.
#[inline(always)]
pub(super) fn tunnel_slot(key: &TunnelKey) -> u32 {
    // SAFETY: the map is not preallocated, see `maps::port`.
    match unsafe { TUNNELS.get(key) } {
        Some(slot) => *slot,
        None => new_tunnel(key),
    }
}

#[inline(never)]
fn new_tunnel(key: &TunnelKey) -> u32 {
    if unmapped(&key.remote).is_some_and(|address| !is_remote(u32::from_ne_bytes(address))) {
        return TUNNEL_OTHER;
    }
    let Ok(Some(slot)) = TUNNEL_FREE.pop() else {
        reason(Reason::TunnelMapFull);
        return TUNNEL_OTHER;
    };
    if TUNNELS.insert(key, slot, u64::from(BPF_NOEXIST)).is_ok() {
        return slot;
    }
    // Another CPU was first, or the map is full.
    let _ = TUNNEL_FREE.push(slot, 0);
    // SAFETY: the map is not preallocated, see `maps::port`.
    match unsafe { TUNNELS.get(key) } {
        Some(slot) => *slot,
        None => {
            reason(Reason::TunnelMapFull);
            TUNNEL_OTHER
        }
    }
}

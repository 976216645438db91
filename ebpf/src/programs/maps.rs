//! The maps. Their keys, values and sizes are those of `ebpf::maps`; all are pinned by name.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, PerCpuHashMap},
};
use ebpf::{
    maps::{
        Config, PORT_ARRAY_SIZE, PORT_HASH_SIZE, PORT_SLOTS, Port, PortCounters, TUNNEL_SLOTS,
        TunnelCounters, TunnelKey,
    },
    reason::REASON_SLOTS,
};

#[map]
static CONFIG: Array<Config> = Array::pinned(1, 0);

#[map]
static ENDPOINTS: Array<Port> = Array::pinned(PORT_ARRAY_SIZE, 0);

#[map]
static ENDPOINTS_HIGH: HashMap<u32, Port> = HashMap::pinned(PORT_HASH_SIZE, BPF_F_NO_PREALLOC);

#[map]
pub(super) static ENDPOINT_STATS: PerCpuArray<PortCounters> = PerCpuArray::pinned(PORT_SLOTS, 0);

// Not LRU: with few entries and many CPUs an LRU hash evicts live ones, and a counter that falls back to zero is
// worse than one that was refused and says so. A sender of made-up VNIs can fill it; the agent prunes idle entries.
#[map]
pub(super) static TUNNEL_STATS: PerCpuHashMap<TunnelKey, TunnelCounters> =
    PerCpuHashMap::pinned(TUNNEL_SLOTS, BPF_F_NO_PREALLOC);

#[map]
pub(super) static REASONS: PerCpuArray<u64> = PerCpuArray::pinned(REASON_SLOTS, 0);

/// The port entry of an interface, if it has one. An array slot that is not in use is all zero.
#[inline(always)]
pub(super) fn port(ifindex: u32) -> Option<&'static Port> {
    if ifindex < PORT_ARRAY_SIZE {
        ENDPOINTS.get(ifindex)
    } else {
        // SAFETY: the map is not preallocated, so an entry that user space removes meanwhile is not reused before
        // the program has ended (RCU).
        unsafe { ENDPOINTS_HIGH.get(ifindex) }
    }
}

/// UDP port of Geneve, 0 if not configured.
#[inline(always)]
pub(super) fn geneve_port() -> u16 {
    match CONFIG.get(0) {
        Some(config) => config.geneve_port,
        None => 0,
    }
}

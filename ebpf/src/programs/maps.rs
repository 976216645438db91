//! The maps. Their keys, values and sizes are those of `ebpf::layout`; all are pinned by name.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, Queue, RingBuf},
};
use ebpf::{
    layout::flow::{Entry, Note, Tuple4, Tuple6},
    layout::maps::{
        Budget, Config, Cursors, EVENTS_BYTES, FLOWS as FLOWS_SIZE, FLOWS6_PART, NOTES as NOTE_SLOTS,
        NOTES6 as NOTE_SLOTS6, PEERS as PEER_SLOTS, PORT_ARRAY_SIZE, PORT_HASH_SIZE, PORT_PRESENT,
        PORT_SLOTS, Peer, Port, PortCounters, REMOTES as REMOTE_SLOTS, SEEN as SEEN_SLOTS, TUNNEL_SLOTS,
        TunnelCounters, TunnelKey,
    },
    layout::reason::REASON_SLOTS,
    layout::scope::SCOPES as SCOPE_BUCKETS,
    layout::service::{SLOW_SERVICES as SERVICE_SLOTS, ServiceKey},
};

#[map]
static CONFIG: Array<Config> = Array::pinned(1, 0);

/// What has changed last in each scope, see `ebpf::layout::scope`.
#[map]
static SCOPES: Array<u32> = Array::pinned(SCOPE_BUCKETS, 0);

#[map]
static ENDPOINTS: Array<Port> = Array::pinned(PORT_ARRAY_SIZE, 0);

#[map]
static ENDPOINTS_HIGH: HashMap<u32, Port> = HashMap::pinned(PORT_HASH_SIZE, BPF_F_NO_PREALLOC);

#[map]
pub(super) static ENDPOINT_STATS: PerCpuArray<PortCounters> = PerCpuArray::pinned(PORT_SLOTS, 0);

// Not LRU: a counter that falls back to zero is worse than one that was refused and says so. A sender of made-up VNIs
// can use up the slots; the agent takes idle ones back.
#[map]
pub(super) static TUNNELS: HashMap<TunnelKey, u32> = HashMap::pinned(TUNNEL_SLOTS, BPF_F_NO_PREALLOC);

/// Slots of `TUNNEL_STATS` that nobody has; the agent fills it.
#[map]
pub(super) static TUNNEL_FREE: Queue<u32> = Queue::pinned(TUNNEL_SLOTS, 0);

#[map]
pub(super) static TUNNEL_STATS: PerCpuArray<TunnelCounters> = PerCpuArray::pinned(TUNNEL_SLOTS, 0);

/// Outer sources that OVS has a tunnel to, in wire order. The value says nothing.
#[map]
static REMOTES: HashMap<u32, u32> = HashMap::pinned(REMOTE_SLOTS, BPF_F_NO_PREALLOC);

/// Nodes that this CPU met lately, see `ebpf::decide::peer`.
#[map]
pub(super) static PEERS: PerCpuArray<Peer> = PerCpuArray::pinned(PEER_SLOTS, 0);

/// Addresses of services that are kept off the flow cache. The value says nothing.
#[map]
static SLOW_SERVICES: HashMap<ServiceKey, u32> = HashMap::pinned(SERVICE_SLOTS, BPF_F_NO_PREALLOC);

#[map]
pub(super) static REASONS: PerCpuArray<u64> = PerCpuArray::pinned(REASON_SLOTS, 0);

#[map]
pub(super) static FLOWS: LruHashMap<Tuple4, Entry<Tuple4>> = LruHashMap::pinned(FLOWS_SIZE, 0);

#[map]
pub(super) static FLOWS6: LruHashMap<Tuple6, Entry<Tuple6>> = LruHashMap::pinned(FLOWS_SIZE / FLOWS6_PART, 0);

#[map]
pub(super) static NOTES: Array<Note<Tuple4>> = Array::pinned(NOTE_SLOTS, 0);

#[map]
pub(super) static NOTES6: Array<Note<Tuple6>> = Array::pinned(NOTE_SLOTS6, 0);

/// Where each CPU is in its slots of `NOTES*`.
#[map]
pub(super) static NOTE_CURSOR: PerCpuArray<Cursors> = PerCpuArray::pinned(1, 0);

/// Notes that packets of each port took, by counter slot.
#[map]
pub(super) static NOTE_BUDGET: PerCpuArray<Budget> = PerCpuArray::pinned(PORT_SLOTS, 0);

#[map]
pub(super) static BUDGET: PerCpuArray<Budget> = PerCpuArray::pinned(2, 0);

/// Sightings of UDP packets, see `ebpf::decide::seen`.
#[map]
pub(super) static SEEN: Array<u64> = Array::pinned(SEEN_SLOTS, 0);

/// Room to build a value in: it is too large for the stack beside the rest.
#[map]
pub(super) static SCRATCH: PerCpuArray<Entry<Tuple4>> = PerCpuArray::pinned(1, 0);

/// Room to build a value of an IPv6 flow in, as [`SCRATCH`] for IPv4.
#[map]
pub(super) static SCRATCH6: PerCpuArray<Entry<Tuple6>> = PerCpuArray::pinned(1, 0);

#[map]
pub(super) static EVENTS: RingBuf = RingBuf::pinned(EVENTS_BYTES, 0);

/// The port entry of an interface, if it has one. For reading; `diverged` alone is written, by [`port_mut`].
#[inline(always)]
pub(super) fn port(ifindex: u32) -> Option<&'static Port> {
    let port = port_mut(ifindex)?;
    // SAFETY: a value of an array, or of a hash that is not preallocated, so that an entry that user space removes
    // meanwhile is not reused before the program has ended (RCU).
    let port = unsafe { &*port };
    if port.flags & PORT_PRESENT == 0 { None } else { Some(port) }
}

#[inline(always)]
pub(super) fn port_mut(ifindex: u32) -> Option<*mut Port> {
    // The array answers with nothing beyond its end.
    match ENDPOINTS.get_ptr_mut(ifindex) {
        None => ENDPOINTS_HIGH.get_ptr_mut(ifindex),
        found => found,
    }
}

/// Whether OVS has a tunnel to this address.
#[inline(always)]
pub(super) fn is_remote(address: u32) -> bool {
    REMOTES.get_ptr(address).is_some()
}

/// Whether an address is that of a service that is kept off the flow cache.
#[inline(always)]
pub(super) fn is_slow_service(key: &ServiceKey) -> bool {
    SLOW_SERVICES.get_ptr(key).is_some()
}

#[inline(always)]
pub(super) fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

/// The node's epoch now. User space changes it while we run.
#[inline(always)]
pub(super) fn epoch(config: &Config) -> u32 {
    // SAFETY: a field of a map value, which user space writes as a whole word.
    unsafe { core::ptr::read_volatile(&raw const config.epoch) }
}

/// Number of the last change of a part of OVS's tables, as it is now.
#[inline(always)]
pub(super) fn change(config: &Config) -> u32 {
    // SAFETY: a field of a map value, which user space writes as a whole word.
    unsafe { core::ptr::read_volatile(&raw const config.change) }
}

/// A bucket of the map `SCOPES`.
#[inline(always)]
pub(super) fn scope(bucket: u32) -> Option<u32> {
    let value = SCOPES.get_ptr(bucket)?;
    // SAFETY: a value of an array, which user space writes as a whole word.
    Some(unsafe { core::ptr::read_volatile(value) })
}

/// `GATE_*` bits, as they are now.
#[inline(always)]
pub(super) fn gate(config: &Config) -> u32 {
    // SAFETY: a field of a map value, which user space writes as a whole word.
    unsafe { core::ptr::read_volatile(&raw const config.gate) }
}

/// Tick of the agent's last sign of life.
#[inline(always)]
pub(super) fn heartbeat(config: &Config) -> u32 {
    // SAFETY: a field of a map value, which user space writes as a whole word.
    unsafe { core::ptr::read_volatile(&raw const config.heartbeat) }
}

//! Layout of the services that are kept off the flow cache.

/// Capacity of `SLOW_SERVICES`: addresses with their ports. A service with one port has two or three of each family.
pub const SLOW_SERVICES: u32 = 4_096;

/// Key of `SLOW_SERVICES`, whose value says nothing: where clients reach a port of a service, as a packet enters OVS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    /// Address, wire order; IPv4 as `::ffff:a.b.c.d`.
    pub address: [u32; 4],
    /// TCP or UDP port, wire order.
    pub port: u16,
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// Padding; always 0.
    pub _pad: u8,
}
const _: () = assert!(size_of::<ServiceKey>() == 20);

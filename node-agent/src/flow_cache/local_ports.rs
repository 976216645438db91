//! Scopes as buckets of the programs' map: which interface of this node is which OpenFlow port of br-int. No I/O but a look at the
//! names of links.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use api::MacAddr;
use api::ovn_name::MANAGEMENT_INTERFACE;
use ebpf::layout::scope;
use nix::net::if_::if_nametoindex;
use ovsdb_client::vswitch::Interface;

use crate::attach::Names;
use crate::flow_cache::scope::Scope;
use crate::ovs::Ovs;
use crate::ovs::ports::PodPort;

/// Ports of br-int by which cached packets come and go: pods' and the management port.
#[derive(Debug, Default)]
pub(super) struct LocalPorts {
    /// Index of the interface that the programs know, by the name of OVS's interface.
    by_name: HashMap<String, u32>,
    /// The same by OpenFlow port.
    by_number: HashMap<u32, u32>,
}

/// Index of the interface that the programs know a port by; `None`: no cached packet comes or goes by it, or the link is gone.
pub(super) fn interface(row: &Interface) -> Option<u32> {
    match PodPort::of(row) {
        Some(pod) => host_veth(&pod.sandbox),
        None if row.name == MANAGEMENT_INTERFACE => if_nametoindex(MANAGEMENT_INTERFACE).ok(),
        None => None,
    }
}

/// Index of the host veth of a container; `None` when it is gone.
pub(super) fn host_veth(container: &str) -> Option<u32> {
    if_nametoindex(Names::of(container).host.as_str()).ok()
}

impl LocalPorts {
    /// The ports as the Open_vSwitch database has them.
    pub(super) fn read(ovs: &Ovs) -> Self {
        let snapshot = ovs.replica().read();
        let mut ports = Self::default();
        for row in snapshot.table::<Interface>().iter() {
            let Some(ifindex) = interface(row) else { continue };
            ports.by_name.insert(row.name.clone(), ifindex);
            ports.by_number.extend(number(row).map(|number| (number, ifindex)));
        }
        ports
    }

    /// Bucket of the port with the interface of this name.
    pub(super) fn named(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).map(|ifindex| scope::port(*ifindex))
    }

    /// Buckets of scopes. An OpenFlow port that is not known has no entries: an endpoint takes part in the cache only after it is known.
    pub(super) fn buckets(&self, scopes: &BTreeSet<Scope>) -> Vec<u32> {
        scopes.iter().filter_map(|scope| self.bucket(scope)).collect()
    }

    fn bucket(&self, of: &Scope) -> Option<u32> {
        Some(match *of {
            Scope::Address(IpAddr::V4(address)) => scope::address4(u32::from_ne_bytes(address.octets())),
            Scope::Address(IpAddr::V6(address)) => {
                let mut words = [0; 4];
                for (word, part) in words.iter_mut().zip(address.octets().as_chunks::<4>().0) {
                    *word = u32::from_ne_bytes(*part);
                }
                scope::address6(words)
            }
            Scope::Port(number) => scope::port(*self.by_number.get(&number)?),
            Scope::Mac(MacAddr([a, b, c, d, e, f])) => {
                scope::mac(u16::from_ne_bytes([a, b]).into(), u32::from_ne_bytes([c, d, e, f]))
            }
            Scope::Key { vni, key } => scope::key(vni, key.into()),
            Scope::Datapath { vni } => scope::datapath(vni),
        })
    }
}

fn number(row: &Interface) -> Option<u32> {
    row.ofport.and_then(|number| u32::try_from(number).ok()).filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_has_the_bucket_that_the_programs_look_at() {
        let ports = LocalPorts { by_number: [(5, 17)].into(), ..LocalPorts::default() };
        let bucket = |of: Scope| ports.buckets(&[of].into());
        // As a packet has them.
        let address = u32::from_ne_bytes([10, 244, 1, 7]);
        assert_eq!(bucket(Scope::Address([10, 244, 1, 7].into())), [scope::address4(address)]);
        let bytes = [0xfd, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 7];
        let words = [0, 4, 8, 12].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
        assert_eq!(bucket(Scope::Address(bytes.into())), [scope::address6(words)]);
        let mac = MacAddr([0x0a, 0x58, 10, 244, 1, 7]);
        assert_eq!(bucket(Scope::Mac(mac)), [scope::mac(u16::from_ne_bytes([0x0a, 0x58]).into(), address)]);
        assert_eq!(bucket(Scope::Port(5)), [scope::port(17)]);
        assert!(bucket(Scope::Port(6)).is_empty(), "nobody sends or receives by it");
        assert_eq!(bucket(Scope::Key { vni: 3, key: 0x8001 }), [scope::key(3, 0x8001)]);
        assert_eq!(bucket(Scope::Datapath { vni: 3 }), [scope::datapath(3)]);
    }
}

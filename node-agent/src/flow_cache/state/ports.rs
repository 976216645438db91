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
pub(in crate::flow_cache) struct LocalPorts {
    /// By the name of OVS's interface.
    by_name: HashMap<String, LocalPort>,
    /// Index of the interface that the programs know, by OpenFlow port.
    by_number: HashMap<u32, u32>,
}

#[derive(Debug)]
struct LocalPort {
    /// Index of the interface that the programs know.
    ifindex: u32,
    /// OpenFlow port, once OVS has it.
    number: Option<u32>,
    /// Id of the pod's interface ([`attach::interface_id`](crate::attach::interface_id)); `None`: the management port.
    id: Option<String>,
}

/// What is there of a port: what the database has, and its link.
pub(in crate::flow_cache) struct Found {
    name: String,
    /// `None`: no cached packet comes or goes by it, or the link is gone.
    ifindex: Option<u32>,
    number: Option<u32>,
    id: Option<String>,
}

impl Found {
    fn of(row: &Interface) -> Self {
        let id = PodPort::of(row).map(|pod| pod.id());
        Self { name: row.name.clone(), ifindex: interface(row), number: number(row), id }
    }

    /// All interfaces of OVS.
    pub(in crate::flow_cache) fn all(ovs: &Ovs) -> Vec<Self> {
        ovs.replica().read().table::<Interface>().iter().map(|row| Self::of(row)).collect()
    }

    /// Interfaces with these names that exist.
    pub(in crate::flow_cache) fn named(ovs: &Ovs, names: &BTreeSet<String>) -> Vec<Self> {
        names.iter().filter_map(|name| ovs.interface(name)).map(|row| Self::of(&row)).collect()
    }
}

/// Index of the interface that the programs know a port by; `None`: no cached packet comes or goes by it, or the link is gone.
pub(in crate::flow_cache) fn interface(row: &Interface) -> Option<u32> {
    match PodPort::of(row) {
        Some(pod) => host_veth(&pod.id()),
        None if row.name == MANAGEMENT_INTERFACE => if_nametoindex(MANAGEMENT_INTERFACE).ok(),
        None => None,
    }
}

/// Index of the host veth of a pod's interface with this id; `None` when it is gone.
pub(in crate::flow_cache) fn host_veth(id: &str) -> Option<u32> {
    if_nametoindex(Names::of(id).host.as_str()).ok()
}

impl LocalPorts {
    /// Takes over all ports.
    pub(in crate::flow_cache) fn replace(&mut self, all: Vec<Found>) {
        let mut before = std::mem::take(self);
        for found in all {
            let old = before.by_name.remove(&found.name);
            self.put(found, old.as_ref());
        }
    }

    /// Takes over the ports with these names: others have not changed.
    pub(in crate::flow_cache) fn update(&mut self, names: &BTreeSet<String>, there: Vec<Found>) {
        let mut before = HashMap::new();
        for name in names {
            let Some(port) = self.by_name.remove(name) else { continue };
            if let Some(number) = port.number {
                self.by_number.remove(&number);
            }
            before.insert(name.as_str(), port);
        }
        for found in there {
            let old = before.remove(found.name.as_str());
            self.put(found, old.as_ref());
        }
    }

    /// A port whose link is gone stays what it was until its row goes: then there is something to end.
    fn put(&mut self, found: Found, old: Option<&LocalPort>) {
        let Found { name, ifindex, number, id } = found;
        let Some(ifindex) = ifindex.or(old.map(|port| port.ifindex)) else { return };
        self.by_number.extend(number.map(|number| (number, ifindex)));
        self.by_name.insert(name, LocalPort { ifindex, number, id });
    }

    /// Bucket of the port with the interface of this name.
    pub(in crate::flow_cache) fn named(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).map(|port| scope::port(port.ifindex))
    }

    /// Bucket of the port of a pod's interface with this id.
    pub(in crate::flow_cache) fn of_interface(&self, id: &str) -> Option<u32> {
        let port = self.by_name.values().find(|port| port.id.as_deref() == Some(id))?;
        Some(scope::port(port.ifindex))
    }

    /// Buckets of scopes. An OpenFlow port that is not known has no entries: an endpoint takes part in the cache only after it is known.
    pub(in crate::flow_cache) fn buckets(&self, scopes: &BTreeSet<Scope>) -> Vec<u32> {
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

    fn found(name: &str, ifindex: Option<u32>, number: u32) -> Found {
        Found { name: name.into(), ifindex, number: Some(number), id: Some(format!("c-{name}")) }
    }

    #[test]
    fn a_port_whose_link_is_gone_is_known_until_its_row_goes() {
        let mut ports = LocalPorts::default();
        ports.replace(vec![found("a", Some(17), 5), found("b", Some(18), 6)]);
        ports.replace(vec![found("a", None, 5), found("b", Some(18), 6), found("c", None, 7)]);
        assert_eq!(ports.named("a"), Some(scope::port(17)));
        assert_eq!(ports.of_interface("c-a"), Some(scope::port(17)));
        assert_eq!(ports.named("c"), None, "no packet came or went by it");
        ports.replace(vec![found("b", Some(18), 6)]);
        assert_eq!((ports.named("a"), ports.of_interface("c-a")), (None, None));
    }

    #[test]
    fn an_update_is_of_the_named_ports_alone() {
        let of = |ports: &LocalPorts, number| ports.buckets(&[Scope::Port(number)].into());
        let mut ports = LocalPorts::default();
        ports.replace(vec![found("a", Some(17), 5), found("b", Some(18), 6), found("c", Some(19), 7)]);
        let names = ["a".to_owned(), "b".to_owned(), "d".to_owned()].into();
        // a has another number, which b had; b is gone; d came.
        ports.update(&names, vec![found("a", Some(17), 6), found("d", Some(20), 8)]);
        assert!(of(&ports, 5).is_empty());
        assert_eq!(of(&ports, 6), [scope::port(17)]);
        assert_eq!(of(&ports, 7), [scope::port(19)]);
        assert_eq!(of(&ports, 8), [scope::port(20)]);
        assert_eq!(ports.named("b"), None);
    }

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

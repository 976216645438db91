//! Map `SLOW_SERVICES` with the addresses of services that are kept off the flow cache, and what entries of translated flows count.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use aya::maps::{HashMap, Map, MapData, MapError};
use ebpf::{
    decide::{service::is_kept_off, tuple::Tuple},
    layout::{
        flow::{Entry, TRANSLATED},
        service::ServiceKey,
    },
};

use super::{Error, flows::Five, shape::SLOW_SERVICES};
use crate::flow_cache::{Carried, ServiceAddress};
use api::Protocol;
use api::admin::Amount;

fn failed(action: &'static str, source: MapError) -> Error {
    Error::map(SLOW_SERVICES, action, source)
}

/// The pinned map.
pub(super) struct SlowServices(HashMap<MapData, ServiceKey, u32>);

impl SlowServices {
    pub(super) fn new(data: MapData) -> Result<Self, Error> {
        HashMap::try_from(Map::HashMap(data)).map(Self).map_err(|source| failed("open", source))
    }

    /// The keys of the map.
    pub(super) fn list(&self) -> Result<BTreeSet<ServiceKey>, Error> {
        self.0.keys().collect::<Result<_, _>>().map_err(|source| failed("list", source))
    }

    /// Replaces the content of the map: removes other keys, then adds missing ones.
    ///
    /// # Errors
    /// The first key that could not be removed or added; the others are still processed.
    pub(super) fn set(&mut self, wanted: &BTreeSet<ServiceKey>) -> Result<(), Error> {
        let there = self.list()?;
        let mut result = Ok(());
        for key in there.difference(wanted) {
            result = result.and(self.0.remove(key).map_err(|source| failed("remove from", source)));
        }
        for key in wanted.difference(&there) {
            result = result.and(self.0.insert(key, 1, 0).map_err(|source| failed("write", source)));
        }
        result
    }
}

/// Numbers of IANA.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Key of an address; `None` for a protocol that the flow cache does not have.
pub(super) fn key(of: &ServiceAddress) -> Option<ServiceKey> {
    let protocol = match of.protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => return None,
    };
    let bytes = match of.address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .octets();
    let mut address = [0; 4];
    for (word, part) in address.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*part);
    }
    Some(ServiceKey { address, port: of.port.to_be(), protocol, _pad: 0 })
}

fn protocol(number: u8) -> Option<Protocol> {
    match number {
        TCP => Some(Protocol::Tcp),
        UDP => Some(Protocol::Udp),
        _ => None,
    }
}

/// The address of a key; `None` if no agent has written it.
pub(super) fn address(key: &ServiceKey) -> Option<ServiceAddress> {
    let mut bytes = [0; 16];
    for (part, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(key.address) {
        *part = word.to_ne_bytes();
    }
    Some(ServiceAddress {
        address: Ipv6Addr::from(bytes).to_canonical(),
        port: u16::from_be(key.port),
        protocol: protocol(key.protocol)?,
    })
}

/// What an entry has counted; `None` if it translates nothing.
pub(super) fn carried<T: Tuple + Into<Five> + Hash>(key: &T, entry: &Entry<T>) -> Option<Carried> {
    if entry.translated & TRANSLATED == 0 {
        return None;
    }
    let ends = |five: Five| {
        let Five { source, destination, source_port, destination_port, .. } = five;
        (SocketAddr::new(source, source_port), SocketAddr::new(destination, destination_port))
    };
    let mut id = DefaultHasher::new();
    key.hash(&mut id);
    Some(Carried {
        id: id.finish(),
        learned: entry.learned,
        protocol: protocol(key.protocol())?,
        before: ends((*key).into()),
        after: ends(entry.after.into()),
        slow: is_kept_off(entry),
        amount: Amount { packets: entry.packets, bytes: entry.bytes },
    })
}

#[cfg(test)]
mod tests {
    use ebpf::layout::flow::Tuple4;

    use super::*;

    #[test]
    fn an_address_is_read_back_from_its_key_and_is_what_a_packet_has() {
        for ip in ["10.96.0.9", "fd00:10:96::9"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let of = ServiceAddress { address: ip.parse().unwrap(), port: 80, protocol };
                assert_eq!(address(&key(&of).unwrap()), Some(of));
            }
        }
        let of = ServiceAddress { address: [10, 96, 0, 9].into(), port: 80, protocol: Protocol::Udp };
        let packet = Tuple4 {
            destination: u32::from_ne_bytes([10, 96, 0, 9]),
            destination_port: 80_u16.to_be(),
            protocol: UDP,
            ..Tuple4::default()
        };
        assert_eq!(key(&of), Some(packet.destination_key()));
        assert_eq!(key(&ServiceAddress { protocol: Protocol::Sctp, ..of }), None);
    }

    #[test]
    fn an_entry_that_translates_nothing_has_carried_nothing_for_services() {
        let tuple = Tuple4 { protocol: TCP, source_port: 1_u16.to_be(), ..Tuple4::default() };
        let entry =
            Entry { after: Tuple4 { destination: 7, ..tuple }, packets: 3, bytes: 9, ..Entry::default() };
        assert_eq!(carried(&tuple, &entry), None);
        let found = carried(&tuple, &Entry { translated: TRANSLATED, ..entry }).unwrap();
        assert_eq!((found.before.0.port(), found.amount.packets, found.slow), (1, 3, false));
        let other = Tuple4 { side: 1, ..tuple };
        assert_ne!(carried(&other, &Entry { translated: TRANSLATED, ..entry }).unwrap().id, found.id);
    }
}

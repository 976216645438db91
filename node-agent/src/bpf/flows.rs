//! Decodes entries of the flow cache's maps and divergence records.

use ebpf::decide::scope::is_current;
use ebpf::decide::service::is_kept_off;
use ebpf::decide::tuple::Tuple;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use api::MacAddr;
use ebpf::layout::flow::{
    self, Entry, HEADER_WORDS, PROBE_SENT, SENSITIVE, SIDE_NODE, SIDE_OUTSIDE, SIDE_TUNNEL, STATE_ACTIVE,
    STATE_CLOSING, TRANSLATED, Tuple4, Tuple6,
};

use super::clock::Tick;
use crate::flow_cache::{Action, CachedVerdict, Divergence, Flow, Translated};

/// A flow's addresses and ports, of either family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Five {
    pub(super) protocol: u8,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
}

fn address4(word: u32) -> IpAddr {
    Ipv4Addr::from(word.to_ne_bytes()).into()
}

fn address6(words: [u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(bytes).to_canonical()
}

impl From<Tuple4> for Five {
    fn from(tuple: Tuple4) -> Self {
        Self {
            protocol: tuple.protocol,
            source: address4(tuple.source),
            destination: address4(tuple.destination),
            source_port: u16::from_be(tuple.source_port),
            destination_port: u16::from_be(tuple.destination_port),
        }
    }
}

impl From<Tuple6> for Five {
    fn from(tuple: Tuple6) -> Self {
        Self {
            protocol: tuple.protocol,
            source: address6(tuple.source),
            destination: address6(tuple.destination),
            source_port: u16::from_be(tuple.source_port),
            destination_port: u16::from_be(tuple.destination_port),
        }
    }
}

/// Context for decoding entries.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) epoch: u32,
    /// Number of the last change.
    pub(super) change: u32,
    /// The numbers of the scopes' last changes.
    pub(super) scopes: Vec<u32>,
    /// Current time in ticks.
    pub(super) now: u32,
    pub(super) tick: Tick,
    /// Ids of pods by their host veths, and names of other interfaces.
    pub(super) names: BTreeMap<u32, String>,
}

/// Destination and source MAC from the words that hold them.
fn macs(words: [u32; 3]) -> (MacAddr, MacAddr) {
    let [a, b, c] = words.map(u32::to_ne_bytes);
    (MacAddr([a[0], a[1], a[2], a[3], b[0], b[1]]), MacAddr([b[2], b[3], c[0], c[1], c[2], c[3]]))
}

fn bytes(header: &[u64; HEADER_WORDS]) -> Vec<u8> {
    header.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Four bytes of the header as a number.
fn word(header: &[u8], at: usize) -> u32 {
    header.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Offset of the inner Ethernet header.
const INNER: usize = flow::HEADER - 14;

/// Six bytes of the header as a MAC; zeros where it is shorter.
fn mac(header: &[u8], at: usize) -> MacAddr {
    MacAddr(header.get(at..at + 6).and_then(|part| part.try_into().ok()).unwrap_or_default())
}

impl Reader {
    fn name(&self, ifindex: u32) -> String {
        self.names.get(&ifindex).cloned().unwrap_or_else(|| format!("interface {ifindex}"))
    }

    fn age(&self, learned: u32) -> u64 {
        u64::try_from(self.tick.milliseconds(i64::from(self.now.wrapping_sub(learned)))).unwrap_or(0)
    }

    fn left(&self, deadline: u32) -> i64 {
        self.tick.milliseconds(i64::from(deadline.wrapping_sub(self.now).cast_signed()))
    }

    /// An entry. `key`: the flow as it enters OVS.
    pub(super) fn flow<T: Tuple + Into<Five>>(&self, key: T, entry: &Entry<T>) -> Flow {
        let bucket = |number| self.scopes.get(usize::try_from(number).ok()?).copied();
        let current = entry.epoch == self.epoch && is_current(&key, entry, self.change, bucket);
        let header = bytes(&entry.header);
        let [vni, option, remote] = entry.way;
        let to_tunnel = entry.after.side() == SIDE_TUNNEL;
        let action = if to_tunnel {
            Action::Tunnel {
                // Outer destination, VNI and OVN's option: offsets of Geneve over IPv4 without options.
                remote: Ipv4Addr::from(word(&header, 30)),
                vni: word(&header, 46) >> 8,
                option: word(&header, 54),
            }
        } else if key.side() == SIDE_TUNNEL {
            Action::Deliver {
                remote: Ipv4Addr::from(remote.to_ne_bytes()),
                vni,
                option: u32::from_be(option),
            }
        } else {
            Action::Local { to: self.name(entry.target) }
        };
        let endpoint =
            if key.side() == SIDE_TUNNEL { self.name(entry.target) } else { self.name(entry.way[0]) };
        let gateway =
            [key.side(), entry.after.side()].iter().any(|side| matches!(*side, SIDE_OUTSIDE | SIDE_NODE));
        let (destination_mac, source_mac) = macs(entry.macs);
        // In a tunnel the inner frame's, at the end of the header; else the frame's own.
        let front = if to_tunnel { INNER } else { 0 };
        let (five, after): (Five, Five) = (key.into(), entry.after.into());
        let translated = (entry.translated & TRANSLATED != 0).then(|| Translated {
            source: SocketAddr::new(after.source, after.source_port),
            destination: SocketAddr::new(after.destination, after.destination_port),
        });
        Flow {
            delivered_destination_mac: mac(&header, front),
            delivered_source_mac: mac(&header, front + 6),
            endpoint,
            protocol: five.protocol,
            source: five.source,
            destination: five.destination,
            source_port: five.source_port,
            destination_port: five.destination_port,
            translated,
            action,
            gateway,
            epoch: entry.epoch,
            valid: current && entry.state == STATE_ACTIVE,
            current,
            sensitive: entry.translated & SENSITIVE != 0,
            closing: entry.state == STATE_CLOSING,
            slow: is_kept_off(entry),
            probing: entry.probing == PROBE_SENT,
            ttl_step: entry.ttl_step,
            destination_mac,
            source_mac,
            age_ms: self.age(entry.learned),
            refresh_in_ms: self.left(entry.deadline),
            packets: entry.packets,
            bytes: entry.bytes,
        }
    }

    /// A record of the ring buffer.
    pub(super) fn divergence(&self, record: &flow::Divergence) -> Divergence {
        let five: Five = record.tuple.into();
        let answer = |answer: &flow::Answer| {
            let after: Five = answer.after.into();
            CachedVerdict {
                target: answer.target,
                kind: match (record.tuple.side, answer.after.side) {
                    (_, SIDE_TUNNEL) => "tunnel",
                    (SIDE_TUNNEL, _) => "deliver",
                    _ => "local",
                },
                source: SocketAddr::new(after.source, after.source_port),
                destination: SocketAddr::new(after.destination, after.destination_port),
                ttl_step: u8::try_from(answer.ttl_step).unwrap_or(u8::MAX),
                header: bytes(&answer.header).iter().map(|byte| format!("{byte:02x}")).collect(),
            }
        };
        Divergence {
            endpoint: self.name(record.ifindex),
            epoch: record.epoch,
            protocol: five.protocol,
            source: five.source,
            destination: five.destination,
            source_port: five.source_port,
            destination_port: five.destination_port,
            remembered: answer(&record.remembered),
            ovs: answer(&record.ovs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        Reader {
            epoch: 7,
            change: 0,
            scopes: Vec::new(),
            now: 5_000,
            tick: Tick::new(1_000_000).unwrap(),
            names: [(12, "pod".to_owned())].into(),
        }
    }

    #[test]
    fn an_entry_tells_the_tunnel_from_the_bytes_it_puts_in_front() {
        let mut header = [0_u8; 72];
        header[30..34].copy_from_slice(&[172, 18, 0, 3]);
        header[46..50].copy_from_slice(&[0, 0, 5, 0]);
        header[54..58].copy_from_slice(&[0, 1, 0, 2]);
        header[58..70].copy_from_slice(&[10, 88, 10, 244, 1, 3, 10, 88, 10, 244, 1, 1]);
        let words: Vec<u64> =
            header.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        let tuple = Tuple4 {
            source: u32::from_ne_bytes([10, 244, 0, 3]),
            destination: u32::from_ne_bytes([10, 96, 0, 10]),
            source_port: 40_000_u16.to_be(),
            destination_port: 80_u16.to_be(),
            protocol: 6,
            ..Tuple4::default()
        };
        let after = Tuple4 { destination: u32::from_ne_bytes([10, 244, 1, 3]), side: SIDE_TUNNEL, ..tuple };
        let entry = Entry {
            epoch: 7,
            way: [12, 0, 0],
            state: STATE_ACTIVE,
            deadline: 6_000,
            learned: 4_000,
            after,
            translated: 1,
            header: words.try_into().unwrap(),
            ..Entry::default()
        };
        let flow = reader().flow(tuple, &entry);
        let translated = flow.translated.unwrap();
        assert_eq!(translated.destination.to_string(), "10.244.1.3:80");
        assert_eq!(
            flow.action,
            Action::Tunnel { remote: Ipv4Addr::new(172, 18, 0, 3), vni: 5, option: 0x0001_0002 }
        );
        let delivered = (flow.delivered_destination_mac.to_string(), flow.delivered_source_mac.to_string());
        assert_eq!(delivered, ("0a:58:0a:f4:01:03".to_owned(), "0a:58:0a:f4:01:01".to_owned()));
        assert_eq!((flow.endpoint.as_str(), flow.source_port, flow.destination_port), ("pod", 40_000, 80));
        assert_eq!((flow.age_ms, flow.refresh_in_ms, flow.valid), (1_000, 1_000, true));
    }

    #[test]
    fn an_entry_of_another_epoch_or_that_waits_for_the_other_direction_is_not_valid() {
        for (epoch, state) in [(6, STATE_ACTIVE), (7, 0), (7, STATE_CLOSING)] {
            let entry = Entry { epoch, state, ..Entry::default() };
            assert!(!reader().flow(Tuple6::default(), &entry).valid);
        }
    }
}

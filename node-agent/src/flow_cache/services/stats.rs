//! What the flow cache has carried for each service and backend: sums over its entries that never go down when entries end. Pure; what
//! entries have counted is passed in.
//!
//! Entries are looked at in *rounds*, each an iteration over all of them, and the increase of each since its last round is added up. An
//! entry that replaces one of an older epoch goes on with its counts, and a sweep looks at what it removes. So what is lost is what an
//! entry counted after the last round before it was pushed out of a full map, or its connection's ports were used for another.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::admin::Amount;
use api::service::Front;
use api::{NamespacedName, Protocol};

use crate::flow_cache::cache::Carried;
use crate::kube::service_names::{ServiceNames, ServicePortName};

/// Most backends that have figures of their own; the rest shares one.
const BACKENDS: usize = 2_048;
/// A backend whose figures have not changed for this long gives way to another one if there are too many.
const IDLE: Duration = Duration::from_secs(600);
/// An entry that comes back within this time is of the same connection.
const REMEMBER: Duration = Duration::from_secs(15);

/// A backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// The service.
    pub service: NamespacedName,
    /// Name of the port; empty if the service's only port has none.
    pub port: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Address and port of the backend.
    pub address: SocketAddr,
}

/// Sums of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Packets from clients.
    pub to_backend: Amount,
    /// Packets to clients.
    pub from_backend: Amount,
    /// Connections that began.
    pub connections: u64,
}

/// Sums of both paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// By the flow cache.
    pub fast: Sums,
    /// By OVS, while the service was kept off the cache.
    pub slow: Sums,
}

/// What a flow is to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Where clients reach the port.
    pub front: Front,
    /// The port.
    pub port: ServicePortName,
    /// The backend.
    pub backend: SocketAddr,
    /// From a client to the backend.
    pub to_backend: bool,
}

/// A flow is a service's if OVS translates a service's address to the flow's destination, or its source to one. The other end may be
/// translated as well. `before`, `after`: source and destination as the flow enters OVS and comes out.
pub fn use_of(
    names: &ServiceNames,
    protocol: Protocol,
    before: (SocketAddr, SocketAddr),
    after: (SocketAddr, SocketAddr),
) -> Option<Use> {
    let at = |front, backend, to_backend| {
        let (front, port) = names.at(protocol, front).filter(|_| front != backend)?;
        Some(Use { front, port, backend, to_backend })
    };
    at(before.1, after.1, true).or_else(|| at(after.0, before.0, false))
}

/// The last look at an entry.
#[derive(Debug)]
struct Seen {
    learned: u32,
    amount: Amount,
    at: Instant,
}

#[derive(Debug)]
struct Held {
    totals: Totals,
    changed: Instant,
}

/// The sums of all services.
#[derive(Debug, Default)]
pub(in crate::flow_cache) struct ServiceStats {
    /// The first round was: what there was before is not counted.
    begun: bool,
    seen: HashMap<u64, Seen>,
    backends: BTreeMap<Backend, Held>,
    /// Sums of the backends that found no room.
    others: Totals,
}

impl ServiceStats {
    /// Adds what an entry counted since it was looked at last.
    pub(in crate::flow_cache) fn see(&mut self, entry: &Carried, names: &ServiceNames, now: Instant) {
        let Some(Use { port, backend, to_backend, .. }) =
            use_of(names, entry.protocol, entry.before, entry.after)
        else {
            return;
        };
        let Carried { id, learned, amount, .. } = *entry;
        let before = self.seen.insert(id, Seen { learned, amount, at: now });
        if !self.begun {
            return;
        }
        let more = match &before {
            Some(old) if old.learned == learned => Amount {
                packets: amount.packets.saturating_sub(old.amount.packets),
                bytes: amount.bytes.saturating_sub(old.amount.bytes),
            },
            _ => amount,
        };
        let is_new = before.is_none() && to_backend;
        if more == Amount::default() && !is_new {
            return;
        }
        let ServicePortName { service, port } = port;
        let of = Backend { service, port, protocol: entry.protocol, address: backend };
        let totals = self.totals_of(of, now);
        let sums = if entry.slow { &mut totals.slow } else { &mut totals.fast };
        let direction = if to_backend { &mut sums.to_backend } else { &mut sums.from_backend };
        direction.packets += more.packets;
        direction.bytes += more.bytes;
        sums.connections += u64::from(is_new);
    }

    fn totals_of(&mut self, of: Backend, now: Instant) -> &mut Totals {
        if self.backends.len() >= BACKENDS && !self.backends.contains_key(&of) {
            let idle = self.backends.iter().min_by_key(|(_, held)| held.changed);
            let idle = idle.filter(|(_, held)| now.saturating_duration_since(held.changed) >= IDLE);
            let Some(idle) = idle.map(|(of, _)| of.clone()) else { return &mut self.others };
            self.backends.remove(&idle);
        }
        let held = self.backends.entry(of).or_insert(Held { totals: Totals::default(), changed: now });
        held.changed = now;
        &mut held.totals
    }

    /// Ends a round in which every entry was looked at. `complete`: all services were known in it.
    pub(in crate::flow_cache) fn end_round(&mut self, now: Instant, complete: bool) {
        self.begun |= complete;
        self.seen.retain(|_, seen| now.saturating_duration_since(seen.at) < REMEMBER);
        if self.seen.capacity() / 4 > self.seen.len() {
            self.seen.shrink_to_fit();
        }
    }

    /// Sums by backend.
    pub(in crate::flow_cache) fn backends(&self) -> impl Iterator<Item = (&Backend, &Totals)> {
        self.backends.iter().map(|(of, held)| (of, &held.totals))
    }

    /// Sums of backends that found no room.
    pub(in crate::flow_cache) fn others(&self) -> &Totals {
        &self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::service_names::fixture::web;

    const CLIENT: &str = "10.244.0.4:40000";
    const BACKEND: &str = "10.244.0.3:8080";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A flow to the backend, that has counted so much since it was learned.
    fn to(id: u64, learned: u32, packets: u64) -> Carried {
        Carried {
            id,
            learned,
            protocol: Protocol::Tcp,
            before: (address(CLIENT), address("10.96.0.9:80")),
            after: (address(CLIENT), address(BACKEND)),
            slow: false,
            amount: Amount { packets, bytes: packets * 100 },
        }
    }

    fn from(id: u64, packets: u64) -> Carried {
        let Carried { before, after, .. } = to(0, 1, 0);
        Carried { before: (after.1, after.0), after: (before.1, before.0), ..to(id, 1, packets) }
    }

    struct Clock(ServiceStats, ServiceNames, Instant);

    impl Clock {
        fn new() -> Self {
            let mut clock = Self(ServiceStats::default(), web(), Instant::now());
            clock.round(&[]);
            clock
        }

        fn round(&mut self, entries: &[Carried]) {
            entries.iter().for_each(|entry| self.0.see(entry, &self.1, self.2));
            self.0.end_round(self.2, true);
            self.2 += Duration::from_secs(10);
        }

        fn totals(&self) -> Totals {
            self.0.backends().next().map(|(_, totals)| *totals).unwrap_or_default()
        }
    }

    #[test]
    fn sums_grow_by_what_entries_counted_and_stay_when_entries_end() {
        let mut clock = Clock::new();
        clock.round(&[to(1, 1, 5), from(2, 4)]);
        clock.round(&[to(1, 1, 7), from(2, 4)]);
        clock.round(&[]);
        let fast = clock.totals().fast;
        assert_eq!((fast.to_backend.packets, fast.from_backend.packets, fast.connections), (7, 4, 1));
        assert_eq!(fast.to_backend.bytes, 700);
        let (backend, _) = clock.0.backends().next().unwrap();
        assert_eq!((backend.service.to_string().as_str(), backend.port.as_str()), ("shop/web", "http"));
        assert_eq!(backend.address, address(BACKEND));
    }

    #[test]
    fn what_entries_counted_before_the_agent_began_is_not_counted() {
        let mut clock = Clock(ServiceStats::default(), web(), Instant::now());
        clock.round(&[to(1, 1, 1_000)]);
        clock.round(&[to(1, 1, 1_003), to(2, 1, 2)]);
        let fast = clock.totals().fast;
        assert_eq!((fast.to_backend.packets, fast.connections), (5, 1));
    }

    #[test]
    fn a_flow_that_is_learned_anew_counts_from_zero_and_is_the_same_connection() {
        let mut clock = Clock::new();
        clock.round(&[to(1, 1, 5)]);
        // Though it has counted more than before.
        clock.round(&[to(1, 2, 6)]);
        assert_eq!((clock.totals().fast.to_backend.packets, clock.totals().fast.connections), (11, 1));
        // Away for longer than an entry is remembered: another connection.
        clock.round(&[]);
        clock.round(&[]);
        clock.round(&[to(1, 3, 1)]);
        assert_eq!((clock.totals().fast.to_backend.packets, clock.totals().fast.connections), (12, 2));
        assert_eq!(clock.0.seen.len(), 1);
    }

    #[test]
    fn paths_are_counted_apart_and_flows_of_no_service_are_not() {
        let mut clock = Clock::new();
        let slow = Carried { slow: true, ..to(1, 2, 3) };
        let other = Carried { before: (address(CLIENT), address("10.96.0.10:80")), ..to(2, 1, 9) };
        clock.round(&[to(1, 1, 5), other]);
        clock.round(&[slow, other]);
        let Totals { fast, slow } = clock.totals();
        assert_eq!((fast.to_backend.packets, slow.to_backend.packets), (5, 3));
        assert_eq!((fast.connections, slow.connections, clock.0.backends().count()), (1, 0, 1));
    }

    #[test]
    fn the_number_of_backends_is_bounded_and_idle_ones_give_way() {
        let mut clock = Clock::new();
        let number = u16::try_from(BACKENDS).unwrap();
        let flow = |port: u16| Carried {
            after: (address(CLIENT), ([10, 244, 0, 3], port).into()),
            ..to(port.into(), 1, 1)
        };
        let all: Vec<_> = (1..=number).map(flow).collect();
        clock.round(&all);
        clock.round(&[flow(number + 1)]);
        assert_eq!((clock.0.backends().count(), clock.0.others().fast.to_backend.packets), (BACKENDS, 1));
        clock.2 += IDLE;
        clock.round(&[flow(number + 2)]);
        assert_eq!((clock.0.backends().count(), clock.0.others().fast.to_backend.packets), (BACKENDS, 1));
        assert!(clock.0.backends().any(|(of, _)| of.address.port() == number + 2));
    }
}

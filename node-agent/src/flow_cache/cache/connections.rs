//! Tracked connections that ended: which entries of the flow cache repeat what they did, and when to look for those. Pure, time is
//! passed in.
//!
//! An entry is one direction of a connection as OVS forwards it, perhaps translated in several zones. In each of them the tracked
//! connection has two tuples, and one of these is the flow before or after a translation, in one direction or the other. So entries
//! are compared without regard to direction, before and after OVS; those of another connection between the same
//! addresses and ports, in another network, end with them and are learned again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ebpf::layout::maps::GENEVE_PORT;

use crate::kernel::conntrack_events::{Ends, Forgotten};

/// The ends of a connection, in no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    protocol: u8,
    ends: [SocketAddr; 2],
}

impl Pair {
    fn new(protocol: u8, one: SocketAddr, other: SocketAddr) -> Self {
        Self { protocol, ends: if one <= other { [one, other] } else { [other, one] } }
    }
}

/// A set of connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connections {
    pairs: HashSet<Pair>,
}

impl Connections {
    /// Adds the connection between these ends.
    pub fn insert(&mut self, protocol: u8, ends: Ends) {
        self.pairs.insert(Pair::new(protocol, ends.source, ends.destination));
    }

    /// Whether packets between these ends belong to one of them, in either direction.
    pub fn contains(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) -> bool {
        self.pairs.contains(&Pair::new(protocol, source, destination))
    }

    /// Number of pairs of ends.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    fn add(&mut self, forgotten: &Forgotten) {
        self.insert(forgotten.protocol, forgotten.original);
        self.insert(forgotten.protocol, forgotten.reply);
    }

    fn extend(&mut self, others: &Self) {
        self.pairs.extend(&others.pairs);
    }
}

/// After so long entries are looked for once more: a packet that had passed connection tracking when the connection ended may have taught
/// one since.
const AGAIN: Duration = Duration::from_millis(50);
/// To look for entries is to read all of them. Between two such walks is at least this many times the time that the last took.
const PAUSE: u32 = 4;
/// [`PAUSE`] while nothing but connections that timed out waits.
const LATE_PAUSE: u32 = 20;
/// Shortest time between two walks for connections that timed out.
const LATE: Duration = Duration::from_secs(1);
/// Pairs of ends that wait at most. A pod that fills the tracking table with connections has them ended as fast as it can send.
const MOST: usize = 65_536;

/// Connections whose entries are to be ended.
#[derive(Debug, Default)]
pub(in crate::flow_cache) struct Waiting {
    /// Deleted connections, and when the first of them came.
    soon: Connections,
    /// Connections for which entries were looked for once, and when to do so again.
    again: Option<(Instant, Connections)>,
    /// Connections that timed out. Entries need packets through OVS to stay in use, and those keep a connection: there is an entry only if
    /// timeouts were made shorter than the refresh interval.
    late: Connections,
    /// When the last walk ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

/// What was done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::flow_cache) enum Added {
    /// Entries of it will be looked for.
    Waits,
    /// The connection has no entries: it was closed, and they ended with it, or it is of the node's tunnels, of which each flow inside has
    /// one.
    NoEntries,
    /// Too many wait. It never was in both directions, and entries of it end by their refresh.
    Dropped,
    /// Too many wait: everything must be invalidated. Nothing waits any more.
    Overflow,
}

impl Waiting {
    /// Adds a connection that ended.
    pub(in crate::flow_cache) fn add(&mut self, forgotten: &Forgotten) -> Added {
        let is_tunnel = forgotten.protocol == 17 && forgotten.original.destination.port() == GENEVE_PORT;
        if forgotten.closed || is_tunnel {
            return Added::NoEntries;
        }
        if self.soon.len() + self.late.len() >= MOST {
            if !forgotten.assured {
                return Added::Dropped;
            }
            *self = Self { last: self.last, ..Self::default() };
            return Added::Overflow;
        }
        if forgotten.early { &mut self.soon } else { &mut self.late }.add(forgotten);
        Added::Waits
    }

    /// When to look for entries next.
    pub(in crate::flow_cache) fn due(&self, now: Instant) -> Option<Instant> {
        let after = |times, least: Duration| {
            self.last.map_or(now, |(ended, took)| ended + (took.saturating_mul(times)).max(least))
        };
        let soon = (!self.soon.is_empty()).then(|| after(PAUSE, Duration::ZERO));
        let again = self.again.as_ref().map(|(at, _)| (*at).max(after(PAUSE, Duration::ZERO)));
        let late = (!self.late.is_empty()).then(|| after(LATE_PAUSE, LATE));
        [soon, again, late].into_iter().flatten().min()
    }

    /// Takes all connections for a walk.
    pub(in crate::flow_cache) fn take(&mut self, now: Instant) -> Connections {
        let soon = std::mem::take(&mut self.soon);
        let mut all = std::mem::take(&mut self.late);
        all.extend(&soon);
        match &mut self.again {
            Some((at, again)) if *at > now => {
                // Not yet: what comes now waits as long.
                all.extend(again);
                again.extend(&soon);
                if !soon.is_empty() {
                    *at = now + AGAIN;
                }
            }
            again => {
                if let Some((_, again)) = again.take() {
                    all.extend(&again);
                }
                *again = (!soon.is_empty()).then(|| (now + AGAIN, soon));
            }
        }
        all
    }

    /// A walk ended.
    pub(in crate::flow_cache) fn walked(&mut self, now: Instant, took: Duration) {
        self.last = Some((now, took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn forgotten(port: u16) -> Forgotten {
        let client = SocketAddr::new([10, 244, 0, 3].into(), port);
        Forgotten {
            protocol: 17,
            original: Ends { source: client, destination: address("10.96.0.10:53") },
            reply: Ends { source: address("10.244.1.4:5353"), destination: client },
            assured: true,
            early: true,
            closed: false,
        }
    }

    #[test]
    fn both_tuples_are_found_in_both_directions_and_no_others() {
        let mut waiting = Waiting::default();
        waiting.add(&forgotten(4_000));
        let all = waiting.take(Instant::now());
        let (client, service, backend) =
            (address("10.244.0.3:4000"), address("10.96.0.10:53"), address("10.244.1.4:5353"));
        for (one, other) in [(client, service), (service, client), (client, backend), (backend, client)] {
            assert!(all.contains(17, one, other));
            assert!(!all.contains(6, one, other), "another protocol");
        }
        assert!(!all.contains(17, service, backend));
        assert!(!all.contains(17, address("10.244.0.3:4001"), service));
    }

    #[test]
    fn a_deleted_connection_is_looked_for_at_once_and_once_more() {
        let mut waiting = Waiting::default();
        let now = Instant::now();
        assert_eq!(waiting.due(now), None);
        assert_eq!(waiting.add(&forgotten(1)), Added::Waits);
        assert_eq!(waiting.due(now), Some(now));
        assert_eq!(waiting.take(now).len(), 2);
        waiting.walked(now, Duration::ZERO);
        assert_eq!(waiting.due(now), Some(now + AGAIN));
        // Another one comes meanwhile: the first is not forgotten, and both are looked for after its time.
        waiting.add(&forgotten(2));
        let later = now + AGAIN / 2;
        assert_eq!(waiting.take(later).len(), 4);
        waiting.walked(later, Duration::ZERO);
        assert_eq!(waiting.due(later), Some(later + AGAIN));
        assert_eq!(waiting.take(later + AGAIN).len(), 4);
        waiting.walked(later + AGAIN, Duration::ZERO);
        assert_eq!(waiting.due(later + AGAIN), None);
    }

    #[test]
    fn walks_take_a_fifth_of_the_time_and_those_for_timed_out_ones_less() {
        let mut waiting = Waiting::default();
        let now = Instant::now();
        waiting.walked(now, Duration::from_millis(100));
        waiting.add(&Forgotten { early: false, ..forgotten(1) });
        assert_eq!(waiting.due(now), Some(now + Duration::from_secs(2)));
        waiting.add(&forgotten(2));
        assert_eq!(waiting.due(now), Some(now + Duration::from_millis(400)));
        assert_eq!(waiting.take(now).len(), 4, "one walk is for all");
        waiting.walked(now, Duration::ZERO);
        waiting.take(now + AGAIN);
        waiting.add(&Forgotten { early: false, ..forgotten(3) });
        assert_eq!(waiting.due(now), Some(now + LATE));
    }

    #[test]
    fn closed_connections_and_tunnels_need_nothing_and_too_many_end_everything_unless_they_were_never_answered()
     {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.add(&Forgotten { closed: true, ..forgotten(1) }), Added::NoEntries);
        let mut tunnel = forgotten(1);
        tunnel.original.destination.set_port(GENEVE_PORT);
        assert_eq!(waiting.add(&tunnel), Added::NoEntries);
        assert_eq!(waiting.due(Instant::now()), None);
        let most = u16::try_from(MOST / 2 - 1).unwrap();
        for port in 0..=most {
            assert_eq!(waiting.add(&Forgotten { assured: false, ..forgotten(port) }), Added::Waits);
        }
        assert_eq!(waiting.add(&Forgotten { assured: false, ..forgotten(most + 1) }), Added::Dropped);
        assert_eq!(waiting.add(&forgotten(most + 1)), Added::Overflow);
        assert_eq!(waiting.due(Instant::now()), None);
    }
}

//! What a flow lost in a stretch of time, from what arrived of it. Pure; times are nanoseconds of one clock.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use testbed::tools::load::Arrival;

/// What was seen of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Loss {
    /// Messages that were sent, of which the first and the last arrived.
    pub(super) sent: usize,
    /// How many of them did not arrive.
    pub(super) lost: usize,
    /// The longest time without an arrival, in milliseconds.
    pub(super) stall_ms: f64,
    /// Connections that were given up for others.
    pub(super) cut: usize,
}

impl Loss {
    /// The loss of a flow by what arrived from `begin` to `end`, in order of time; none if nothing did. The time until the first arrival and since the last counts
    /// as time without one.
    pub(super) fn of(arrivals: &[Arrival], begin: u64, end: u64) -> Option<Self> {
        let inside: Vec<&Arrival> = arrivals.iter().filter(|one| (begin..=end).contains(&one.at)).collect();
        let numbers: BTreeSet<u32> = inside.iter().map(|one| one.number).collect();
        let (first, last) = (numbers.first()?, numbers.last()?);
        let sent = usize::try_from(last - first).ok()? + 1;
        let times = [begin].into_iter().chain(inside.iter().map(|one| one.at)).chain([end]);
        let gaps = times.clone().zip(times.skip(1)).map(|(one, next)| next.saturating_sub(one));
        let stall = Duration::from_nanos(gaps.max().unwrap_or_default());
        let connections: BTreeSet<u64> = inside.iter().map(|one| one.began).collect();
        Some(Self {
            sent,
            lost: sent - numbers.len(),
            stall_ms: stall.as_secs_f64() * 1e3,
            cut: connections.len().saturating_sub(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn arrival(number: u32, began: u64, at: u64) -> Arrival {
        let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Arrival { flow: 1, number, sent: at, began, at: at * 1_000_000, from, port: 7000 }
    }

    #[test]
    fn missing_numbers_are_lost_and_the_longest_silence_is_told() {
        let list = [arrival(5, 0, 10), arrival(6, 0, 11), arrival(9, 0, 40), arrival(8, 0, 41)];
        let loss = Loss::of(&list, 9_000_000, 45_000_000).unwrap();
        assert_eq!(loss, Loss { sent: 5, lost: 1, stall_ms: 29.0, cut: 0 });
    }

    #[test]
    fn what_never_comes_back_stands_still_to_the_end() {
        let list = [arrival(1, 0, 1), arrival(2, 0, 2)];
        let loss = Loss::of(&list, 1_000_000, 102_000_000).unwrap();
        assert_eq!((loss.lost, loss.stall_ms), (0, 100.0));
        assert_eq!(Loss::of(&list, 3_000_000, 9_000_000), None, "nothing arrived");
    }

    #[test]
    fn a_connection_in_place_of_another_is_a_cut_one() {
        let list = [arrival(1, 7, 1), arrival(2, 7, 2), arrival(4, 9, 8), arrival(5, 9, 9)];
        let loss = Loss::of(&list, 0, 9_000_000).unwrap();
        assert_eq!((loss.lost, loss.cut), (1, 1));
    }
}

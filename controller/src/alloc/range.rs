//! The addresses of one range: which are taken, which rest, and which is given next.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::addr;
use ipnet::IpNet;

/// Addresses that a range gives out at most, whatever its size.
const MAX_GIVEN: u32 = 1 << 16;
/// How long a released address rests, unless the range has no other: longer than it takes until all nodes know that a pod is
/// gone and clients have resolved its name again.
pub(super) const REST: Duration = Duration::from_secs(60);

/// One range: a bit for each address, set when taken.
#[derive(Debug)]
pub(super) struct Range {
    net: IpNet,
    /// Offsets below are nobody's.
    first: u32,
    size: u32,
    bits: Vec<u64>,
    /// Number of bits that are set.
    taken: u32,
    /// First and last offsets that are given to nobody who does not ask for one of them. They are marked as taken.
    excluded: Vec<(u32, u32)>,
    /// Where to look for the next free one.
    next: u32,
    /// Released offsets with the time of release, oldest first. They are still marked as taken.
    resting: VecDeque<(u32, Instant)>,
}

impl Range {
    /// A range of which the first `first` addresses are nobody's.
    pub(super) fn new(net: IpNet, first: u32) -> Self {
        let host_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let all = 1u32.checked_shl(host_bits).unwrap_or(u32::MAX);
        // The last address of an IPv4 range is its broadcast address.
        let size = all.saturating_sub(u32::from(net.addr().is_ipv4())).min(MAX_GIVEN);
        let mut range = Self {
            net,
            first,
            size,
            bits: Vec::new(),
            taken: 0,
            excluded: Vec::new(),
            next: first,
            resting: VecDeque::new(),
        };
        for offset in 0..first {
            range.set(offset);
        }
        range
    }

    /// Gives the addresses of `part` to nobody who does not ask for one of them.
    #[must_use]
    pub(super) fn without(mut self, part: &IpNet) -> Self {
        let Some(from) = self.distance(part.network()).filter(|from| *from < self.size) else { return self };
        let to = self.distance(part.broadcast()).unwrap_or(u32::MAX).min(self.size - 1);
        for offset in from..=to {
            self.set(offset);
        }
        self.excluded.push((from, to));
        self
    }

    /// The whole range.
    pub(super) fn net(&self) -> IpNet {
        self.net
    }

    /// The address at an offset.
    pub(super) fn address(&self, offset: u32) -> Option<IpAddr> {
        addr::nth(&self.net, offset)
    }

    /// Number of addresses that can still be given.
    pub(super) fn free(&self) -> u64 {
        let resting = u64::try_from(self.resting.len()).unwrap_or(u64::MAX);
        u64::from(self.size.saturating_sub(self.taken)).saturating_add(resting)
    }

    fn is_excluded(&self, offset: u32) -> bool {
        self.excluded.iter().any(|(from, to)| (*from..=*to).contains(&offset))
    }

    fn place(offset: u32) -> (usize, u64) {
        // 32 bits fit into usize on every platform that Linux's OVS runs on.
        (usize::try_from(offset / 64).unwrap_or(usize::MAX), 1 << (offset % 64))
    }

    fn set(&mut self, offset: u32) {
        let (word, bit) = Self::place(offset);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.taken += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    fn clear(&mut self, offset: u32) {
        let (word, bit) = Self::place(offset);
        if let Some(bits) = self.bits.get_mut(word).filter(|bits| **bits & bit != 0) {
            self.taken -= 1;
            *bits &= !bit;
        }
    }

    fn is_set(&self, offset: u32) -> bool {
        let (word, bit) = Self::place(offset);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// The next free offset after the last one given, wrapping around the range.
    pub(super) fn next_free(&mut self, now: Instant) -> Option<u32> {
        while let Some((offset, since)) = self.resting.front().copied() {
            if now.duration_since(since) < REST {
                break;
            }
            self.resting.pop_front();
            self.clear(offset);
        }
        let round = (self.next..self.size).chain(self.first..self.next.min(self.size));
        // Many may ask for one of a full range.
        let is_full = self.taken >= self.size;
        let free = if is_full { None } else { round.into_iter().find(|offset| !self.is_set(*offset)) };
        // If nothing else is left: the offset that has rested longest.
        let free = free.or_else(|| {
            let (offset, _) = self.resting.pop_front()?;
            self.clear(offset);
            Some(offset)
        })?;
        self.next = free + 1;
        Some(free)
    }

    /// Marks an offset as in use.
    pub(super) fn take(&mut self, offset: u32) {
        self.resting.retain(|(resting, _)| *resting != offset);
        self.set(offset);
        self.next = self.next.max(offset + 1);
    }

    /// Releases an offset. It rests before it is given again.
    pub(super) fn give_back(&mut self, offset: u32, now: Instant) {
        let waits = self.is_set(offset) && !self.is_excluded(offset);
        if waits && !self.resting.iter().any(|(resting, _)| *resting == offset) {
            self.resting.push_back((offset, now));
        }
    }

    /// The offset of `ip`, if it is one of those that the range gives out.
    pub(super) fn offset(&self, ip: IpAddr) -> Option<u32> {
        self.distance(ip).filter(|offset| (self.first..self.size).contains(offset))
    }

    /// How far `ip` is from the range's first address; none before it and very far behind it.
    fn distance(&self, ip: IpAddr) -> Option<u32> {
        match (self.net, ip) {
            (IpNet::V4(net), IpAddr::V4(ip)) => u32::from(ip).checked_sub(u32::from(net.network())),
            (IpNet::V6(net), IpAddr::V6(ip)) => {
                u32::try_from(u128::from(ip).checked_sub(u128::from(net.network()))?).ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_addresses_are_given_to_nobody_also_after_one_was_asked_for() {
        let part = "10.0.0.2/31".parse().unwrap();
        let mut range = Range::new("10.0.0.0/29".parse().unwrap(), 1).without(&part);
        let now = Instant::now();
        assert_eq!(range.free(), 4);
        range.take(2);
        range.give_back(2, now);
        let mut all = Vec::new();
        while let Some(offset) = range.next_free(now + REST * 2) {
            range.take(offset);
            all.push(offset);
        }
        all.sort_unstable();
        assert_eq!(all, [1, 4, 5, 6]);
        assert_eq!(range.free(), 0);
    }

    #[test]
    fn excluding_what_is_not_given_out_anyway_changes_nothing() {
        let net = "fd00::/64".parse().unwrap();
        let range = Range::new(net, 1).without(&"fd00::1:0:0/96".parse().unwrap());
        assert_eq!(range.free(), u64::from(MAX_GIVEN) - 1);
        assert_eq!(range.offset("fd00::1:0:1".parse().unwrap()), None);
        assert_eq!(range.offset("fd00::7".parse().unwrap()), Some(7));
    }
}

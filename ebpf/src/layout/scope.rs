//! Layout of scopes: what a change of OVS's tables can concern, as buckets of the map `SCOPES`.
//!
//! A scope is an address, a port of this node, a MAC, a port of another node by its keys in a tunnel, or a logical datapath. The map has
//! one number for each of [`SCOPES`] buckets, and a scope's bucket is a hash of it: two scopes of one bucket change together, which
//! costs a few entries now and then and is never wrong.
//!
//! **Numbers.** [`super::maps::Config::change`] counts changes, in steps of 2. A bucket holds the number of its last one. The lowest bit
//! of a bucket says that nothing is learned in it; that of the configuration's, that some bucket has it. Differences are taken as
//! signed numbers.

/// Buckets of `SCOPES`.
pub const SCOPES: u32 = 1 << 16;

/// Lowest bit of a bucket: OVS may not have followed the change yet, and nothing is learned in this scope. Of
/// [`super::maps::Config::change`]: some bucket has it.
pub const CLOSED: u32 = 1;

/// Between two changes.
pub const STEP: u32 = 2;

/// Bucket of an IPv4 address, in wire order.
#[inline(always)]
pub const fn address4(address: u32) -> u32 {
    bucket(1, address, 0)
}

/// Bucket of an IPv6 address, in wire order.
#[inline(always)]
pub const fn address6(address: [u32; 4]) -> u32 {
    let [a, b, c, d] = address;
    bucket(2, mixed(mixed(a, b), c), d)
}

/// Bucket of a port of this node: index of the interface that packets of it come from, as in [`super::flow::Way`].
#[inline(always)]
pub const fn port(ifindex: u32) -> u32 {
    bucket(3, ifindex, 0)
}

/// Bucket of a MAC: the words that its first two and its last four bytes are in a packet.
#[inline(always)]
pub const fn mac(first: u32, last: u32) -> u32 {
    bucket(4, first, last)
}

/// Bucket of a port of OVN, by its datapath's key (VNI, as a number) and its own.
#[inline(always)]
pub const fn key(vni: u32, key: u32) -> u32 {
    bucket(5, vni, key)
}

/// Bucket of a logical datapath, by its key (VNI, as a number).
#[inline(always)]
pub const fn datapath(vni: u32) -> u32 {
    bucket(6, vni, 0)
}

/// Bucket of no scope: it changes with every change, for what any change concerns.
pub const ANY: u32 = bucket(7, 0, 0);

/// One round of a hash.
#[inline(always)]
const fn mixed(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b1);
    hash ^ (hash >> 15)
}

#[inline(always)]
const fn bucket(kind: u32, one: u32, two: u32) -> u32 {
    mixed(mixed(mixed(kind, one), two), kind).wrapping_mul(0x85eb_ca77) >> 16
}
const _: () = assert!(SCOPES == 1 << 16);

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeMap;

    use super::*;

    /// Shares of the buckets that many scopes take, at most: what two thirds of full would be.
    fn spread(buckets: impl Iterator<Item = u32>) -> (usize, usize) {
        let mut taken = BTreeMap::<u32, usize>::new();
        for bucket in buckets {
            assert!(bucket < SCOPES);
            *taken.entry(bucket).or_default() += 1;
        }
        (taken.len(), taken.into_values().max().unwrap_or(0))
    }

    #[test]
    fn addresses_in_a_row_and_numbers_in_a_row_are_spread() {
        let addresses = (0..8_192_u32).map(|at| address4((0x0af4_0000 + at).to_be()));
        let six = (0..8_192_u32)
            .map(|at| address6([0xfd00_1000_u32.to_be(), 0, u32::from(at > 4_000).to_be(), at.to_be()]));
        let ports = (1..8_193).map(port);
        let macs = (0..8_192_u32).map(|at| mac(0x580a, (0x0af4_0000 + at).to_be()));
        let keys = (0..8_192_u32).map(|at| key(1 + at / 512, 2 + at % 512));
        let datapaths = (1..8_193).map(datapath);
        for (name, (different, most)) in [
            ("IPv4", spread(addresses)),
            ("IPv6", spread(six)),
            ("ports", spread(ports)),
            ("MACs", spread(macs)),
            ("keys", spread(keys)),
            ("datapaths", spread(datapaths)),
        ] {
            // 8,192 random numbers below 65,536: 7,701 different ones are expected.
            assert!(different > 7_300 && most < 9, "{name}: {different} buckets, up to {most} in one");
        }
    }
}

//! Laws of [`ebpf::decide::scope`]: which changes concern an entry, and what they make of it.

use std::collections::BTreeMap;

use ebpf::{
    Reason,
    decide::scope::{is_current, is_sensitive, may_learn},
    layout::{
        flow::{
            Entry, HEADER, HEADER_WORDS, SENSITIVE, SIDE_NODE, SIDE_OUTSIDE, SIDE_POD, SIDE_TUNNEL,
            TRANSLATED, Tuple4, Tuple6,
        },
        scope::{self, CLOSED, STEP},
    },
};
use proptest::prelude::*;

const PODS: [u8; 4] = [10, 244, 1, 7];
const PEER: [u8; 4] = [10, 244, 2, 9];
const VIRTUAL: [u8; 4] = [10, 96, 0, 1];

const SENDER: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 7];
const RECEIVER: [u8; 6] = [0x0a, 0x58, 10, 244, 2, 9];
const ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 1];

fn four(source: [u8; 4], destination: [u8; 4], side: u8) -> Tuple4 {
    let [source, destination] = [source, destination].map(u32::from_ne_bytes);
    Tuple4 { source, destination, side, ..Tuple4::default() }
}

fn macs(destination: [u8; 6], source: [u8; 6]) -> [u32; 3] {
    let bytes: Vec<u8> = destination.into_iter().chain(source).collect();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    [word(0), word(4), word(8)]
}

fn header(bytes: &[(usize, &[u8])]) -> [u64; HEADER_WORDS] {
    let mut all = [0; HEADER];
    for (at, part) in bytes {
        all[*at..at + part.len()].copy_from_slice(part);
    }
    std::array::from_fn(|word| u64::from_ne_bytes(all[word * 8..word * 8 + 8].try_into().unwrap()))
}

fn mac_scope(mac: [u8; 6]) -> u32 {
    let [a, b, c, d, e, f] = mac;
    scope::mac(u16::from_ne_bytes([a, b]).into(), u32::from_ne_bytes([c, d, e, f]))
}

fn address(address: [u8; 4]) -> u32 {
    scope::address4(u32::from_ne_bytes(address))
}

/// An entry of each kind, with the buckets that it is of.
fn kinds() -> Vec<(&'static str, Tuple4, Entry<Tuple4>, Vec<u32>)> {
    let sent = macs(ROUTER, SENDER);
    let of_ends = || vec![address(PODS), address(PEER), mac_scope(SENDER), mac_scope(RECEIVER)];
    let keyed =
        || vec![scope::datapath(0x0001_0203), scope::key(0x0001_0203, 0x11), scope::key(0x0001_0203, 0x8022)];
    let here = Entry {
        way: [7, 0, 0],
        macs: sent,
        target: 9,
        after: four(PODS, PEER, SIDE_POD),
        header: header(&[(0, &RECEIVER)]),
        ..Entry::default()
    };
    let out = Entry {
        after: four(PODS, PEER, SIDE_TUNNEL),
        // VNI at byte 46, the option's data at 54, the inner frame at 58.
        header: header(&[(46, &[1, 2, 3]), (54, &[0, 0x11, 0x80, 0x22]), (58, &RECEIVER)]),
        target: 3,
        ..here
    };
    let option = u32::from_ne_bytes([0x80, 0x11, 0x80, 0x22]);
    let back = Entry { way: [0x0001_0203, option, 5], ..here };
    let service = Entry { translated: TRANSLATED, ..here };
    let (inside, tunnelled) = (four(PODS, PEER, SIDE_POD), four(PODS, PEER, SIDE_TUNNEL));
    vec![
        ("to a pod of this node", inside, here, [of_ends(), vec![scope::port(7), scope::port(9)]].concat()),
        ("into a tunnel", inside, out, [of_ends(), vec![scope::port(7)], keyed()].concat()),
        ("from a tunnel", tunnelled, back, [of_ends(), vec![scope::port(9)], keyed()].concat()),
        (
            "to a service",
            four(PODS, VIRTUAL, SIDE_POD),
            service,
            [of_ends(), vec![address(VIRTUAL), scope::port(7), scope::port(9)]].concat(),
        ),
    ]
}

#[test]
fn a_change_of_any_scope_of_an_entry_ends_it_and_any_other_does_not() {
    for (kind, key, entry, scopes) in kinds() {
        let entry = Entry { entered: 100, checked: 100, ..entry };
        for (at, changed) in scopes.iter().enumerate() {
            let value = |number: u32| Some(if number == *changed { 102 } else { 100 });
            assert!(!is_current(&key, &entry, 102, value), "{kind}: {at}");
            assert!(
                is_current(&key, &entry, 100, value),
                "{kind}: not looked at where the number is the same"
            );
            let value = |number: u32| Some(if number == *changed { 100 | CLOSED } else { 0 });
            assert!(
                is_current(&key, &entry, 101, value),
                "{kind}: {at} is closed, and has not changed since"
            );
            assert_eq!(may_learn(&key, &entry, 101, value), Err(Reason::ScopeClosed), "{kind}: {at}");
        }
        let others = |number: u32| Some(if scopes.contains(&number) { 98 } else { 102 | CLOSED });
        assert!(is_current(&key, &entry, 103, others), "{kind}");
        assert_eq!(may_learn(&key, &entry, 103, others), Ok(()), "{kind}");
        let sensitive = Entry { translated: entry.translated | SENSITIVE, ..entry };
        assert!(
            !is_current(&key, &sensitive, 103, others) && is_current(&key, &sensitive, 100, others),
            "{kind}"
        );
        assert_eq!(may_learn(&key, &sensitive, 103, others), Err(Reason::ScopeClosed), "{kind}");
        assert_eq!(may_learn(&key, &sensitive, 102, others), Err(Reason::NoteOldScope), "{kind}");
        assert_eq!(may_learn(&key, &sensitive, 100, others), Ok(()), "{kind}");
        assert!(!is_current(&key, &entry, 102, |_| None), "{kind}: a bucket that cannot be read");
    }
}

#[test]
fn the_words_of_an_ipv6_address_all_count() {
    let words = [1_u32, 2, 3, 4];
    for at in 0..4 {
        let mut other = words;
        other[at] ^= 1 << 7;
        assert_ne!(scope::address6(words), scope::address6(other), "word {at}");
    }
    let key = Tuple6 { source: words, destination: [5, 6, 7, 8], side: SIDE_POD, ..Tuple6::default() };
    let entry = Entry { after: key, entered: 10, checked: 10, ..Entry::default() };
    for changed in [scope::address6(words), scope::address6([5, 6, 7, 8])] {
        assert!(!is_current(&key, &entry, 12, |number| Some(if number == changed { 12 } else { 0 })));
    }
}

#[test]
fn what_leaves_the_pods_network_or_passes_several_routers_is_sensitive_to_every_change() {
    for (kind, key, entry, _) in kinds() {
        let sensitive =
            |key: &Tuple4, entry: &Entry<Tuple4>| is_sensitive(key, entry, |ifindex| ifindex == 4);
        assert!(!sensitive(&key, &entry), "{kind}");
        assert!(!sensitive(&key, &Entry { ttl_step: 1, ..entry }), "{kind}");
        assert!(sensitive(&key, &Entry { ttl_step: 2, ..entry }), "{kind}: two routers");
        let outside = Tuple4 { side: SIDE_OUTSIDE, ..entry.after };
        assert!(sensitive(&key, &Entry { after: outside, ..entry }), "{kind}: to the outside");
        assert!(sensitive(&Tuple4 { side: SIDE_OUTSIDE, ..key }, &entry), "{kind}: from the outside");
        let node = Tuple4 { side: SIDE_NODE, ..key };
        assert!(sensitive(&node, &entry), "{kind}: from the gateway bridge's port");
        assert!(!sensitive(&node, &Entry { way: [4, 0, 0], ..entry }), "{kind}: from the management port");
        let node = Tuple4 { side: SIDE_NODE, ..entry.after };
        assert!(sensitive(&key, &Entry { after: node, ..entry }), "{kind}: to the gateway bridge's port");
        assert!(
            !sensitive(&key, &Entry { after: node, target: 4, ..entry }),
            "{kind}: to the management port"
        );
        let both = Tuple4 { source: 1, destination: 2, ..entry.after };
        assert!(sensitive(&key, &Entry { after: both, ..entry }), "{kind}: both addresses are translated");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// An agent changes scopes; whatever the number has come to, also where it wraps: an entry is current exactly if none of its
    /// scopes changed after its packet entered, and one is made exactly if none is closed either.
    #[test]
    fn an_entry_ends_with_the_first_change_of_one_of_its_scopes_and_with_no_other(
        begin in prop_oneof![Just(0_u32), Just(u32::MAX - 9), any::<u32>()], kind in 0_usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 1..20),
        enter in any::<prop::sample::Index>(),
    ) {
        let (_, key, mut entry, scopes) = kinds().swap_remove(kind);
        let (mut buckets, mut change) = (BTreeMap::new(), begin & !CLOSED);
        let read = |buckets: &BTreeMap<u32, u32>, number| Some(buckets.get(&number).copied().unwrap_or(begin & !CLOSED));
        let (enter, mut concerned) = (enter.index(changes.len()), false);
        for (at, (which, ours, closed)) in changes.iter().enumerate() {
            if at == enter {
                (entry.entered, entry.checked) = (change, change);
                concerned = false;
            }
            let bucket = if *ours { *which.get(&scopes) } else { address([192, 0, 2, 1]) };
            change = (change & !CLOSED).wrapping_add(STEP);
            buckets.insert(bucket, change | u32::from(*closed));
            change |= u32::from(buckets.values().any(|value| value & CLOSED != 0));
            concerned |= *ours;
            if at >= enter {
                let current = is_current(&key, &entry, change, |number| read(&buckets, number));
                prop_assert_eq!(current, !concerned);
                let shut = scopes.iter().any(|scope| buckets.get(scope).is_some_and(|value| value & CLOSED != 0));
                let may = may_learn(&key, &entry, change, |number| read(&buckets, number));
                prop_assert_eq!(may.is_ok(), !concerned && !shut, "{:?}", may);
            }
        }
    }
}

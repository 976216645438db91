//! Laws of [`ebpf::decide::service`]: a service that is kept off the cache is recognised in both directions, and nothing of it is
//! carried.

use std::cell::Cell;
use std::collections::BTreeSet;

use ebpf::{
    Reason,
    decide::{
        connection::ends,
        forward::{Decision, decide, forget, is_noted},
        service::{go_on, is_kept_off, is_slow, keep_off, same_path},
        tuple::Tuple as _,
    },
    layout::{
        flow::{Entry, GATE_SERVICES, STATE_ACTIVE, STATE_CLOSING, STATE_SLOW, Tuple4, Tuple6},
        service::ServiceKey,
    },
    packet::{TCP, UDP},
};
use proptest::prelude::*;

use super::any::{few, gate, valid};

fn four(source: u32, destination: u32, ports: (u16, u16), protocol: u8) -> Tuple4 {
    let (source_port, destination_port) = ports;
    Tuple4 { source, destination, source_port, destination_port, protocol, ..Tuple4::default() }
}

fn six(source: u32, destination: u32, ports: (u16, u16), protocol: u8) -> Tuple6 {
    let (source_port, destination_port) = ports;
    let wide = |last| [0xfd, 0, 0, last];
    let (source, destination) = (wide(source), wide(destination));
    Tuple6 { source, destination, source_port, destination_port, protocol, ..Tuple6::default() }
}

#[test]
fn an_ipv4_address_is_kept_in_mapped_form_and_in_wire_order() {
    let tuple = four(u32::from_ne_bytes([10, 96, 0, 9]), 0, (80_u16.to_be(), 0), TCP);
    let ServiceKey { address, port, protocol, .. } = tuple.source_key();
    let bytes: Vec<u8> = address.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(bytes, std::net::Ipv4Addr::new(10, 96, 0, 9).to_ipv6_mapped().octets());
    assert_eq!((port, protocol), (80_u16.to_be(), TCP));
    assert_eq!(tuple.reversed().destination_key(), tuple.source_key());
}

#[test]
fn both_directions_of_a_connection_are_the_services_and_others_are_not() {
    let (client, vip, backend) = (1, 9, 5);
    for protocol in [TCP, UDP] {
        let asked = (four(client, vip, (1, 80), protocol), four(client, backend, (1, 8080), protocol));
        let kept = [asked.0.destination_key()];
        let has = |key: &ServiceKey| kept.contains(key);
        assert!(is_slow(&asked.0, &asked.1, has));
        // The answer enters OVS as the backend's.
        assert!(is_slow(&asked.1.reversed(), &asked.0.reversed(), has));
        // The client may be translated as well.
        assert!(is_slow(&four(backend, 7, (8080, 1), protocol), &asked.0.reversed(), has));
        // The backend by its own address, another port, the other protocol.
        assert!(!is_slow(&asked.1, &asked.1, has));
        assert!(!is_slow(&asked.1.reversed(), &asked.1.reversed(), has));
        let port = four(client, vip, (1, 81), protocol);
        assert!(!is_slow(&port, &asked.1, has));
        let other = four(client, vip, (1, 80), if protocol == TCP { UDP } else { TCP });
        assert!(!is_slow(&other, &other, has));
        let asked = (six(client, vip, (1, 80), protocol), six(client, backend, (1, 8080), protocol));
        assert!(!is_slow(&asked.0, &asked.1, has), "another family");
        let kept = [asked.0.destination_key()];
        let has = |key: &ServiceKey| kept.contains(key);
        assert!(is_slow(&asked.0, &asked.1, has) && is_slow(&asked.1.reversed(), &asked.0.reversed(), has));
    }
}

#[test]
fn no_service_is_looked_for_while_none_is_kept_off() {
    let asked = Cell::new(0);
    let mut entry = Entry { state: STATE_ACTIVE, ..Entry::<Tuple4>::default() };
    let look = || {
        asked.set(asked.get() + 1);
        true
    };
    keep_off(&mut entry, !GATE_SERVICES, look);
    assert_eq!((asked.get(), entry.state, is_kept_off(&entry)), (0, STATE_ACTIVE, false));
    keep_off(&mut entry, GATE_SERVICES, || false);
    assert!(!is_kept_off(&entry));
    keep_off(&mut entry, GATE_SERVICES, look);
    assert_eq!((asked.get(), entry.state, is_kept_off(&entry)), (1, STATE_SLOW, true));
    assert!(ends(&mut entry) && !ends(&mut entry));
    assert_eq!((entry.state, is_kept_off(&entry)), (STATE_CLOSING, true), "what it counted was by OVS");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever clock, gate and other direction: of an entry that is kept off nothing is carried, nobody is asked whether the
    /// connection is open, and a note is made only when it is due.
    #[test]
    fn an_entry_that_is_kept_off_carries_nothing(case in valid(), more in gate()) {
        let mut case = case;
        case.gate |= more;
        keep_off(&mut case.entry, case.gate | GATE_SERVICES, || true);
        case.entry.checked = case.change;
        let (before, late, terms) = (case.entry, case.late(), case.terms());
        let mut entry = before;
        let asked = Cell::new(false);
        let is_open = |_: &Entry<Tuple4>| {
            asked.set(true);
            true
        };
        let reason = match decide(Some(&mut entry), &case.facts, &terms, |_| Ok(()), |_| true, is_open) {
            Decision::Forward(..) => None,
            Decision::KeptOff(_) => Some(Reason::ServiceSlow),
            Decision::Slow(reason) => Some(reason),
        };
        let expected = if late >= 0 { Reason::Overdue } else { Reason::ServiceSlow };
        prop_assert_eq!(reason, Some(expected));
        prop_assert_eq!(is_noted(expected), late >= 0);
        prop_assert!(!asked.get());
        prop_assert_eq!(entry, before);
        forget(&mut entry);
        let again = decide(Some(&mut entry), &case.facts, &terms, |_| Ok(()), |_| true, |_| true);
        prop_assert_eq!(again, Decision::Slow(Reason::Stale));
    }

    /// What flows carried adds up over epochs: for the same answer by the same path, and else not.
    #[test]
    fn an_entry_goes_on_counting_where_one_of_the_same_answer_and_path_ended(
        (old_target, target) in (few(), few()), (old_kept, kept) in (any::<bool>(), any::<bool>()),
        (packets, bytes, learned) in any::<(u64, u64, u32)>(), now in any::<u32>(),
    ) {
        let entry = |destination, kept: bool| {
            let mut entry = Entry { after: four(1, destination, (1, 2), UDP), learned: now, ..Entry::default() };
            keep_off(&mut entry, GATE_SERVICES, || kept);
            entry
        };
        let old = Entry { packets, bytes, learned, ..entry(old_target, old_kept) };
        let mut value = entry(target, kept);
        go_on(&mut value, &old);
        prop_assert_eq!(same_path(&value, &old), old_kept == kept);
        let expected = if old_target == target && old_kept == kept { (packets, bytes, learned) } else { (0, 0, now) };
        prop_assert_eq!((value.packets, value.bytes, value.learned), expected);
    }
}

#[test]
fn keys_of_different_places_are_different() {
    let mut keys = BTreeSet::new();
    for address in [1, 2] {
        for port in [1, 2] {
            for protocol in [TCP, UDP] {
                keys.insert(four(address, 0, (port, 0), protocol).source_key());
                keys.insert(six(address, 0, (port, 0), protocol).source_key());
            }
        }
    }
    assert_eq!(keys.len(), 16);
}

//! Tests of a flow's effects: what is constant, copied, pushed and translated.

use super::super::oxm::Id;
use super::*;

fn field(class: u16, number: u8, value: &[u8]) -> Vec<u8> {
    [&class.to_be_bytes()[..], &[number << 1, u8::try_from(value.len()).unwrap()], value].concat()
}

fn set(fields: &[Vec<u8>]) -> Effects {
    let mut effects = Effects::default();
    fields.iter().for_each(|field| effects.take(25, field, 0));
    effects
}

#[test]
fn constants_are_told_from_parts_and_copies() {
    let effects = set(&[
        field(1, 0, &[10, 0, 0, 1]),
        field(1, 111 + 1, &[0; 16]),
        field(0x8000, 2, &[0, 0, 0, 0, 0, 0, 0, 3]),
    ]);
    assert_eq!(
        (effects.register(0), effects.register(4), effects.datapath),
        (Some(0x0a00_0001), None, Some(3))
    );
    assert!(effects.constant.contains(Target::NextHop) && effects.other.is_empty());
    let twice = set(&[field(1, 0, &[10, 0, 0, 1]), field(1, 0, &[10, 0, 0, 2])]);
    assert!(twice.other.contains(Target::NextHop), "one of two constants");
    let mut masked = vec![0, 1, 1, 8];
    masked.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    assert!(set(&[masked]).other.contains(Target::NextHop));
    assert!(!set(&[field(1, 111, &[0; 16])]).zeroes());
    assert!(set(&[field(1, 111, &[0; 16]), field(1, 112, &[0; 16])]).zeroes());
}

fn header(id: Id) -> [u8; 4] {
    (id << 9 | 4).to_be_bytes()
}

const fn register(at: u32) -> Id {
    1 << 7 | at
}

#[test]
fn a_copy_of_the_destination_is_a_next_hop_and_another_is_not() {
    let copy = |from: u32, to: u32, offset: u8, bits: u8| {
        let mut effects = Effects::default();
        let mut body = vec![0, bits, 0, 0, 0, offset, 0, 0];
        body.extend([header(from), header(to)].concat());
        effects.take(28, &body, 0);
        effects
    };
    assert!(copy(oxm::IPV4_DST[0], register(0), 0, 32).other.is_empty());
    assert!(copy(oxm::IPV4_DST[0], register(111), 96, 32).other.is_empty());
    assert!(copy(oxm::IPV6_DST[0], register(111), 0, 128).other.is_empty());
    assert!(copy(oxm::IPV4_SRC[0], register(0), 0, 32).other.contains(Target::NextHop));
    assert!(copy(register(10), register(111), 111, 1).other.contains(Target::NextHop));
    assert!(copy(oxm::CT_DST[0], register(4), 0, 32).other.is_empty());
    assert!(copy(register(13), register(15), 0, 32).other.contains(Target::Egress));
    assert!(copy(register(14), register(15), 0, 32).returns);
    assert!(copy(register(111), register(112), 0, 128).carries);
}

#[test]
fn what_is_pushed_comes_back() {
    let at = |id: Id, offset: u8, bits: u8| [&[0, offset][..], &header(id), &[0, bits]].concat();
    let mut effects = Effects::default();
    // As a router asks for the MAC address of a next hop: the register is an argument, and restored.
    effects.nicira(27, &at(register(112), 0, 128));
    effects.nicira(27, &at(register(111), 0, 128));
    effects.nicira(28, &at(register(112), 0, 128));
    effects.nicira(28, &at(register(112), 0, 128));
    assert!(effects.carries && effects.other.is_empty());
    effects.nicira(27, &at(register(111), 96, 32));
    effects.nicira(28, &at(register(0), 0, 32));
    assert!(effects.other.is_empty());
    effects.nicira(28, &at(register(14), 0, 32));
    assert!(effects.other.contains(Target::Ingress), "of nothing");
}

#[test]
fn a_translation_of_the_destination_is_told_from_others() {
    let nat = |flags: u8| {
        let mut effects = Effects::default();
        effects.nicira(36, &[0, 0, 0, flags, 0, 0]);
        (effects.translates, effects.translates_destination)
    };
    assert_eq!((nat(0), nat(1), nat(2)), ((true, false), (true, false), (true, true)));
}

//! Flows as OVS writes them in OpenFlow 1.5.

use crate::ovs::openflow::{FlowActions, Key, Update};

/// A field with its header.
pub(super) fn field(class: u16, number: u8, value: &[u8]) -> Vec<u8> {
    [&class.to_be_bytes()[..], &[number << 1, u8::try_from(value.len()).unwrap()], value].concat()
}

pub(super) fn masked(class: u16, number: u8, value: &[u8], mask: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len() * 2).unwrap();
    [&class.to_be_bytes()[..], &[number << 1 | 1, length], value, mask].concat()
}

pub(super) fn in_port(port: u32) -> Vec<u8> {
    field(0x8000, 0, &port.to_be_bytes())
}

pub(super) fn metadata(datapath: u64) -> Vec<u8> {
    field(0x8000, 2, &datapath.to_be_bytes())
}

/// A register, in the form of a match: half of a 64-bit field.
pub(super) fn reg(at: u8, value: u32) -> Vec<u8> {
    let (mut bytes, mut mask) = ([0; 8], [0; 8]);
    let from = usize::from(at % 2) * 4;
    bytes[from..from + 4].copy_from_slice(&value.to_be_bytes());
    mask[from..from + 4].fill(0xff);
    masked(0x8001, at / 2, &bytes, &mask)
}

/// A register in the form of `set_field`.
pub(super) fn nxm_reg(at: u8, value: u32) -> Vec<u8> {
    field(1, at, &value.to_be_bytes())
}

pub(super) fn xxreg(at: u8, address: &str) -> Vec<u8> {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    field(1, 111 + at, &address.octets())
}

pub(super) fn eth_type(kind: u16) -> Vec<u8> {
    field(0x8000, 5, &kind.to_be_bytes())
}

pub(super) fn proto(number: u8) -> Vec<u8> {
    field(0x8000, 10, &[number])
}

pub(super) fn src(address: [u8; 4]) -> Vec<u8> {
    field(0x8000, 11, &address)
}

pub(super) fn dst(address: [u8; 4]) -> Vec<u8> {
    field(0x8000, 12, &address)
}

pub(super) fn dst_prefix(address: [u8; 4], mask: [u8; 4]) -> Vec<u8> {
    masked(0x8000, 12, &address, &mask)
}

pub(super) fn dst6(address: &str) -> Vec<u8> {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    field(0x8000, 27, &address.octets())
}

pub(super) fn dl_dst(mac: [u8; 6]) -> Vec<u8> {
    field(0x8000, 3, &mac)
}

pub(super) fn dl_src(mac: [u8; 6]) -> Vec<u8> {
    field(0x8000, 4, &mac)
}

pub(super) fn tcp_dst(port: u16) -> Vec<u8> {
    field(0x8000, 14, &port.to_be_bytes())
}

pub(super) fn conj_id(id: u32) -> Vec<u8> {
    field(1, 37, &id.to_be_bytes())
}

/// An action: type, length, what follows, padded.
fn action(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + 4).next_multiple_of(8);
    let mut bytes = [&kind.to_be_bytes()[..], &u16::try_from(length).unwrap().to_be_bytes(), body].concat();
    bytes.resize(length, 0);
    bytes
}

fn nicira(kind: u16, body: &[u8]) -> Vec<u8> {
    action(0xffff, &[&[0, 0, 0x23, 0x20][..], &kind.to_be_bytes(), body].concat())
}

pub(super) fn set(field: &[u8]) -> Vec<u8> {
    action(25, field)
}

pub(super) fn output(port: u32) -> Vec<u8> {
    action(0, &[&port.to_be_bytes()[..], &[0xff, 0xff]].concat())
}

pub(super) fn dec_ttl() -> Vec<u8> {
    action(24, &[0; 4])
}

/// NXAST_RESUBMIT_TABLE, of the port that the packet came by (OFPP_IN_PORT).
pub(super) fn resubmit(table: u8) -> Vec<u8> {
    nicira(14, &[0xff, 0xf8, table, 0, 0, 0])
}

pub(super) fn group(id: u32) -> Vec<u8> {
    action(22, &id.to_be_bytes())
}

/// `copy_field` of 32 bits, headers without their lengths.
pub(super) fn copy(from: (u16, u8), to: (u16, u8)) -> Vec<u8> {
    let header = |(class, number): (u16, u8)| [&class.to_be_bytes()[..], &[number << 1, 4]].concat();
    action(28, &[&[0, 32, 0, 0, 0, 0, 0, 0][..], &header(from), &header(to)].concat())
}

pub(super) fn conjunction(id: u32, clause: u8) -> Vec<u8> {
    nicira(34, &[&[clause, 2][..], &id.to_be_bytes()].concat())
}

/// `clone(…)`.
pub(super) fn clone(actions: &[Vec<u8>]) -> Vec<u8> {
    nicira(42, &[&[0; 6][..], &actions.concat()].concat())
}

/// What a patch port does.
pub(super) fn patch(datapath: u64, port: u32) -> Vec<u8> {
    let zero = [set(&xxreg(0, "::")), set(&xxreg(1, "::"))].concat();
    clone(&[zero, set(&metadata(datapath)), set(&nxm_reg(14, port))])
}

/// A flow: table, priority, `ofp_match`, instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) table: u8,
    pub(super) priority: u16,
    matched: Vec<u8>,
    instructions: Vec<u8>,
}

impl Flow {
    pub(super) fn new(table: u8, fields: &[Vec<u8>], actions: &[Vec<u8>]) -> Self {
        let actions = actions.concat();
        let length = u16::try_from(actions.len() + 8).unwrap().to_be_bytes();
        let instructions = [&[0, 4, length[0], length[1], 0, 0, 0, 0], actions.as_slice()].concat();
        Self {
            table,
            priority: 1,
            matched: [&[0, 1, 0, 0], fields.concat().as_slice()].concat(),
            instructions,
        }
    }

    fn key(&self) -> Key<'_> {
        Key { table: self.table, priority: self.priority, fields: &self.matched }
    }

    pub(super) fn present(&self) -> Update<'_> {
        Update::Present { key: self.key(), actions: FlowActions::read(&self.instructions) }
    }

    pub(super) fn removed(&self) -> Update<'_> {
        Update::Removed(self.key())
    }
}

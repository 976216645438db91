//! Parts of ACL matches: address fields, port lists, port groups.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::index::Protocol;
use crate::index::policy::{Direction, PortSpec};
use crate::plan::RowKey;

/// Which address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

impl Side {
    /// The side on which the peer is.
    pub(super) fn of_peer(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Source,
            Direction::Egress => Self::Destination,
        }
    }
}

/// The field of an address, of the family of `ip`.
pub(super) fn field(side: Side, ip: IpAddr) -> &'static str {
    match (ip.is_ipv4(), side) {
        (true, Side::Source) => "ip4.src",
        (true, Side::Destination) => "ip4.dst",
        (false, Side::Source) => "ip6.src",
        (false, Side::Destination) => "ip6.dst",
    }
}

/// Matches any of the parts; `None` when there is none.
pub(super) fn either(parts: Vec<String>) -> Option<String> {
    match parts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("({})", several.join(" || "))),
    }
}

/// Matches every address of the families.
pub(super) fn any_address(families: &[IpAddr]) -> Option<String> {
    either(families.iter().map(|ip| if ip.is_ipv4() { "ip4" } else { "ip6" }.to_owned()).collect())
}

/// Matches addresses in any of the sets, which `references` names for a family.
pub(super) fn in_sets(
    side: Side,
    families: &[IpAddr],
    references: impl Fn(IpAddr) -> BTreeSet<String>,
) -> Option<String> {
    let of = |ip: &IpAddr| {
        let names: Vec<String> = references(*ip).into_iter().collect();
        (!names.is_empty()).then(|| format!("{} == {{{}}}", field(side, *ip), names.join(", ")))
    };
    either(families.iter().filter_map(of).collect())
}

/// Matches the ports of one protocol that are given by number; `None` when there is none.
pub(super) fn ports(protocol: Protocol, specs: &[&PortSpec]) -> Option<String> {
    let tcp = protocol.lower();
    let mut numbers = Vec::new();
    let mut ranges = Vec::new();
    for spec in specs {
        match spec {
            PortSpec::All => return Some(tcp.to_owned()),
            PortSpec::Number(number) if !numbers.contains(number) => numbers.push(*number),
            PortSpec::Range(first, last) => ranges.push(format!("{first}<={tcp}.dst<={last}")),
            PortSpec::Number(_) | PortSpec::Named(_) => {}
        }
    }
    let mut parts = Vec::new();
    match numbers.as_slice() {
        [] => {}
        [one] => parts.push(format!("{tcp}.dst=={one}")),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            parts.push(format!("{tcp}.dst=={{{}}}", several.join(",")));
        }
    }
    parts.extend(ranges);
    either(parts).map(|ports| format!("{tcp} && {ports}"))
}

/// Matches the policy's own ports.
pub(super) fn port_group(direction: Direction, group: &RowKey) -> String {
    match direction {
        Direction::Ingress => format!("outport == @{}", group.hashed_name()),
        Direction::Egress => format!("inport == @{}", group.hashed_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_the_reference_does() {
        let of = |specs: &[PortSpec]| ports(Protocol::Tcp, &specs.iter().collect::<Vec<_>>());
        let (a, b, range) = (PortSpec::Number(80), PortSpec::Number(81), PortSpec::Range(8080, 8090));
        let cases = [
            (vec![], None),
            (vec![PortSpec::Named("http".into())], None),
            (vec![PortSpec::All, a.clone()], Some("tcp")),
            (vec![a.clone(), a.clone()], Some("tcp && tcp.dst==80")),
            (vec![a.clone(), b.clone()], Some("tcp && tcp.dst=={80,81}")),
            (vec![range.clone()], Some("tcp && 8080<=tcp.dst<=8090")),
            (vec![range, b, a], Some("tcp && (tcp.dst=={81,80} || 8080<=tcp.dst<=8090)")),
        ];
        for (specs, expected) in cases {
            assert_eq!(of(&specs).as_deref(), expected, "{specs:?}");
        }
    }
}

//! Address sets: of peers, and of the pods behind a named port.

use std::net::IpAddr;

use api::ovn_name;

use crate::index::Pod;
use crate::index::policy::{NamedPort, PeerSelector, Scope, peer_addresses};
use crate::plan::{DesiredRow, Item, RowKey, Table};

use super::domain::{Domain, Owner};

/// Replaces a selector's text where all pods are meant. No selector has this text.
const ANYWHERE: &str = "any";

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "v4" } else { "v6" }
}

fn peer_id(domain: &Domain<'_>, peer: &PeerSelector, ip: IpAddr) -> String {
    domain.id(Owner::Peers, &[&peer.text(), family(ip)])
}

fn scope_text(port: &NamedPort) -> String {
    match &port.scope {
        Scope::Anywhere => ANYWHERE.to_owned(),
        Scope::Pods(peer) => peer.text(),
    }
}

fn named_id(domain: &Domain<'_>, port: &NamedPort, number: u16, ip: IpAddr) -> String {
    let parts = [&scope_text(port), &port.name, port.protocol.lower(), &number.to_string(), family(ip)];
    domain.id(Owner::NamedPeers, &parts)
}

fn key(id: &str) -> RowKey {
    RowKey::new(Table::AddressSet, id)
}

/// The peer's set of one family, as a match refers to it.
pub(super) fn peer_reference(domain: &Domain<'_>, peer: &PeerSelector, ip: IpAddr) -> String {
    format!("${}", ovn_name::hashed(&peer_id(domain, peer, ip)))
}

/// The named port's set of one family, as a match refers to it.
pub(super) fn named_reference(domain: &Domain<'_>, port: &NamedPort, number: u16, ip: IpAddr) -> String {
    format!("${}", ovn_name::hashed(&named_id(domain, port, number, ip)))
}

fn row(id: &str, external_ids: ovsdb_client::Datum) -> Item {
    let key = key(id);
    DesiredRow::new(key.clone()).with("name", ovn_name::hashed(id)).with("external_ids", external_ids).into()
}

/// The rows of a peer's sets, one for each family that pods have.
pub(super) fn peer_rows(domain: &Domain<'_>, peer: &PeerSelector) -> Vec<Item> {
    let of = |ip| {
        let id = peer_id(domain, peer, ip);
        row(&id, domain.owner_ids(&id, Owner::Peers, &peer.text(), &[("ip-family", family(ip))]))
    };
    domain.families.iter().copied().map(of).collect()
}

/// The rows of a named port's sets for one number, one for each family that pods have.
pub(super) fn named_rows(domain: &Domain<'_>, port: &NamedPort, number: u16) -> Vec<Item> {
    let of = |ip| {
        let (id, number) = (named_id(domain, port, number, ip), number.to_string());
        let extra = [
            ("ip-family", family(ip)),
            ("port-name", port.name.as_str()),
            ("port-policy-protocol", port.protocol.lower()),
            ("port", &number),
        ];
        row(&id, domain.owner_ids(&id, Owner::NamedPeers, &scope_text(port), &extra))
    };
    domain.families.iter().copied().map(of).collect()
}

/// A pod's addresses in a peer's sets.
pub(super) fn peer_members(domain: &Domain<'_>, peer: &PeerSelector, pod: &Pod) -> Vec<Item> {
    peer_addresses_in(domain, peer, &peer_addresses(pod))
}

/// Addresses in a peer's sets.
pub(super) fn peer_addresses_in(domain: &Domain<'_>, peer: &PeerSelector, addresses: &[IpAddr]) -> Vec<Item> {
    let member = |ip: &IpAddr| Item::text(&key(&peer_id(domain, peer, *ip)), "addresses", ip.to_string());
    addresses.iter().map(member).collect()
}

/// A pod's addresses in a named port's sets.
pub(super) fn named_members(domain: &Domain<'_>, port: &NamedPort, number: u16, pod: &Pod) -> Vec<Item> {
    let member =
        |ip: IpAddr| Item::text(&key(&named_id(domain, port, number, ip)), "addresses", ip.to_string());
    peer_addresses(pod).into_iter().map(member).collect()
}

//! Address sets: of peers, and of the pods behind a named port.

use std::net::IpAddr;

use api::ovn_name;

use crate::config::Config;
use crate::index::Pod;
use crate::index::policy::{NamedPort, PeerSelector, Scope, peer_addresses};
use crate::plan::columns::owner_ids;
use crate::plan::{DesiredRow, Item, RowKey, Table};

/// Owner type of peer sets.
const PEER_TYPE: &str = "PodSelector";
/// Owner type of the sets behind named ports.
const NAMED_TYPE: &str = "PodSelectorNamedPort";
/// Replaces a selector's text where all pods are meant. No selector has this text.
const ANYWHERE: &str = "any";

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "v4" } else { "v6" }
}

fn peer_id(peer: &PeerSelector, ip: IpAddr) -> String {
    ovn_name::owner_id(PEER_TYPE, &[&peer.text(), family(ip)])
}

fn scope_text(port: &NamedPort) -> String {
    match &port.scope {
        Scope::Anywhere => ANYWHERE.to_owned(),
        Scope::Pods(peer) => peer.text(),
    }
}

fn named_id(port: &NamedPort, number: u16, ip: IpAddr) -> String {
    let parts = [&scope_text(port), &port.name, port.protocol.lower(), &number.to_string(), family(ip)];
    ovn_name::owner_id(NAMED_TYPE, &parts)
}

fn key(id: &str) -> RowKey {
    RowKey::new(Table::AddressSet, id)
}

/// The peer's set of one family, as a match refers to it.
pub(super) fn peer_reference(peer: &PeerSelector, ip: IpAddr) -> String {
    format!("${}", ovn_name::hashed(&peer_id(peer, ip)))
}

/// The named port's set of one family, as a match refers to it.
pub(super) fn named_reference(port: &NamedPort, number: u16, ip: IpAddr) -> String {
    format!("${}", ovn_name::hashed(&named_id(port, number, ip)))
}

fn row(id: &str, external_ids: ovsdb_client::Datum) -> Item {
    let key = key(id);
    DesiredRow::new(key.clone()).with("name", ovn_name::hashed(id)).with("external_ids", external_ids).into()
}

/// The rows of a peer's sets, one for each family that pods have.
pub(super) fn peer_rows(peer: &PeerSelector, config: &Config) -> Vec<Item> {
    let of = |ip| {
        let id = peer_id(peer, ip);
        row(&id, owner_ids(&id, PEER_TYPE, &peer.text(), &[("ip-family", family(ip))]))
    };
    config.families().into_iter().map(of).collect()
}

/// The rows of a named port's sets for one number, one for each family that pods have.
pub(super) fn named_rows(port: &NamedPort, number: u16, config: &Config) -> Vec<Item> {
    let of = |ip| {
        let (id, number) = (named_id(port, number, ip), number.to_string());
        let extra = [
            ("ip-family", family(ip)),
            ("port-name", port.name.as_str()),
            ("port-policy-protocol", port.protocol.lower()),
            ("port", &number),
        ];
        row(&id, owner_ids(&id, NAMED_TYPE, &scope_text(port), &extra))
    };
    config.families().into_iter().map(of).collect()
}

/// A pod's addresses in a peer's sets.
pub(super) fn peer_members(peer: &PeerSelector, pod: &Pod) -> Vec<Item> {
    peer_addresses_in(peer, &peer_addresses(pod))
}

/// Addresses in a peer's sets.
pub(super) fn peer_addresses_in(peer: &PeerSelector, addresses: &[IpAddr]) -> Vec<Item> {
    let member = |ip: &IpAddr| Item::text(&key(&peer_id(peer, *ip)), "addresses", ip.to_string());
    addresses.iter().map(member).collect()
}

/// A pod's addresses in a named port's sets.
pub(super) fn named_members(port: &NamedPort, number: u16, pod: &Pod) -> Vec<Item> {
    let member = |ip: IpAddr| Item::text(&key(&named_id(port, number, ip)), "addresses", ip.to_string());
    peer_addresses(pod).into_iter().map(member).collect()
}

//! The effect of planned port groups, address sets and ACLs on a packet: a small evaluator of OVN's match language.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use controller::plan::{Edge, Item, Member, Table};
use ipnet::IpNet;
use ovsdb_client::Atom;

/// A packet that opens a connection.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    /// `tcp`, `udp`, `sctp`, or `icmp4`.
    pub(crate) protocol: &'static str,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) port: u16,
    /// Switch ports of the pods at both ends; none for other ends.
    pub(crate) inport: Option<String>,
    pub(crate) outport: Option<String>,
}

#[derive(Debug)]
struct Acl {
    ingress: bool,
    priority: i64,
    action: String,
    tokens: Vec<String>,
}

/// The rows that decide whether a packet passes.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    acls: Vec<Acl>,
    groups: BTreeMap<String, BTreeSet<String>>,
    sets: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Rules {
    /// Reads items. An edge whose owner or member does not exist is an error of the plan.
    pub(crate) fn read<'a>(items: impl Iterator<Item = &'a Item>, ports: &BTreeSet<String>) -> Self {
        let mut rules = Self::default();
        let mut edges: Vec<&Edge> = Vec::new();
        let mut acls = BTreeMap::new();
        for item in items {
            match item {
                Item::Edge(edge) => edges.push(edge),
                Item::Row(row) => {
                    let text = |column| row.columns[column].as_str().unwrap().to_owned();
                    match row.key.table {
                        Table::PortGroup => drop(rules.groups.entry(row.key.hashed_name()).or_default()),
                        Table::AddressSet => drop(rules.sets.entry(row.key.hashed_name()).or_default()),
                        Table::Acl => {
                            let Some(Atom::Integer(priority)) = row.columns["priority"].scalar() else {
                                panic!()
                            };
                            let acl = Acl {
                                ingress: text("direction") == "to-lport",
                                priority: *priority,
                                action: text("action"),
                                tokens: tokens(&text("match")),
                            };
                            acls.insert(row.key.key.clone(), acl);
                        }
                        other => panic!("a policy plans no {other:?}"),
                    }
                }
            }
        }
        for edge in edges {
            let owner = &edge.owner.hashed_name();
            match (&edge.member, edge.column) {
                (Member::Row(port), "ports") => {
                    assert!(ports.contains(port.key.as_str()), "no port {}", port.key);
                    rules.groups.get_mut(owner).expect("group exists").insert(port.key.to_string());
                }
                (Member::Text(ip), "addresses") => {
                    rules.sets.get_mut(owner).expect("set exists").insert(ip.parse().unwrap());
                }
                (Member::Row(acl), "acls") => {
                    assert!(rules.groups.contains_key(owner), "group of {} exists", acl.key);
                    rules.acls.extend(acls.remove(&acl.key));
                }
                other => panic!("unexpected edge {other:?}"),
            }
        }
        assert!(acls.is_empty(), "ACLs in no group: {acls:?}");
        rules
    }

    /// True when the ACLs of both ends let the packet pass.
    pub(crate) fn allow(&self, packet: &Packet) -> bool {
        (packet.inport.is_none() || self.stage(packet, false))
            && (packet.outport.is_none() || self.stage(packet, true))
    }

    fn stage(&self, packet: &Packet, ingress: bool) -> bool {
        let matching = self.acls.iter().filter(|acl| acl.ingress == ingress && self.matches(acl, packet));
        let first = matching.max_by_key(|acl| acl.priority);
        first.is_none_or(|acl| acl.action != "drop")
    }

    fn matches(&self, acl: &Acl, packet: &Packet) -> bool {
        let mut parser = Parser { rules: self, packet, tokens: &acl.tokens, at: 0 };
        let result = parser.expression();
        assert_eq!(parser.at, acl.tokens.len(), "trailing text in {:?}", acl.tokens);
        result
    }
}

fn tokens(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let two = rest.get(..2).filter(|two| ["==", "!=", "<=", "&&", "||"].contains(two));
        let length = match two {
            Some(_) => 2,
            None if rest.starts_with(['(', ')', '{', '}', ',']) => 1,
            None => rest.find([' ', '(', ')', '{', '}', ',', '=', '!', '<', '&', '|']).unwrap_or(rest.len()),
        };
        assert!(length > 0, "cannot read {rest}");
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    found
}

struct Parser<'a> {
    rules: &'a Rules,
    packet: &'a Packet,
    tokens: &'a [String],
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> &'a str {
        self.at += 1;
        self.tokens.get(self.at - 1).map_or("", String::as_str)
    }

    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    /// Terms joined by one operator: OVN refuses `&&` beside `||` without parentheses.
    fn expression(&mut self) -> bool {
        let mut result = self.term();
        let operator = self.peek();
        while matches!(self.peek(), "&&" | "||") {
            assert_eq!(self.next(), operator, "mixed operators in {:?}", self.tokens);
            let term = self.term();
            result = if operator == "&&" { result && term } else { result || term };
        }
        result
    }

    fn term(&mut self) -> bool {
        let first = self.next();
        if first == "(" {
            let result = self.expression();
            assert_eq!(self.next(), ")");
            return result;
        }
        if first.starts_with(|c: char| c.is_ascii_digit()) {
            let low: u16 = first.parse().unwrap();
            assert_eq!(self.next(), "<=");
            let port = self.port_of();
            assert_eq!(self.next(), "<=");
            let high: u16 = self.next().parse().unwrap();
            return port.is_some_and(|port| (low..=high).contains(&port));
        }
        if !matches!(self.peek(), "==" | "!=") {
            return match first {
                "ip4" => self.packet.source.is_ipv4(),
                "ip6" => self.packet.source.is_ipv6(),
                "tcp" | "udp" | "sctp" => self.packet.protocol == first,
                "arp" | "nd" => false,
                other => panic!("unknown predicate {other}"),
            };
        }
        let negated = self.next() == "!=";
        let constants = self.constants();
        // A field that the packet does not have compares as false, whatever the operator.
        match first {
            "ip4.src" | "ip6.src" => self.address(first, self.packet.source, &constants, negated),
            "ip4.dst" | "ip6.dst" => self.address(first, self.packet.destination, &constants, negated),
            "inport" => self.in_group(self.packet.inport.as_ref(), &constants),
            "outport" => self.in_group(self.packet.outport.as_ref(), &constants),
            port => {
                let protocol = port.strip_suffix(".dst").expect("a destination port");
                protocol == self.packet.protocol && constants.contains(&self.packet.port.to_string().as_str())
            }
        }
    }

    fn port_of(&mut self) -> Option<u16> {
        let protocol = self.next().strip_suffix(".dst").expect("a destination port");
        (protocol == self.packet.protocol).then_some(self.packet.port)
    }

    fn constants(&mut self) -> Vec<&'a str> {
        if self.peek() != "{" {
            return vec![self.next()];
        }
        self.next();
        let mut found = Vec::new();
        loop {
            found.push(self.next());
            match self.next() {
                "," => {}
                "}" => return found,
                other => panic!("{other:?} in a set of {:?}", self.tokens),
            }
        }
    }

    fn address(&self, field: &str, ip: IpAddr, constants: &[&str], negated: bool) -> bool {
        if field.starts_with("ip4") != ip.is_ipv4() {
            return false;
        }
        let inside = constants.iter().any(|constant| match constant.strip_prefix('$') {
            Some(set) => self.rules.sets.get(set).unwrap_or_else(|| panic!("no set {set}")).contains(&ip),
            None => match constant.parse::<IpNet>() {
                Ok(net) => net.contains(&ip),
                Err(_) => constant.parse::<IpAddr>().unwrap() == ip,
            },
        });
        inside != negated
    }

    fn in_group(&self, port: Option<&String>, constants: &[&str]) -> bool {
        let group = constants[0].strip_prefix('@').expect("a port group");
        let ports = self.rules.groups.get(group).unwrap_or_else(|| panic!("no group {group}"));
        port.is_some_and(|port| ports.contains(port))
    }
}

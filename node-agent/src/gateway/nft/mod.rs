//! Address translation and filters of the host as nftables ruleset: service addresses for connections of the host, source address
//! of the management port, and a filter for "fragmentation needed" to other nodes. The text is computed from plain values; [`apply`]
//! applies it in one transaction.
//!
//! Two pairs of tables: `inet slipstream` follows services and nodes and is always rewritten completely; `inet slipstream_ports` and
//! `arp slipstream_ports` are static. They drop packets that arrive on links of group [`OVS_ONLY_GROUP`]: OVS reads those links by
//! packet socket, and the node's own stack must not handle the same packets a second time.

pub mod local;
pub mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use api::addr::Family;

use super::flows::GENEVE;
use super::services::{NodeService, NodeServicePort};
use api::Protocol;
use local::{FromOutside, LocalGateway};

/// Link group of ports that OVS reads by packet socket.
pub const OVS_ONLY_GROUP: u32 = 0x5151;
/// Packet mark of the node's connections to internal-policy Local services, which leave by the management port.
pub const LOCAL_POLICY_MARK: u32 = 0x0017_45ec;

/// Inputs of the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// The address families of the gateway.
    pub families: Vec<FamilyInputs>,
    /// Name and addresses of the management port, `None` until the node has a subnet.
    pub management: Option<(String, Vec<IpAddr>)>,
    /// Addresses of the other nodes.
    pub remote_nodes: BTreeSet<IpAddr>,
    /// Addresses of the other nodes by name.
    pub nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Set in gateway mode local.
    pub local: Option<LocalGateway>,
}

/// Inputs for one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyInputs {
    /// Address of the node on the gateway bridge.
    pub node: IpAddr,
    /// The masquerade address for local-policy services (`.3`).
    pub masquerade_local: IpAddr,
}

type Address = (IpAddr, Protocol, u16);

/// How rules of one address family are written (nft(8)).
struct Words {
    ip: &'static str,
    /// Type of an address in sets and maps.
    kind: &'static str,
    /// End of the names of sets and maps.
    suffix: &'static str,
    /// "Fragmentation needed" (RFC 792), "packet too big" (RFC 4443).
    too_big: &'static str,
}

impl Words {
    fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self {
                ip: "ip",
                kind: "ipv4_addr",
                suffix: "",
                too_big: "icmp type destination-unreachable icmp code 4",
            },
            Family::V6 => {
                Self { ip: "ip6", kind: "ipv6_addr", suffix: "6", too_big: "icmpv6 type packet-too-big" }
            }
        }
    }
}

/// Translations of all services of one family, sorted and without duplicates. Where two services claim the same key, the first name
/// wins.
#[derive(Debug)]
struct Translations {
    family: Family,
    node_ports: BTreeMap<(Protocol, u16), (IpAddr, u16)>,
    /// Local-policy node ports without a backend on this node: other nodes that have backends, for the node's own connections.
    elsewhere: BTreeMap<(Protocol, u16), Vec<IpAddr>>,
    external: BTreeMap<Address, (IpAddr, u16)>,
    local_external: BTreeMap<Address, (IpAddr, u16)>,
    /// Local-policy addresses of services without node ports; their traffic goes directly to the backends on this node.
    local_backends: BTreeMap<Address, Vec<(IpAddr, u16)>>,
    internal_marked: BTreeSet<Address>,
    internal_redirected: BTreeMap<Address, u16>,
    unsnat_ports: BTreeSet<(Protocol, u16)>,
    unsnat_services: BTreeSet<Address>,
    /// Empty but in gateway mode local.
    from_outside: FromOutside,
}

/// The table that follows services and nodes, as input of `nft -f`.
pub fn services_table(inputs: &Inputs, services: &[NodeService]) -> String {
    let mut sorted: Vec<&NodeService> = services.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let all: Vec<Translations> =
        inputs.families.iter().map(|family| Translations::of(inputs, family, &sorted)).collect();
    let mut out = replace_head("inet", "slipstream");
    for translations in &all {
        sets(&mut out, inputs, translations);
    }
    chains(&mut out, inputs, &all);
    out.push_str("}\n");
    out
}

/// The static tables, as input of `nft -f`.
pub fn ports_tables() -> String {
    let mut out = replace_head("inet", "slipstream_ports");
    let _ = writeln!(
        out,
        "\tchain prerouting {{\n\t\ttype filter hook prerouting priority raw; policy accept;\n\t\tiifgroup {OVS_ONLY_GROUP} drop\n\t}}\n}}"
    );
    out.push_str(&replace_head("arp", "slipstream_ports"));
    let _ = writeln!(
        out,
        "\tchain input {{\n\t\ttype filter hook input priority filter; policy accept;\n\t\tiifgroup {OVS_ONLY_GROUP} drop\n\t}}\n}}"
    );
    out
}

/// Removes all tables of the agent, whether or not they exist. Input of `nft -f`.
pub fn removal() -> String {
    [("inet", "slipstream"), ("inet", "slipstream_ports"), ("arp", "slipstream_ports")]
        .iter()
        .map(|(family, name)| format!("table {family} {name}\ndelete table {family} {name}\n"))
        .collect()
}

/// Begins a table that replaces an existing one. Declaring it before the deletion makes the deletion succeed in any case.
fn replace_head(family: &str, name: &str) -> String {
    format!("table {family} {name}\ndelete table {family} {name}\ntable {family} {name} {{\n")
}

impl Translations {
    fn of(all: &Inputs, inputs: &FamilyInputs, services: &[&NodeService]) -> Self {
        let family = Family::of(inputs.node);
        let mut found = Self {
            family,
            node_ports: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            external: BTreeMap::new(),
            local_external: BTreeMap::new(),
            local_backends: BTreeMap::new(),
            internal_marked: BTreeSet::new(),
            internal_redirected: BTreeMap::new(),
            unsnat_ports: BTreeSet::new(),
            unsnat_services: BTreeSet::new(),
            from_outside: FromOutside::default(),
        };
        for service in services {
            let Some(cluster_ip) = service.cluster_ip(family) else { continue };
            for port in &service.ports {
                found.add(inputs, service, cluster_ip, port);
                found.add_elsewhere(all, service, port);
                if all.local.is_some() && service.external_local {
                    found.add_from_outside(inputs, service, port);
                }
            }
        }
        found
    }

    fn add(
        &mut self,
        inputs: &FamilyInputs,
        service: &NodeService,
        cluster_ip: IpAddr,
        port: &NodeServicePort,
    ) {
        let proto = port.protocol;
        let cluster = (cluster_ip, port.port);
        let host_backend = port.local.iter().find(|(ip, _)| *ip == inputs.node);
        let local: Vec<(IpAddr, u16)> = port.local_of(self.family).collect();
        let local_path = service.external_local && host_backend.is_none();
        if let Some(node_port) = port.node_port {
            self.node_ports.entry((proto, node_port)).or_insert(cluster);
            if local_path {
                self.unsnat_ports.insert((proto, node_port));
            }
        }
        for ip in service.external_ips_of(self.family) {
            let address = (ip, proto, port.port);
            self.external.entry(address).or_insert(cluster);
            if !local_path {
                continue;
            }
            match port.node_port {
                Some(node_port) => {
                    self.local_external.entry(address).or_insert((inputs.masquerade_local, node_port));
                }
                None if !local.is_empty() => {
                    self.unsnat_services.extend(local.iter().map(|(ip, target)| (*ip, proto, *target)));
                    self.local_backends.entry(address).or_insert_with(|| local.clone());
                }
                None => {}
            }
        }
        if service.internal_local {
            let address = (cluster_ip, proto, port.port);
            match host_backend {
                Some((_, target)) => {
                    self.internal_redirected.entry(address).or_insert(*target);
                }
                None => {
                    self.internal_marked.insert(address);
                }
            }
        }
    }

    /// The node's own connections may use any of its node ports regardless of the policy (as with kube-proxy), and keep their source
    /// address. Without a backend on this node, they go to the node port of a node that has one.
    fn add_elsewhere(&mut self, inputs: &Inputs, service: &NodeService, port: &NodeServicePort) {
        let Some(node_port) = port.node_port.filter(|_| service.external_local) else { return };
        if port.local_of(self.family).next().is_some() {
            return;
        }
        let nodes = port.elsewhere.iter().filter_map(|name| inputs.nodes.get(name));
        let mut nodes: Vec<IpAddr> =
            nodes.filter_map(|ips| ips.iter().copied().find(|ip| Family::of(*ip) == self.family)).collect();
        if service.sticky {
            nodes.truncate(1);
        }
        if !nodes.is_empty() {
            self.elsewhere.entry((port.protocol, node_port)).or_insert(nodes);
        }
    }
}

impl Translations {
    /// What clients outside get in gateway mode local of a port of a service with policy Local.
    fn add_from_outside(&mut self, inputs: &FamilyInputs, service: &NodeService, port: &NodeServicePort) {
        let proto = port.protocol;
        let host_backend = port.local.iter().find(|(ip, _)| *ip == inputs.node).copied();
        if let Some(node_port) = port.node_port {
            let to = host_backend.unwrap_or((inputs.masquerade_local, node_port));
            self.from_outside.node_ports.entry((proto, node_port)).or_insert(to);
        }
        for ip in service.external_ips_of(self.family) {
            let address = (ip, proto, port.port);
            if let Some(backend) = host_backend {
                self.local_external.entry(address).or_insert(backend);
            } else if port.node_port.is_none() && port.local_of(self.family).next().is_none() {
                self.from_outside.refused.insert(address);
            }
        }
    }
}

fn sets(out: &mut String, inputs: &Inputs, t: &Translations) {
    let Words { kind: ip, suffix, .. } = Words::of(t.family);
    let address = |(ip, proto, port): &Address| format!("{ip} . {} . {port}", proto.lower());
    let node_port = |(proto, port): &(Protocol, u16)| format!("{} . {port}", proto.lower());
    let target = |(ip, port): &(IpAddr, u16)| format!("{ip} . {port}");
    let mut set = |head: &str, kind: &str, elements: Vec<String>| {
        set(out, &format!("{head}{suffix}"), kind, &elements);
    };

    let remote = inputs.remote_nodes.iter().filter(|ip| Family::of(**ip) == t.family);
    set("set remote_nodes", ip, remote.map(ToString::to_string).collect());
    let kind = format!("inet_proto . inet_service : {ip} . inet_service");
    let elements = t.node_ports.iter().map(|(k, v)| format!("{} : {}", node_port(k), target(v)));
    set("map node_ports", &kind, elements.collect());
    let kind = format!("{ip} . inet_proto . inet_service : {ip} . inet_service");
    let elements = t.external.iter().map(|(k, v)| format!("{} : {}", address(k), target(v)));
    set("map external_addresses", &kind, elements.collect());
    let elements = t.local_external.iter().map(|(k, v)| format!("{} : {}", address(k), target(v)));
    set("map local_policy_addresses", &kind, elements.collect());
    let kind = format!("{ip} . inet_proto . inet_service");
    set("set internal_local_services", &kind, t.internal_marked.iter().map(address).collect());
    set("set unchanged_source_services", &kind, t.unsnat_services.iter().map(address).collect());
    let kind = "inet_proto . inet_service";
    set("set unchanged_source_node_ports", kind, t.unsnat_ports.iter().map(node_port).collect());
    if inputs.local.is_some() {
        let kind = format!("inet_proto . inet_service : {ip} . inet_service");
        let elements = t.from_outside.node_ports.iter();
        let elements = elements.map(|(k, v)| format!("{} : {}", node_port(k), target(v)));
        set("map local_policy_node_ports", &kind, elements.collect());
        if !t.from_outside.refused.is_empty() {
            let kind = format!("{ip} . inet_proto . inet_service");
            set("set without_backend", &kind, t.from_outside.refused.iter().map(address).collect());
        }
    }
}

fn set(out: &mut String, head: &str, kind: &str, elements: &[String]) {
    let _ = writeln!(out, "\t{head} {{\n\t\ttype {kind}");
    if !elements.is_empty() {
        let _ = writeln!(out, "\t\telements = {{ {} }}", elements.join(", "));
    }
    out.push_str("\t}\n");
}

fn chains(out: &mut String, inputs: &Inputs, all: &[Translations]) {
    let (mut prerouting, mut output, mut mark, mut pmtud) = (vec![], vec![], vec![], vec![]);
    let mut forged = vec![];
    let (mut from_nodes, mut to_nodes) = (vec![], vec![]);
    for t in all {
        let Words { ip, suffix, too_big, .. } = Words::of(t.family);
        let external =
            format!("dnat {ip} to {ip} daddr . meta l4proto . th dport map @external_addresses{suffix}");
        let node_ports =
            format!("fib daddr type local dnat {ip} to meta l4proto . th dport map @node_ports{suffix}");
        prerouting.push(format!(
            "dnat {ip} to {ip} daddr . meta l4proto . th dport map @local_policy_addresses{suffix}"
        ));
        for ((address, proto, port), backends) in &t.local_backends {
            let choice =
                backends.iter().enumerate().map(|(n, (ip, target))| format!("{n} : {ip} . {target}"));
            prerouting.push(format!(
                "{ip} daddr {address} {} dport {port} dnat {ip} to numgen random mod {} map {{ {} }}",
                proto.lower(),
                backends.len(),
                choice.collect::<Vec<_>>().join(", ")
            ));
        }
        prerouting.extend(inputs.local.as_ref().map(|local| local.prerouting(t)));
        prerouting.extend([external.clone(), node_ports.clone()]);
        for ((proto, port), nodes) in &t.elsewhere {
            let choice = nodes.iter().enumerate().map(|(n, ip)| format!("{n} : {ip} . {port}"));
            output.push(format!(
                "fib daddr type local {} dport {port} dnat {ip} to numgen random mod {} map {{ {} }}",
                proto.lower(),
                nodes.len(),
                choice.collect::<Vec<_>>().join(", ")
            ));
        }
        output.extend([external, node_ports]);
        for ((address, proto, port), target) in &t.internal_redirected {
            output.push(format!("{ip} daddr {address} {} dport {port} redirect to :{target}", proto.lower()));
        }
        // What every packet of the node meets, and not only the first of a connection, looks at the protocol before it looks up addresses.
        if !t.internal_marked.is_empty() {
            mark.push(format!(
                "{ip} daddr . meta l4proto . th dport @internal_local_services{suffix} meta mark set {LOCAL_POLICY_MARK:#x}"
            ));
        }
        pmtud.push(format!("{too_big} {ip} daddr @remote_nodes{suffix} drop"));
        // The outer source port is a hash of what is inside, so each connection of pods would be one of the node's, too, in the same
        // table that any pod can fill.
        from_nodes.push(format!("udp dport {GENEVE} {ip} saddr @remote_nodes{suffix} notrack"));
        to_nodes.push(format!("udp dport {GENEVE} {ip} daddr @remote_nodes{suffix} notrack"));
        if let Some((name, _)) = &inputs.management {
            // Drops tunnel packets forged by a pod. Those that OVN sends to the bridge are dropped by flows there.
            forged
                .push(format!("iifname \"{name}\" {ip} daddr @remote_nodes{suffix} udp dport {GENEVE} drop"));
        }
    }
    chain(out, "tunnels_in_untracked", "filter hook prerouting priority raw", &from_nodes);
    chain(out, "tunnels_out_untracked", "filter hook output priority raw", &to_nodes);
    chain(out, "prerouting", "nat hook prerouting priority dstnat", &prerouting);
    chain(out, "output", "nat hook output priority -100", &output);
    if !mark.is_empty() {
        chain(out, "output_mark", "route hook output priority mangle", &mark);
    }
    chain(out, "no_pmtud", "filter hook output priority filter", &pmtud);
    chain(out, "no_forged_tunnels", "filter hook forward priority filter", &forged);
    if let Some((name, addresses)) = &inputs.management {
        let mut source = management_snat(name, addresses, all);
        if let Some(local) = &inputs.local {
            source.insert(1, local.keeps_clients());
            chain(out, "forwarded", "filter hook forward priority filter", &local.forward(name));
            local.chains(out, name, all);
        }
        chain(out, "management_snat", "nat hook postrouting priority srcnat", &source);
    }
}

/// Source NAT to the address of the management port, except for connections that keep the client's address.
fn management_snat(name: &str, addresses: &[IpAddr], all: &[Translations]) -> Vec<String> {
    let mut rules = vec![format!("oifname != \"{name}\" return")];
    for address in addresses {
        let family = Family::of(*address);
        let Words { ip, suffix, .. } = Words::of(family);
        // Pods may have a family that the gateway lacks; then there are no services to except.
        let has_sets = all.iter().any(|t| t.family == family);
        if has_sets {
            // Node ports of the other family have the same numbers.
            let of_family = if family == Family::V6 { "meta nfproto ipv6 " } else { "" };
            rules.push(format!(
                "{of_family}meta l4proto . th dport @unchanged_source_node_ports{suffix} return"
            ));
        }
        rules.push(format!("{ip} saddr {address} return"));
        if has_sets {
            rules.push(format!(
                "{ip} daddr . meta l4proto . th dport @unchanged_source_services{suffix} return"
            ));
        }
        rules.push(format!("snat {ip} to {address}"));
    }
    rules
}

/// Writes a base chain with policy accept.
pub(super) fn chain(out: &mut String, name: &str, hook: &str, rules: &[String]) {
    let _ = writeln!(out, "\tchain {name} {{\n\t\ttype {hook}; policy accept;");
    for rule in rules {
        let _ = writeln!(out, "\t\t{rule}");
    }
    out.push_str("\t}\n");
}

#[cfg(test)]
mod tests;

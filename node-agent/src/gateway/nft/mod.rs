//! The node's address translation and filters, as one nftables ruleset of our own: service addresses for the node's own
//! connections, the management port's source address, and "fragmentation needed" kept away from other nodes. The text is
//! computed from plain values; [`apply`] hands it to `nft` in one transaction.
//!
//! Two pairs of tables: `inet slipstream` follows services and nodes and is rewritten as a whole; `inet slipstream_ports` and
//! `arp slipstream_ports` are static. They drop what arrives on links of group [`PORT_GROUP`]: OVS reads those links by packet
//! socket, and the node's own stack must not handle the same packets a second time.

pub mod apply;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::services::{NodeService, NodeServicePort, Protocol};

/// Link group of ports that OVS reads by packet socket.
pub const PORT_GROUP: u32 = 0x5151;
/// Packet mark of the node's connections to internal-policy Local services, which leave by the management port.
pub const LOCAL_POLICY_MARK: u32 = 0x0017_45ec;

/// What the ruleset depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Address of the node on the gateway bridge.
    pub node: Ipv4Addr,
    /// The masquerade address for local-policy services (`.3`).
    pub masquerade_local: Ipv4Addr,
    /// Name and address of the management port, `None` until the node has a subnet.
    pub management: Option<(String, Ipv4Addr)>,
    /// Addresses of the other nodes.
    pub remote_nodes: BTreeSet<Ipv4Addr>,
}

type Address = (Ipv4Addr, Protocol, u16);

/// The translations of all services, sorted and without doubles; where two services claim the same, the first name wins.
#[derive(Debug, Default)]
struct Translations {
    node_ports: BTreeMap<(Protocol, u16), (Ipv4Addr, u16)>,
    external: BTreeMap<Address, (Ipv4Addr, u16)>,
    local_external: BTreeMap<Address, (Ipv4Addr, u16)>,
    /// Local-policy addresses of services without node ports: straight to the backends here.
    local_backends: BTreeMap<Address, Vec<(Ipv4Addr, u16)>>,
    internal_marked: BTreeSet<Address>,
    internal_redirected: BTreeMap<Address, u16>,
    unsnat_ports: BTreeSet<(Protocol, u16)>,
    unsnat_services: BTreeSet<Address>,
}

/// The table that follows services and nodes, as input of `nft -f`.
pub fn services_table(inputs: &Inputs, services: &[NodeService]) -> String {
    let mut t = Translations::default();
    let mut sorted: Vec<&NodeService> = services.iter().collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key));
    for service in sorted {
        for port in &service.ports {
            t.add(inputs, service, port);
        }
    }
    let mut out = replace_head("inet", "slipstream");
    sets(&mut out, inputs, &t);
    chains(&mut out, inputs, &t);
    out.push_str("}\n");
    out
}

/// The static tables, as input of `nft -f`.
pub fn ports_tables() -> String {
    let mut out = replace_head("inet", "slipstream_ports");
    let _ = writeln!(
        out,
        "\tchain prerouting {{\n\t\ttype filter hook prerouting priority raw; policy accept;\n\t\tiifgroup {PORT_GROUP} drop\n\t}}\n}}"
    );
    out.push_str(&replace_head("arp", "slipstream_ports"));
    let _ = writeln!(
        out,
        "\tchain input {{\n\t\ttype filter hook input priority filter; policy accept;\n\t\tiifgroup {PORT_GROUP} drop\n\t}}\n}}"
    );
    out
}

/// Removes all our tables, whether they exist or not.
pub fn removal() -> String {
    [("inet", "slipstream"), ("inet", "slipstream_ports"), ("arp", "slipstream_ports")]
        .iter()
        .map(|(family, name)| format!("table {family} {name}\ndelete table {family} {name}\n"))
        .collect()
}

/// Begins a table that takes the place of what is there: naming it first makes the deletion succeed in any case.
fn replace_head(family: &str, name: &str) -> String {
    format!("table {family} {name}\ndelete table {family} {name}\ntable {family} {name} {{\n")
}

impl Translations {
    fn add(&mut self, inputs: &Inputs, service: &NodeService, port: &NodeServicePort) {
        let proto = port.protocol;
        let cluster = (service.cluster_ip, port.port);
        let host_backend = port.local.iter().find(|(ip, _)| *ip == inputs.node);
        let local_path = service.external_local && host_backend.is_none();
        if let Some(node_port) = port.node_port {
            self.node_ports.entry((proto, node_port)).or_insert(cluster);
            if local_path {
                self.unsnat_ports.insert((proto, node_port));
            }
        }
        for ip in &service.external_ips {
            let address = (*ip, proto, port.port);
            self.external.entry(address).or_insert(cluster);
            if !local_path {
                continue;
            }
            match port.node_port {
                Some(node_port) => {
                    self.local_external.entry(address).or_insert((inputs.masquerade_local, node_port));
                }
                None if !port.local.is_empty() => {
                    self.local_backends.entry(address).or_insert_with(|| port.local.clone());
                    self.unsnat_services.extend(port.local.iter().map(|(ip, target)| (*ip, proto, *target)));
                }
                None => {}
            }
        }
        if service.internal_local {
            let address = (service.cluster_ip, proto, port.port);
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
}

fn sets(out: &mut String, inputs: &Inputs, t: &Translations) {
    let address = |(ip, proto, port): &Address| format!("{ip} . {} . {port}", proto.name());
    let node_port = |(proto, port): &(Protocol, u16)| format!("{} . {port}", proto.name());
    let target = |(ip, port): &(Ipv4Addr, u16)| format!("{ip} . {port}");

    set(out, "set remote_nodes", "ipv4_addr", inputs.remote_nodes.iter().map(ToString::to_string));
    let kind = "inet_proto . inet_service : ipv4_addr . inet_service";
    let elements = t.node_ports.iter().map(|(k, v)| format!("{} : {}", node_port(k), target(v)));
    set(out, "map node_ports", kind, elements);
    let kind = "ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service";
    let elements = t.external.iter().map(|(k, v)| format!("{} : {}", address(k), target(v)));
    set(out, "map external_addresses", kind, elements);
    let elements = t.local_external.iter().map(|(k, v)| format!("{} : {}", address(k), target(v)));
    set(out, "map local_policy_addresses", kind, elements);
    let kind = "ipv4_addr . inet_proto . inet_service";
    set(out, "set internal_local_services", kind, t.internal_marked.iter().map(address));
    set(out, "set unchanged_source_services", kind, t.unsnat_services.iter().map(address));
    let kind = "inet_proto . inet_service";
    set(out, "set unchanged_source_node_ports", kind, t.unsnat_ports.iter().map(node_port));
}

fn set(out: &mut String, head: &str, kind: &str, elements: impl Iterator<Item = String>) {
    let _ = writeln!(out, "\t{head} {{\n\t\ttype {kind}");
    let elements: Vec<String> = elements.collect();
    if !elements.is_empty() {
        let _ = writeln!(out, "\t\telements = {{ {} }}", elements.join(", "));
    }
    out.push_str("\t}\n");
}

fn chains(out: &mut String, inputs: &Inputs, t: &Translations) {
    let external = "dnat ip to ip daddr . meta l4proto . th dport map @external_addresses";
    let node_ports = "fib daddr type local dnat ip to meta l4proto . th dport map @node_ports";

    let mut rules: Vec<String> =
        vec!["dnat ip to ip daddr . meta l4proto . th dport map @local_policy_addresses".to_owned()];
    for ((ip, proto, port), backends) in &t.local_backends {
        let choice: Vec<String> =
            backends.iter().enumerate().map(|(n, (ip, target))| format!("{n} : {ip} . {target}")).collect();
        rules.push(format!(
            "ip daddr {ip} {} dport {port} dnat ip to numgen random mod {} map {{ {} }}",
            proto.name(),
            backends.len(),
            choice.join(", ")
        ));
    }
    rules.extend([external.to_owned(), node_ports.to_owned()]);
    chain(out, "prerouting", "nat hook prerouting priority dstnat", &rules);

    let mut rules = vec![external.to_owned(), node_ports.to_owned()];
    for ((ip, proto, port), target) in &t.internal_redirected {
        rules.push(format!("ip daddr {ip} {} dport {port} redirect to :{target}", proto.name()));
    }
    chain(out, "output", "nat hook output priority -100", &rules);

    let mark = format!(
        "ip daddr . meta l4proto . th dport @internal_local_services meta mark set {LOCAL_POLICY_MARK:#x}"
    );
    chain(out, "output_mark", "route hook output priority mangle", &[mark]);

    let pmtud = "ip daddr @remote_nodes icmp type destination-unreachable icmp code 4 drop".to_owned();
    chain(out, "no_pmtud", "filter hook output priority filter", &[pmtud]);

    if let Some((name, ip)) = &inputs.management {
        let rules = [
            format!("oifname != \"{name}\" return"),
            "meta l4proto . th dport @unchanged_source_node_ports return".to_owned(),
            format!("ip saddr {ip} return"),
            "ip daddr . meta l4proto . th dport @unchanged_source_services return".to_owned(),
            format!("snat ip to {ip}"),
        ];
        chain(out, "management_snat", "nat hook postrouting priority srcnat", &rules);
    }
}

fn chain(out: &mut String, name: &str, hook: &str, rules: &[String]) {
    let _ = writeln!(out, "\tchain {name} {{\n\t\ttype {hook}; policy accept;");
    for rule in rules {
        let _ = writeln!(out, "\t\t{rule}");
    }
    out.push_str("\t}\n");
}

#[cfg(test)]
mod tests;

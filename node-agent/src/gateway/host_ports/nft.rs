//! Host ports for connections of the node itself, and for packets that reach its stack: DNAT to the pod, through the management port. A
//! separate nftables table, always rewritten completely; its chains precede those of services.

use std::fmt::Write as _;

use api::host_port::Listen;

use crate::gateway::management_port::ManagementPort;
use crate::gateway::nft::chain;
use crate::kube::host_ports::HostPorts;

/// The table's name.
pub const TABLE: &str = "slipstream_host_ports";

/// The table, as input of `nft -f`.
pub fn table(ports: &HostPorts) -> String {
    let mut out = format!("table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n");
    let mut rules = Vec::new();
    for (v4, ip, suffix) in [(true, "ip", "4"), (false, "ip6", "6")] {
        let kind = format!("ipv{suffix}_addr");
        let (mut one, mut every) = (Vec::new(), Vec::new());
        for (place, by) in ports.iter().filter(|(_, by)| by.target.is_ipv4() == v4) {
            let port = format!("{} . {}", place.protocol.lower(), place.port);
            let target = format!("{} . {}", by.target.ip(), by.target.port());
            match place.listen {
                Listen::One(ip) => one.push(format!("{ip} . {port} : {target}")),
                Listen::EveryIpv4 | Listen::EveryIpv6 => every.push(format!("{port} : {target}")),
            }
        }
        if !one.is_empty() {
            let key = format!("{kind} . inet_proto . inet_service : {kind} . inet_service");
            map(&mut out, &format!("one{suffix}"), &key, &one);
            rules.push(format!("dnat {ip} to {ip} daddr . meta l4proto . th dport map @one{suffix}"));
        }
        if !every.is_empty() {
            map(
                &mut out,
                &format!("every{suffix}"),
                &format!("inet_proto . inet_service : {kind} . inet_service"),
                &every,
            );
            rules.push(format!(
                "meta nfproto ipv{suffix} fib daddr type local dnat {ip} to meta l4proto . th dport map @every{suffix}"
            ));
        }
    }
    if !rules.is_empty() {
        // Rules for one address precede rules for every address, in both families.
        rules.sort_by_key(|rule| rule.contains("@every"));
        chain(&mut out, "prerouting", "nat hook prerouting priority dstnat - 5", &rules);
        chain(&mut out, "output", "nat hook output priority -105", &rules);
    }
    // `route_localnet` on the management port is for the node's own connections; packets that arrive there must not use it.
    let guard = format!("iifname \"{}\" ip daddr 127.0.0.0/8 drop", ManagementPort::NAME);
    chain(&mut out, "loopback", "filter hook prerouting priority raw", &[guard]);
    out.push_str("}\n");
    out
}

/// True when pods serve loopback addresses of the node.
pub fn on_loopback(ports: &HostPorts) -> bool {
    ports.keys().any(|place| match place.listen {
        Listen::One(ip) => ip.is_ipv4() && ip.is_loopback(),
        Listen::EveryIpv4 => true,
        Listen::EveryIpv6 => false,
    })
}

/// Removes the table, whether it exists or not.
pub fn removal() -> String {
    format!("table inet {TABLE}\ndelete table inet {TABLE}\n")
}

fn map(out: &mut String, name: &str, kind: &str, elements: &[String]) {
    let elements = elements.join(", ");
    let _ = writeln!(out, "\tmap {name} {{\n\t\ttype {kind}\n\t\telements = {{ {elements} }}\n\t}}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::host_ports::tests::three;

    #[test]
    fn one_address_goes_before_every_address_for_the_nodes_own_and_for_arriving_connections() {
        let text = table(&three());
        assert!(text.contains(
            "map one4 {\n\t\ttype ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service\n\t\telements = { \
             127.0.0.1 . tcp . 54323 : 10.244.0.3 . 8080, 172.18.0.2 . tcp . 54323 : 10.244.0.4 . 8080 }"
        ), "{text}");
        assert!(text.contains("elements = { udp . 54323 : 10.244.0.5 . 8080 }"), "{text}");
        let rules: Vec<&str> = text.lines().filter(|line| line.contains("dnat ")).collect();
        assert_eq!(rules.len(), 4, "{text}");
        assert!(rules[0].contains("@one4") && rules[1].contains("@every4"), "{text}");
    }

    #[test]
    fn without_host_ports_only_the_guard_of_loopback_is_left() {
        let text = table(&HostPorts::new());
        assert!(text.contains("iifname \"ovn-k8s-mp0\" ip daddr 127.0.0.0/8 drop"));
        assert!(!text.contains("dnat") && !text.contains("map "), "{text}");
        assert!(!on_loopback(&HostPorts::new()) && on_loopback(&three()));
    }
}

//! Services as kube-proxy has the kernel translate them, in nftables: what a cluster IP is compared with. Pure.

use std::fmt::Write;

use clap::ValueEnum;

use super::load::Kind;

/// How the chain of a service is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// One look into a map, as kube-proxy's mode `nftables` does.
    Map,
    /// One rule for each service, one after another, as its mode `iptables` does. These are nftables' own matches, which cost no more than those of
    /// iptables on nftables.
    Rules,
}

/// Address of the measured service.
pub(super) const ADDRESS: &str = "10.96.0.1";

/// Rules that translate `services` services, the measured one among them, whose backend has `backend` as its address and the ports of all loads.
pub(super) fn rules(lookup: Lookup, services: u16, backend: &str) -> String {
    let mut chains = String::new();
    let mut found: Vec<(String, &str, u16, String)> = Vec::new();
    let mut add = |name: String, address: String, protocol: &'static str, port: u16| {
        // As kube-proxy's chains: one that chooses an endpoint, and one for each of those.
        let _ =
            writeln!(chains, "chain endpoint-{name} {{ meta l4proto {protocol} dnat to {backend}:{port}; }}");
        let choice = format!("numgen random mod 1 vmap {{ 0 : goto endpoint-{name} }}");
        let _ = writeln!(chains, "chain service-{name} {{ {choice}; }}");
        found.push((address, protocol, port, name));
    };
    let others = services.saturating_sub(1);
    for i in 0..others {
        // In the middle of the others, so that rules are compared with half of them before it is found.
        if i == others / 2 {
            measured(&mut add);
        }
        add(format!("other-{i}"), format!("10.97.{}.{}", i / 256, i % 256), "tcp", 8080);
    }
    if others == 0 {
        measured(&mut add);
    }
    let services = match lookup {
        Lookup::Map => {
            let elements: Vec<String> = found
                .iter()
                .map(|(address, protocol, port, name)| {
                    format!("{address} . {protocol} . {port} : goto service-{name}")
                })
                .collect();
            format!(
                "map services {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {} }} }}\n\
                 chain lookup {{ ip daddr . meta l4proto . th dport vmap @services; }}\n",
                elements.join(", ")
            )
        }
        Lookup::Rules => {
            let mut chain = "chain lookup {\n".to_owned();
            for (address, protocol, port, name) in &found {
                let _ =
                    writeln!(chain, "ip daddr {address} {protocol} dport {port} counter goto service-{name}");
            }
            chain + "}\n"
        }
    };
    format!(
        "table ip proxy {{\n{chains}{services}\
         chain prerouting {{ type nat hook prerouting priority dstnat; jump lookup; }}\n}}\n"
    )
}

/// The ports of all loads, for both openings of a path.
fn measured(add: &mut impl FnMut(String, String, &'static str, u16)) {
    for kind in Kind::value_variants() {
        for port in [kind.port(), kind.port() + 1] {
            for protocol in ["tcp", "udp"] {
                add(format!("measured-{protocol}-{port}"), ADDRESS.to_owned(), protocol, port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_its_chains_and_one_way_to_them() {
        let ports = Kind::value_variants().len() * 4;
        for lookup in [Lookup::Map, Lookup::Rules] {
            let text = rules(lookup, 300, "10.78.2.2");
            assert_eq!(text.matches("chain endpoint-").count(), 299 + ports);
            assert_eq!(text.matches("goto service-").count(), 299 + ports);
            assert!(text.contains("10.97.1.42"), "{text}");
        }
        let alone = rules(Lookup::Rules, 1, "10.78.2.2");
        assert_eq!(alone.matches("goto service-").count(), ports);
        let port = Kind::UdpRr.port();
        assert!(alone.contains(&format!("meta l4proto udp dnat to 10.78.2.2:{port};")), "{alone}");
    }

    #[test]
    fn the_measured_service_is_in_the_middle_of_the_rules() {
        let text = rules(Lookup::Rules, 301, "10.78.2.2");
        let before = text.split("goto service-measured").next().unwrap_or_default();
        assert_eq!(before.matches("goto service-other").count(), 150);
    }
}

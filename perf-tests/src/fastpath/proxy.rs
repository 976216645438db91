//! Services as kube-proxy has the kernel translate them: what a cluster IP is compared with. Pure.

use std::fmt::Write;

use clap::ValueEnum;

use super::load::Kind;

/// Address of the measured service.
pub(super) const ADDRESS: &str = "10.96.0.1";

/// One port of a service.
struct Port {
    name: String,
    address: String,
    protocol: &'static str,
    port: u16,
}

/// The ports of so many services, one of them measured: in the middle of the others, so that rules are compared with half of them before it is found.
fn ports(services: u16) -> Vec<Port> {
    let others = services.saturating_sub(1);
    let other = |i: u16| Port {
        name: format!("other-{i}"),
        address: format!("10.97.{}.{}", i / 256, i % 256),
        protocol: "tcp",
        port: 8080,
    };
    let mut all: Vec<Port> = (0..others / 2).map(other).collect();
    all.extend(measured());
    all.extend((others / 2..others).map(other));
    all
}

/// The ports of all loads, for both openings of a path.
fn measured() -> impl Iterator<Item = Port> {
    let ports = Kind::value_variants().iter().flat_map(|kind| [kind.port(), kind.port() + 1]);
    ports.flat_map(|port| ["tcp", "udp"].map(|protocol| (protocol, port))).map(|(protocol, port)| Port {
        name: format!("{protocol}-{port}"),
        address: ADDRESS.to_owned(),
        protocol,
        port,
    })
}

/// For `nft -f`: one look into a map, as kube-proxy's mode `nftables` has it. The measured service's backend has `backend` as its address and the ports of
/// all loads.
pub(super) fn nftables(services: u16, backend: &str) -> String {
    let (mut chains, mut elements) = (String::new(), Vec::new());
    for Port { name, address, protocol, port } in ports(services) {
        // As kube-proxy's chains: one that chooses an endpoint, and one for each of those.
        let _ =
            writeln!(chains, "chain endpoint-{name} {{ meta l4proto {protocol} dnat to {backend}:{port}; }}");
        let choice = format!("numgen random mod 1 vmap {{ 0 : goto endpoint-{name} }}");
        let _ = writeln!(chains, "chain service-{name} {{ {choice}; }}");
        elements.push(format!("{address} . {protocol} . {port} : goto service-{name}"));
    }
    format!(
        "table ip proxy {{\n{chains}\
         map services {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {} }} }}\n\
         chain lookup {{ ip daddr . meta l4proto . th dport vmap @services; }}\n\
         chain prerouting {{ type nat hook prerouting priority dstnat; jump lookup; }}\n}}\n",
        elements.join(", ")
    )
}

/// For `iptables-restore`: a rule for each port of each service, one after another, as kube-proxy's mode `iptables` has them for services with one endpoint
/// (`syncProxyRules` in Kubernetes' `pkg/proxy/iptables/proxier.go`).
pub(super) fn iptables(services: u16, backend: &str) -> String {
    let (mut chains, mut rules) = (String::new(), String::new());
    for Port { name, address, protocol, port } in ports(services) {
        let comment = format!("-m comment --comment \"bench/{name}");
        let _ = write!(chains, ":KUBE-SVC-{name} - [0:0]\n:KUBE-SEP-{name} - [0:0]\n");
        let _ = write!(
            rules,
            "-A KUBE-SERVICES {comment} cluster IP\" -m {protocol} -p {protocol} -d {address} --dport {port} -j KUBE-SVC-{name}\n\
             -A KUBE-SVC-{name} {comment} -> {backend}:{port}\" -j KUBE-SEP-{name}\n\
             -A KUBE-SEP-{name} {comment}\" -s {backend} -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{name} {comment}\" -m {protocol} -p {protocol} -j DNAT --to-destination {backend}:{port}\n"
        );
    }
    format!(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n{chains}\
         -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n{rules}COMMIT\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_its_chains_and_one_way_to_them() {
        let ports = Kind::value_variants().len() * 4;
        let map = nftables(300, "10.78.2.2");
        assert_eq!(map.matches("chain endpoint-").count(), 299 + ports);
        assert_eq!(map.matches("goto service-").count(), 299 + ports);
        assert!(map.contains("10.97.1.42"), "{map}");
        let port = Kind::UdpRr.port();
        assert!(map.contains(&format!("meta l4proto udp dnat to 10.78.2.2:{port};")), "{map}");
        let rules = iptables(300, "10.78.2.2");
        assert_eq!(rules.matches("-A KUBE-SERVICES ").count(), 299 + ports);
        assert_eq!(rules.matches("-j DNAT ").count(), 299 + ports);
        assert_eq!(rules.matches(":KUBE-S").count(), 1 + 2 * (299 + ports));
        assert_eq!(nftables(1, "10.78.2.2").matches("goto service-").count(), ports);
    }

    #[test]
    fn names_of_chains_are_as_long_as_iptables_takes_them() {
        // XT_EXTENSION_MAXNAMELEN of linux/netfilter/x_tables.h, with the zero at its end.
        let longest = ports(u16::MAX).iter().map(|port| "KUBE-SVC-".len() + port.name.len()).max();
        assert!(longest.is_some_and(|length| length < 29), "{longest:?}");
    }

    #[test]
    fn the_measured_service_is_in_the_middle_of_the_rules() {
        let text = iptables(301, "10.78.2.2");
        let before = text.split("-j KUBE-SVC-tcp-").next().unwrap_or_default();
        assert_eq!(before.matches("-j KUBE-SVC-other").count(), 150);
    }
}

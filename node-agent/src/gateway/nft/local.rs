//! Rules of gateway mode local, where what pods send to the outside, and what the outside sends to services, passes the node's own stack.
//!
//! A service with policy Cluster is translated to its cluster address and served by OVN; the client is hidden there, as its answers must
//! come back. One with policy Local is translated once more by the node's switch, which knows the backends here, and keeps the client:
//! answers of pods pass the node's stack in this mode whatever their destination is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::Protocol;
use api::addr::Family;
use ipnet::IpNet;

use super::{Address, Translations, Words, chain};

/// What the rules of this mode depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalGateway {
    /// Gateway bridge.
    pub bridge: String,
    /// Pod ranges of the node.
    pub subnets: Vec<IpNet>,
    /// Masquerade ranges.
    pub masquerade: Vec<IpNet>,
}

/// What services with policy Local do for clients outside in this mode.
#[derive(Debug, Default)]
pub(super) struct FromOutside {
    /// Node ports: the node's switch, or the backend in the host network.
    pub(super) node_ports: BTreeMap<(Protocol, u16), (IpAddr, u16)>,
    /// Addresses that no backend here serves.
    pub(super) refused: BTreeSet<Address>,
}

impl LocalGateway {
    fn subnets_of(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        self.subnets.iter().filter(move |net| Family::of_net(net) == family)
    }

    /// Rules of connections from outside, before those of all services.
    pub(super) fn prerouting(&self, t: &Translations) -> String {
        let Words { ip, suffix, .. } = Words::of(t.family);
        format!(
            "fib daddr type local dnat {ip} to meta l4proto . th dport map @local_policy_node_ports{suffix}"
        )
    }

    /// Rule of the management port's source translation: a client of a service with policy Local, or of a host port, is not hidden.
    pub(super) fn keeps_clients(&self) -> String {
        format!("iifname \"{}\" ct status dnat return", self.bridge)
    }

    /// Rules of forwarded packets.
    pub(super) fn forward(&self, management: &str) -> Vec<String> {
        // To a pod address that no node has. It would come back from OVN again and again.
        let mut rules =
            vec![format!("iifname \"{management}\" oifname \"{management}\" ct status & dnat == 0 drop")];
        rules.extend(self.masquerade.iter().map(|range| {
            let ip = Words::of(Family::of_net(range)).ip;
            format!("iifname \"{management}\" {ip} daddr {range} drop")
        }));
        rules
    }

    /// The chains that only this mode has.
    pub(super) fn chains(&self, out: &mut String, management: &str, all: &[Translations]) {
        let mut rules = vec![format!("oifname \"{management}\" return")];
        for family in [Family::V4, Family::V6] {
            for subnet in self.subnets_of(family) {
                // Two processors that choose a port at the same time must not choose the same one, or the later packet is lost.
                rules.push(format!("{} saddr {subnet} masquerade fully-random", Words::of(family).ip));
            }
        }
        chain(out, "local_gateway_masquerade", "nat hook postrouting priority srcnat + 1", &rules);
        let refused = all.iter().filter(|t| !t.from_outside.refused.is_empty()).flat_map(|t| {
            let Words { ip, suffix, .. } = Words::of(t.family);
            let from = format!("iifname \"{}\"", self.bridge);
            let to = format!("{ip} daddr . meta l4proto . th dport @without_backend{suffix}");
            [format!("{from} meta l4proto tcp {to} reject with tcp reset"), format!("{from} {to} reject")]
        });
        let refused: Vec<String> = refused.collect();
        if !refused.is_empty() {
            chain(out, "without_backend", "filter hook prerouting priority dstnat - 1", &refused);
        }
        // A client of a service is told nothing of the way on, which leaves by the bridge that it came in by.
        let redirects = ["icmp type redirect", "icmpv6 type nd-redirect"];
        let redirects = redirects.map(|kind| format!("{kind} oifname \"{}\" drop", self.bridge));
        chain(out, "no_redirects", "filter hook output priority filter", &redirects);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{elements, inputs};
    use super::super::{Inputs, services_table};
    use super::*;
    use crate::gateway::services::fixture;

    fn local() -> Inputs {
        let local = LocalGateway {
            bridge: "breth0".to_owned(),
            subnets: vec!["10.244.0.0/24".parse().unwrap()],
            masquerade: vec!["169.254.169.0/29".parse().unwrap()],
        };
        Inputs { local: Some(local), ..inputs() }
    }

    fn chain_of<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let body = text.split(&format!("\tchain {name} {{\n")).nth(1).unwrap_or_else(|| panic!("no {name}"));
        body.split("\n\t}").next().unwrap().lines().skip(1).map(str::trim).collect()
    }

    #[test]
    fn translations_are_those_of_the_reference_in_this_mode() {
        let text = services_table(&local(), &fixture::reference_services("n1"));
        // The reference's rules: ETP and pod-subnet-masq.
        assert_eq!(elements(&text, "map local_policy_node_ports"), ["tcp . 30081 : 169.254.169.3 . 30081"]);
        assert_eq!(
            chain_of(&text, "local_gateway_masquerade"),
            ["oifname \"ovn-k8s-mp0\" return", "ip saddr 10.244.0.0/24 masquerade fully-random"]
        );
        let order = chain_of(&text, "prerouting");
        let at = |part: &str| order.iter().position(|rule| rule.contains(part)).unwrap();
        assert!(at("@local_policy_node_ports") < at("@node_ports"), "{order:?}");
        // What the shared mode has is there as it is.
        let shared = services_table(&inputs(), &fixture::reference_services("n1"));
        for line in shared.lines() {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!shared.contains("local_policy_node_ports") && !shared.contains("masquerade"), "{shared}");
    }

    #[test]
    fn clients_outside_are_not_hidden_from_local_backends() {
        let text = services_table(&local(), &fixture::reference_services("n1"));
        let rules = chain_of(&text, "management_snat");
        assert_eq!(rules[1], "iifname \"breth0\" ct status dnat return", "{rules:?}");
    }

    #[test]
    fn a_backend_in_the_host_network_serves_clients_outside_itself() {
        let mut services = fixture::reference_services("n1");
        services.retain(|s| s.name.name == "lb-local");
        services[0].ports[0].local = vec![("172.18.0.2".parse().unwrap(), 9090)];
        let text = services_table(&local(), &services);
        assert_eq!(elements(&text, "map local_policy_node_ports"), ["tcp . 30081 : 172.18.0.2 . 9090"]);
        assert_eq!(
            elements(&text, "map local_policy_addresses"),
            ["172.18.10.1 . tcp . 80 : 172.18.0.2 . 9090"]
        );
    }

    #[test]
    fn an_address_of_a_local_policy_without_node_port_and_backend_here_is_refused() {
        let mut services = fixture::reference_services("n2");
        services.retain(|s| s.name.name == "lb-local");
        services[0].ports[0].node_port = None;
        let text = services_table(&local(), &services);
        assert_eq!(elements(&text, "set without_backend"), ["172.18.10.1 . tcp . 80"]);
        assert_eq!(chain_of(&text, "without_backend").len(), 2);
        assert!(!services_table(&inputs(), &services).contains("without_backend"));
    }

    #[test]
    fn what_pods_send_to_addresses_that_are_nowhere_does_not_turn_in_a_circle() {
        let text = services_table(&local(), &[]);
        let rules = chain_of(&text, "forwarded");
        for rule in [
            "iifname \"ovn-k8s-mp0\" oifname \"ovn-k8s-mp0\" ct status & dnat == 0 drop",
            "iifname \"ovn-k8s-mp0\" ip daddr 169.254.169.0/29 drop",
        ] {
            assert!(rules.contains(&rule), "{rule} is not in {rules:?}");
        }
    }
}

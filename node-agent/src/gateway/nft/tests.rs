use super::*;
use crate::gateway::services::fixture;

pub(super) fn inputs() -> Inputs {
    Inputs {
        families: vec![FamilyInputs {
            node: "172.18.0.2".parse().unwrap(),
            masquerade_local: "169.254.169.3".parse().unwrap(),
        }],
        management: Some(("ovn-k8s-mp0".to_owned(), vec!["10.244.0.2".parse().unwrap()])),
        remote_nodes: BTreeSet::from(["172.18.0.3".parse().unwrap()]),
        nodes: BTreeMap::from([("n2".to_owned(), BTreeSet::from(["172.18.0.3".parse().unwrap()]))]),
        local: None,
    }
}

/// The elements of a set or map of the ruleset.
pub(super) fn elements(text: &str, head: &str) -> Vec<String> {
    let at = text.find(&format!("{head} {{")).unwrap_or_else(|| panic!("no {head} in\n{text}"));
    let body = &text[at..at + text[at..].find("\n\t}").unwrap()];
    let Some((_, list)) = body.split_once("elements = { ") else { return Vec::new() };
    list.trim_end_matches([' ', '}']).split(", ").map(str::to_owned).collect()
}

#[test]
fn translations_are_those_of_the_reference() {
    let text = services_table(&inputs(), &fixture::reference_services("n1"));
    // The reference's rules, chain by chain: NODEPORT, EXTERNALIP, ETP, ITP mark, no-snat node ports.
    assert_eq!(
        elements(&text, "map node_ports"),
        ["tcp . 30080 : 10.96.0.51 . 80", "tcp . 30081 : 10.96.0.53 . 80", "tcp . 30082 : 10.96.0.60 . 80"]
    );
    assert_eq!(
        elements(&text, "map external_addresses"),
        [
            "172.18.10.1 . tcp . 80 : 10.96.0.53 . 80",
            "172.18.10.2 . tcp . 80 : 10.96.0.60 . 80",
            "172.18.11.1 . tcp . 80 : 10.96.0.54 . 80"
        ]
    );
    assert_eq!(
        elements(&text, "map local_policy_addresses"),
        ["172.18.10.1 . tcp . 80 : 169.254.169.3 . 30081"]
    );
    assert_eq!(elements(&text, "set internal_local_services"), ["10.96.0.56 . tcp . 80"]);
    assert_eq!(elements(&text, "set unchanged_source_node_ports"), ["tcp . 30081"]);
    assert_eq!(elements(&text, "set remote_nodes"), ["172.18.0.3"]);
}

#[test]
fn but_for_local_policies_the_node_s_own_rules_do_not_depend_on_where_the_backends_are() {
    // In the reference, a node without backends has the same rules as one with.
    let inputs = || Inputs { nodes: BTreeMap::new(), ..inputs() };
    assert_eq!(
        services_table(&inputs(), &fixture::reference_services("n1")),
        services_table(&inputs(), &fixture::reference_services("n2"))
    );
}

#[test]
fn without_node_ports_local_policy_addresses_go_straight_to_the_backends_here() {
    let mut services = fixture::reference_services("n1");
    services.retain(|s| s.name.name == "lb-local");
    services[0].ports[0].node_port = None;
    let text = services_table(&inputs(), &services);
    assert!(
        text.contains(
            "ip daddr 172.18.10.1 tcp dport 80 dnat ip to numgen random mod 1 map { 0 : 10.244.0.3 . 8080 }"
        ),
        "{text}"
    );
    assert_eq!(elements(&text, "set unchanged_source_services"), ["10.244.0.3 . tcp . 8080"]);
}

#[test]
fn an_internal_local_service_with_a_host_backend_is_redirected_not_marked() {
    let mut services = fixture::reference_services("n1");
    services.retain(|s| s.name.name == "internal-local");
    services[0].ports[0].local = vec![("172.18.0.2".parse().unwrap(), 9090)];
    let text = services_table(&inputs(), &services);
    assert!(text.contains("ip daddr 10.96.0.56 tcp dport 80 redirect to :9090"), "{text}");
    assert!(elements(&text, "set internal_local_services").is_empty());
}

#[test]
fn a_nodes_own_packets_are_looked_up_only_where_their_protocol_is_concerned() {
    let chains = |services: &[NodeService]| -> Vec<String> {
        let text = services_table(&dual_inputs(), services);
        let chains = text.split("\tchain ").skip(1).filter(|chain| !chain.contains("type nat hook"));
        chains.map(|chain| chain.split("\n\t}").next().unwrap().to_owned()).collect()
    };
    let rules = |chain: &str| chain.lines().skip(2).map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    for chain in chains(&[]) {
        let rules = rules(&chain);
        assert!(!rules.is_empty(), "a chain without rules costs each packet:\n{chain}");
        for rule in rules {
            let first = ["udp dport ", "icmp type ", "icmpv6 type ", "iifname "];
            assert!(first.iter().any(|first| rule.starts_with(first)), "{rule}");
        }
    }
    let marked = chains(&fixture::reference_services("n1"));
    assert!(
        marked.iter().any(|chain| chain.starts_with("output_mark") && rules(chain).len() == 1),
        "{marked:?}"
    );
}

#[test]
fn two_services_with_one_address_make_one_element() {
    let mut services = fixture::reference_services("n1");
    let mut twin = services.iter().find(|s| s.name.name == "external").unwrap().clone();
    twin.name.name = "zzz".to_owned();
    twin.cluster_ips = vec!["10.96.0.99".parse().unwrap()];
    services.insert(0, twin);
    let text = services_table(&inputs(), &services);
    assert!(text.contains("172.18.11.1 . tcp . 80 : 10.96.0.54 . 80"), "{text}");
    assert!(!text.contains("10.96.0.99"), "{text}");
}

fn dual_inputs() -> Inputs {
    let mut dual = inputs();
    dual.families.push(FamilyInputs {
        node: "fd00:172:18::2".parse().unwrap(),
        masquerade_local: "fd69::3".parse().unwrap(),
    });
    let (_, management) = dual.management.as_mut().unwrap();
    management.push("fd00:10:244::2".parse().unwrap());
    dual.remote_nodes.insert("fd00:172:18::3".parse().unwrap());
    dual
}

#[test]
fn a_dual_service_has_translations_of_both_families_and_a_single_one_of_its_own() {
    let mut services = fixture::reference_services("n1");
    let local = services.iter_mut().find(|s| s.name.name == "lb-local").unwrap();
    local.cluster_ips.push("fd00:10:96::53".parse().unwrap());
    local.external_ips.push("fd00:172:18:10::1".parse().unwrap());
    let text = services_table(&dual_inputs(), &services);
    assert_eq!(elements(&text, "map node_ports6"), ["tcp . 30081 : fd00:10:96::53 . 80"]);
    assert_eq!(
        elements(&text, "map external_addresses6"),
        ["fd00:172:18:10::1 . tcp . 80 : fd00:10:96::53 . 80"]
    );
    assert_eq!(
        elements(&text, "map local_policy_addresses6"),
        ["fd00:172:18:10::1 . tcp . 80 : fd69::3 . 30081"]
    );
    assert_eq!(elements(&text, "set unchanged_source_node_ports6"), ["tcp . 30081"]);
    assert_eq!(elements(&text, "set remote_nodes6"), ["fd00:172:18::3"]);
    assert!(text.contains("snat ip6 to fd00:10:244::2"), "{text}");
    for (ip, set) in [("ip", "remote_nodes"), ("ip6", "remote_nodes6")] {
        let rule = format!("iifname \"ovn-k8s-mp0\" {ip} daddr @{set} udp dport 6081 drop");
        assert!(text.contains(&rule), "{rule} is not in\n{text}");
        for side in ["saddr", "daddr"] {
            let rule = format!("udp dport 6081 {ip} {side} @{set} notrack");
            assert!(text.contains(&rule), "{rule} is not in\n{text}");
        }
    }
    // IPv4 is as without IPv6.
    let single = services_table(&inputs(), &services);
    for head in ["map node_ports", "map external_addresses", "map local_policy_addresses", "set remote_nodes"]
    {
        assert_eq!(elements(&text, head), elements(&single, head), "{head}");
    }
    for line in single.lines() {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[test]
fn without_an_ipv6_address_of_the_node_its_pods_are_still_reached_by_ipv6() {
    let mut inputs = dual_inputs();
    inputs.families.truncate(1);
    let text = services_table(&inputs, &fixture::reference_services("n1"));
    assert!(text.contains("snat ip6 to fd00:10:244::2"), "{text}");
    assert!(!text.contains("6 {") && !text.contains("ports6"), "no set of IPv6 services:\n{text}");
}

#[test]
fn the_nodes_own_connections_to_a_local_policy_node_port_go_where_the_backends_are() {
    // lb-local has its only backend on n1; this is n2.
    let mut inputs = inputs();
    inputs.families[0].node = "172.18.0.3".parse().unwrap();
    inputs.nodes = BTreeMap::from([("n1".to_owned(), BTreeSet::from(["172.18.0.2".parse().unwrap()]))]);
    let text = services_table(&inputs, &fixture::reference_services("n2"));
    let rule =
        "fib daddr type local tcp dport 30081 dnat ip to numgen random mod 1 map { 0 : 172.18.0.2 . 30081 }";
    assert_eq!(text.matches(rule).count(), 1, "{text}");
    let output = text.split("chain output {").nth(1).unwrap();
    assert!(output.find(rule) < output.find("@node_ports"), "before the cluster address:\n{text}");
    let with_backend = services_table(&inputs, &fixture::reference_services("n1"));
    assert!(!with_backend.contains("dport 30081 dnat"), "{with_backend}");
}

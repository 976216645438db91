use super::*;

fn stale(last: u8) -> Stale {
    let front = Front::Address(IpAddr::from([10, 96, 0, 1]), 53);
    Stale::Backend(Translation { front, backend: (IpAddr::from([10, 244, 0, last]), 5353) })
}

fn own() -> [Own; 2] {
    let own = |address: &str, masquerade: &str| Own {
        address: address.parse().unwrap(),
        masquerade: masquerade.parse().unwrap(),
    };
    [own("172.18.0.2", "169.254.169.2"), own("fd00:172:18::2", "fd69::2")]
}

#[test]
fn a_backend_in_the_nodes_own_network_is_known_by_the_address_that_the_router_has_for_it() {
    let named = |ip: &str| as_services_name_it(&own(), (ip.parse().unwrap(), 53)).0.to_string();
    assert_eq!(named("169.254.169.2"), "172.18.0.2");
    assert_eq!(named("fd69::2"), "fd00:172:18::2");
    assert_eq!(named("10.244.0.3"), "10.244.0.3");
    let front = Front::Address(IpAddr::from([10, 96, 0, 1]), 53);
    let gone = Stale::Backend(Translation { front, backend: (IpAddr::from([172, 18, 0, 2]), 5353) });
    let replies: Vec<_> = tuples(&gone, &own(), true).into_iter().map(|(_, reply)| reply).collect();
    assert_eq!(
        replies,
        [
            "ct_nw_src=172.18.0.2,ct_nw_proto=17,ct_tp_src=5353",
            "ct_nw_src=169.254.169.2,ct_nw_proto=17,ct_tp_src=5353",
        ]
    );
}

/// After the looks at all connections.
fn looked() -> StaleUdp {
    StaleUdp { look: Look::Since(Instant::now(), LOOKS.len()), ..StaleUdp::default() }
}

#[test]
fn connections_are_ended_some_times_and_not_of_a_backend_that_is_back() {
    let start = Instant::now();
    let mut all = looked();
    let of = |list: &[u8]| list.iter().map(|last| stale(*last)).collect::<BTreeSet<_>>();
    assert_eq!(all.next(), None);
    all.add(of(&[1, 2]), start);
    assert_eq!(all.next(), Some(start + AFTER[0]));
    assert_eq!(all.due(start, |one| Some(*one)), of(&[]));
    assert_eq!(all.due(start + AFTER[0], |one| Some(*one)), of(&[1, 2]));
    assert_eq!(all.due(start + AFTER[0], |one| Some(*one)), of(&[]));
    // Two times are over at once.
    assert_eq!(all.due(start + AFTER[2], |one| (*one != stale(2)).then_some(*one)), of(&[1]));
    assert_eq!(all.next(), Some(start + AFTER[3]));
    assert_eq!(all.due(start + AFTER[5], |one| Some(*one)), of(&[1]));
    assert_eq!(all.next(), None);
}

#[test]
fn at_first_all_connections_are_looked_through() {
    let start = Instant::now();
    let mut all = StaleUdp::default();
    all.add([stale(1)], start);
    assert!(all.stale.is_empty(), "every service is new then");
    assert_eq!(all.next(), Some(start + AFTER[0]));
    assert!(!all.look.take(start));
    for after in LOOKS.map(|at| AFTER[at]) {
        assert_eq!(all.next(), Some(start + after));
        assert!(all.look.take(start + after));
    }
    assert_eq!(all.next(), None);
    all.add([stale(1)], start + AFTER[5]);
    assert_eq!(all.stale.len(), 1);
}

#[test]
fn connections_are_named_by_what_was_asked_for_and_what_answers() {
    let own = own();
    let all = |stale| {
        let named =
            tuples(&stale, &own, true).into_iter().map(|(original, reply)| format!("{original} {reply}"));
        named.collect::<Vec<_>>()
    };
    let named = |stale| all(stale).swap_remove(0);
    assert_eq!(
        named(stale(7)),
        "ct_nw_dst=10.96.0.1,ct_nw_proto=17,ct_tp_dst=53 ct_nw_src=10.244.0.7,ct_nw_proto=17,ct_tp_src=5353"
    );
    let backend = ("fd00::7".parse().unwrap(), 5353);
    let six = Translation { front: Front::NodePort(30_053), backend };
    assert_eq!(
        named(Stale::Backend(six)),
        "ct_nw_proto=17,ct_tp_dst=30053 ct_ipv6_src=fd00::7,ct_nw_proto=17,ct_tp_src=5353"
    );
    let address = Front::Address("fd00::1".parse().unwrap(), 53);
    assert_eq!(
        named(Stale::Untranslated(address, Family::V6)),
        "ct_ipv6_dst=fd00::1,ct_nw_proto=17,ct_tp_dst=53 ct_ipv6_src=fd00::1,ct_nw_proto=17,ct_tp_src=53"
    );
    assert_eq!(
        all(Stale::Untranslated(Front::NodePort(30_053), Family::V4)),
        [
            "ct_nw_dst=172.18.0.2,ct_nw_proto=17,ct_tp_dst=30053 ct_nw_src=172.18.0.2,ct_nw_proto=17,ct_tp_src=30053",
            // Those that began with an answer.
            "ct_nw_src=172.18.0.2,ct_nw_proto=17,ct_tp_src=30053 ct_nw_dst=172.18.0.2,ct_nw_proto=17,ct_tp_dst=30053",
        ]
    );
    assert_eq!(
        all(Stale::Untranslated(Front::NodePort(30_053), Family::V6)),
        [
            "ct_ipv6_dst=fd00:172:18::2,ct_nw_proto=17,ct_tp_dst=30053 ct_ipv6_src=fd00:172:18::2,ct_nw_proto=17,ct_tp_src=30053",
            "ct_ipv6_src=fd00:172:18::2,ct_nw_proto=17,ct_tp_src=30053 ct_ipv6_dst=fd00:172:18::2,ct_nw_proto=17,ct_tp_dst=30053",
        ]
    );
}

#[test]
fn connections_to_the_node_port_of_another_node_go_on() {
    let own = own();
    let here = (own[0].address, 30_053);
    let other = IpAddr::from([172, 18, 0, 3]);
    let backend = (IpAddr::from([10, 244, 0, 7]), 5353);
    let front = Front::NodePort(30_053);
    let new = BTreeSet::from([Stale::Untranslated(front, Family::V4)]);
    assert!(is_due(&new, &own, here, None, Client::Cluster), "made before the service");
    assert!(!is_due(&new, &own, (own[1].address, 30_053), None, Client::Node), "another family's port");
    assert!(!is_due(&new, &own, (other, 30_053), None, Client::Cluster), "the other node translates");
    assert!(!is_due(&new, &own, here, Some(backend), Client::Cluster));
    let gone = BTreeSet::from([Stale::Backend(Translation { front, backend })]);
    assert!(is_due(&gone, &own, here, Some(backend), Client::Cluster));
    assert!(!is_due(&gone, &own, here, None, Client::Cluster));
}

#[test]
fn one_connection_is_named_by_its_first_packet() {
    let ends = ("10.244.0.3:40000".parse().unwrap(), "10.96.0.1:53".parse().unwrap());
    assert_eq!(
        original_tuple(ends),
        "ct_nw_src=10.244.0.3,ct_nw_dst=10.96.0.1,ct_nw_proto=17,ct_tp_src=40000,ct_tp_dst=53"
    );
}

#[test]
fn a_traffic_policy_concerns_its_own_clients_only() {
    let own = own();
    let cluster = ["10.244.0.0/16".parse().unwrap(), "169.254.169.0/29".parse().unwrap()];
    let cluster = [&cluster[..], &["fd00:10:244::/48".parse().unwrap()]].concat();
    for (clients, expected) in [
        (&["10.244.3.7", "fd00:10:244::5"][..], Client::Cluster),
        (&["172.18.0.2", "169.254.169.2", "fd00:172:18::2"], Client::Node),
        (&["172.18.0.3", "192.0.2.1", "fd00:172:18::9"], Client::Outside),
    ] {
        for client in clients {
            assert_eq!(whose(client.parse().unwrap(), &cluster, &own), expected, "{client}");
        }
    }
    let (here, backend) = ((own[0].address, 30_053), (IpAddr::from([10, 244, 1, 7]), 5353));
    let refused = Translation { front: Front::NodePort(30_053), backend };
    for whose in [Client::Outside, Client::Cluster] {
        let stale = BTreeSet::from([Stale::Refused(refused, whose)]);
        for client in [Client::Node, Client::Cluster, Client::Outside] {
            assert_eq!(is_due(&stale, &own, here, Some(backend), client), client == whose);
        }
        assert_eq!(tuples(&stale.first().copied().unwrap(), &own, true).len(), 1);
    }
}

#[test]
fn the_kernels_own_connections_are_not_taken_for_those_of_load_balancers() {
    // A process of the node asks a cluster address, and its own node port, which nftables translates to the cluster address.
    for translated in [false, true] {
        assert!(!is_balanced(0, false, translated));
        assert!(is_balanced(0, true, translated), "a gateway router's");
        assert!(is_balanced(13, false, translated) && is_balanced(13, true, translated));
        assert_eq!(is_balanced(64_001, false, translated), translated);
    }
}

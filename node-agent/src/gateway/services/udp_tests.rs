use api::service::{EndpointPort, Hints, ServicePort, SliceEndpoint};

use super::*;

fn name(text: &str) -> NamespacedName {
    NamespacedName::new("default", text)
}

fn slice(text: &str, service: &str, endpoints: &[(u8, Condition)]) -> EndpointSlice {
    let port = |protocol, port| EndpointPort { name: "dns".to_owned(), protocol, port };
    EndpointSlice {
        name: name(text),
        service: Some(service.to_owned()),
        ports: vec![port(Protocol::Udp, 53), port(Protocol::Tcp, 53)],
        endpoints: endpoints
            .iter()
            .map(|(last, condition)| SliceEndpoint {
                address: IpAddr::from([10, 244, 0, *last]),
                node: None,
                condition: *condition,
                hints: Hints::default(),
            })
            .collect(),
    }
}

fn service(last: u8, node_port: Option<u16>) -> Service {
    let port = |protocol| ServicePort { name: "dns".to_owned(), protocol, port: 53, node_port };
    Service {
        name: name("any"),
        created: 0,
        cluster_ips: vec![IpAddr::from([10, 96, 0, last]), "fd00:96::1".parse().unwrap()],
        external_ips: Vec::new(),
        ingress_ips: Vec::new(),
        source_ranges: Vec::new(),
        unreadable_ranges: false,
        ports: vec![port(Protocol::Udp), port(Protocol::Tcp)],
        external_local: false,
        internal_local: false,
        affinity: None,
        health_check_port: None,
    }
}

fn backend(last: u8) -> Backend {
    (IpAddr::from([10, 244, 0, last]), 53)
}

fn by_address(service: u8, last: u8) -> Translation {
    Translation { front: Front::Address(IpAddr::from([10, 96, 0, service]), 53), backend: backend(last) }
}

/// The backends that are gone since the last call.
fn take_gone(all: &mut UdpServices) -> BTreeSet<Translation> {
    let backend = |stale| if let Stale::Backend(translation) = stale { Some(translation) } else { None };
    all.take_stale().into_iter().filter_map(backend).collect()
}

fn set(all: &mut UdpServices, text: &str, owner: &str, endpoints: &[u8]) {
    let endpoints: Vec<_> = endpoints.iter().map(|last| (*last, Condition::Ready)).collect();
    all.set_slice(&name(text), Some(&slice(text, owner, &endpoints)));
}

#[test]
fn a_backend_of_two_services_is_gone_from_the_one_that_lost_it() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, None)));
    all.set_service(&name("two"), Some(&service(2, None)));
    set(&mut all, "one-a", "one", &[1, 2]);
    set(&mut all, "two-a", "two", &[1]);
    assert!(take_gone(&mut all).is_empty());
    set(&mut all, "one-a", "one", &[2]);
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 1)]));
    assert!(!all.in_force().contains(&by_address(1, 1)) && all.in_force().contains(&by_address(2, 1)));
}

#[test]
fn a_backend_is_gone_when_no_slice_has_it_or_it_does_not_serve_any_more() {
    let mut all = UdpServices::default();
    set(&mut all, "a", "one", &[1, 2, 3]);
    set(&mut all, "b", "one", &[2]);
    // The service may be seen after its slices.
    all.set_service(&name("one"), Some(&service(1, None)));
    let endpoints = [(1, Condition::Terminating), (3, Condition::NotReady)];
    all.set_slice(&name("a"), Some(&slice("a", "one", &endpoints)));
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 3)]), "2 is in the other slice, 1 serves");
    all.set_slice(&name("b"), None);
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 2)]));
}

#[test]
fn a_service_that_is_deleted_or_loses_an_address_loses_all_behind_it() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    set(&mut all, "a", "one", &[1]);
    all.set_service(&name("one"), Some(&service(1, None)));
    let node_port = Translation { front: Front::NodePort(30_053), backend: backend(1) };
    assert_eq!(take_gone(&mut all), BTreeSet::from([node_port]));
    all.set_service(&name("one"), None);
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 1)]));
    all.set_service(&name("one"), Some(&service(1, None)));
    assert!(all.in_force().contains(&by_address(1, 1)), "made again");
}

#[test]
fn a_backend_that_is_back_is_not_gone_and_a_restarted_watch_loses_what_it_does_not_list() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, None)));
    set(&mut all, "a", "one", &[1, 2]);
    all.set_slice(&name("a"), None);
    set(&mut all, "b", "one", &[1]);
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 2)]));
    all.retain_slices(&BTreeSet::new());
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 1)]));
    set(&mut all, "b", "one", &[1]);
    all.retain_services(&BTreeSet::new());
    assert_eq!(take_gone(&mut all), BTreeSet::from([by_address(1, 1)]));
    assert!(all.in_force().fronts.is_empty() && all.in_force().translations.is_empty());
}

#[test]
fn a_connection_is_stale_if_its_service_does_not_have_its_backend() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    set(&mut all, "a", "one", &[1]);
    let service = (IpAddr::from([10, 96, 0, 1]), 53);
    let node = (IpAddr::from([172, 18, 0, 2]), 30_053);
    let stale = |destination, last: u8| {
        all.in_force().stale(destination, false, Some(backend(last)), Client::Cluster)
    };
    assert_eq!((stale(service, 1), stale(service, 2)), (None, Some(Stale::Backend(by_address(1, 2)))));
    assert!(stale(node, 1).is_none() && stale(node, 2).is_some());
    assert_eq!(stale((IpAddr::from([192, 0, 2, 1]), 53), 2), None, "of no service");
    let untranslated = all.in_force().stale(service, false, None, Client::Cluster);
    assert_eq!(untranslated, Some(Stale::Untranslated(Front::Address(service.0, 53), Family::V4)));
    let untranslated = |is_own| all.in_force().stale(node, is_own, None, Client::Cluster);
    assert_eq!(untranslated(true), Some(Stale::Untranslated(Front::NodePort(30_053), Family::V4)));
    assert_eq!(untranslated(false), None, "another node translates it");
    let six = ("fd00:172:18::2".parse().unwrap(), 30_053);
    let of_six = |all: &UdpServices| all.in_force().stale(six, true, None, Client::Node);
    assert_eq!(of_six(&all), Some(Stale::Untranslated(Front::NodePort(30_053), Family::V6)));
    all.set_service(&name("one"), Some(&ipv4_only(1, Some(30_053))));
    assert_eq!(of_six(&all), None, "somebody else has that port there");
}

/// A service without an IPv6 address.
fn ipv4_only(last: u8, node_port: Option<u16>) -> Service {
    let mut service = service(last, node_port);
    service.cluster_ips.retain(IpAddr::is_ipv4);
    service
}

#[test]
fn a_node_port_is_served_in_the_families_of_its_service() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    let node_port = |family| Stale::Untranslated(Front::NodePort(30_053), family);
    let stale = all.take_stale();
    assert!(stale.contains(&node_port(Family::V4)) && stale.contains(&node_port(Family::V6)), "{stale:?}");
    all.set_service(&name("one"), Some(&ipv4_only(1, Some(30_053))));
    assert!(all.in_force().still(&node_port(Family::V6)).is_none());
    assert!(all.in_force().still(&node_port(Family::V4)).is_some());
}

#[test]
fn a_connection_to_a_service_that_is_not_there_is_unserved() {
    let mut all =
        UdpServices::new("n1", &["10.244.0.0/16".parse().unwrap(), "10.96.0.0/16".parse().unwrap()]);
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    let to = |ip: [u8; 4], port, backend| all.in_force().unserved((ip.into(), port), backend);
    let elsewhere = (IpAddr::from([172, 18, 0, 3]), 53);
    assert!(!to([10, 96, 0, 1], 53, backend(2)), "that service decides by its own backends");
    assert!(!to([172, 18, 0, 2], 30_053, backend(2)));
    assert!(to([10, 96, 0, 2], 53, backend(2)) && to([10, 96, 0, 1], 54, elsewhere), "a cluster address");
    assert!(to([203, 0, 113, 1], 53, backend(2)) && to([172, 18, 0, 2], 30_054, backend(2)), "and others");
    assert!(!to([203, 0, 113, 1], 53, elsewhere), "the host's own translation");
}

#[test]
fn what_was_tracked_before_a_service_was_made_is_stale() {
    let mut all = UdpServices::default();
    all.set_service(&name("one"), Some(&service(1, None)));
    let front = Front::Address(IpAddr::from([10, 96, 0, 1]), 53);
    let untranslated = Stale::Untranslated(front, Family::V4);
    assert!(all.take_stale().contains(&untranslated) && all.in_force().still(&untranslated).is_some());
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    let node_port = |family| Stale::Untranslated(Front::NodePort(30_053), family);
    assert_eq!(all.take_stale(), [Family::V4, Family::V6].map(node_port).into());
    all.set_service(&name("one"), None);
    assert!(all.take_stale().is_empty() && all.in_force().still(&untranslated).is_none());
}

/// A slice whose first endpoint is on this node and whose second one is on another.
fn two_nodes(all: &mut UdpServices) {
    let mut slice = slice("a", "one", &[(1, Condition::Ready), (2, Condition::Ready)]);
    slice.endpoints[0].node = Some("n1".to_owned());
    slice.endpoints[1].node = Some("n2".to_owned());
    all.set_slice(&name("a"), Some(&slice));
}

#[test]
fn a_traffic_policy_that_becomes_local_refuses_backends_of_other_nodes_to_clients_from_outside() {
    let mut all = UdpServices::new("n1", &[]);
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    two_nodes(&mut all);
    all.take_stale();
    let local = Service { external_local: true, ..service(1, Some(30_053)) };
    all.set_service(&name("one"), Some(&local));
    let other = Translation { front: Front::NodePort(30_053), backend: backend(2) };
    assert_eq!(all.take_stale(), BTreeSet::from([Stale::Refused(other, Client::Outside)]));
    assert_eq!(
        all.in_force().still(&Stale::Refused(other, Client::Outside)),
        Some(Stale::Refused(other, Client::Outside))
    );
    assert!(all.in_force().contains(&other), "for clients of the cluster");
    let node = (IpAddr::from([172, 18, 0, 2]), 30_053);
    let stale = |last, client| all.in_force().stale(node, true, Some(backend(last)), client);
    assert_eq!(stale(2, Client::Outside), Some(Stale::Refused(other, Client::Outside)));
    for (last, client) in [(2, Client::Cluster), (2, Client::Node), (1, Client::Outside)] {
        assert_eq!(stale(last, client), None, "{last} {client:?}");
    }
    // The cluster address is for all still.
    let cluster = (IpAddr::from([10, 96, 0, 1]), 53);
    assert_eq!(all.in_force().stale(cluster, false, Some(backend(2)), Client::Outside), None);
    // And back.
    all.set_service(&name("one"), Some(&service(1, Some(30_053))));
    assert!(
        all.take_stale().is_empty()
            && all.in_force().still(&Stale::Refused(other, Client::Outside)).is_none()
    );
    assert!(all.in_force().refused.is_empty());
}

#[test]
fn a_backend_that_moves_to_another_node_is_refused_there_and_gone_with_its_slice() {
    let mut all = UdpServices::new("n1", &[]);
    all.set_service(&name("one"), Some(&Service { external_local: true, ..service(1, Some(30_053)) }));
    two_nodes(&mut all);
    let moved = |node: &str| {
        let mut slice = slice("a", "one", &[(1, Condition::Ready)]);
        slice.endpoints[0].node = Some(node.to_owned());
        slice
    };
    all.set_slice(&name("a"), Some(&moved("n1")));
    all.take_stale();
    all.set_slice(&name("a"), Some(&moved("n2")));
    let node_port = Translation { front: Front::NodePort(30_053), backend: backend(1) };
    assert_eq!(all.take_stale(), BTreeSet::from([Stale::Refused(node_port, Client::Outside)]));
    all.set_slice(&name("a"), None);
    assert!(all.take_stale().contains(&Stale::Backend(node_port)));
    assert_eq!(
        all.in_force().still(&Stale::Refused(node_port, Client::Outside)),
        Some(Stale::Backend(node_port))
    );
}

#[test]
fn an_internal_traffic_policy_that_becomes_local_refuses_backends_of_other_nodes_to_pods() {
    let mut all = UdpServices::new("n1", &[]);
    all.set_service(&name("one"), Some(&service(1, None)));
    two_nodes(&mut all);
    all.take_stale();
    all.set_service(&name("one"), Some(&Service { internal_local: true, ..service(1, None) }));
    let refused = Stale::Refused(by_address(1, 2), Client::Cluster);
    assert_eq!(all.take_stale(), BTreeSet::from([refused]));
    let cluster = (IpAddr::from([10, 96, 0, 1]), 53);
    let stale = |last, client| all.in_force().stale(cluster, false, Some(backend(last)), client);
    assert_eq!((stale(2, Client::Cluster), stale(1, Client::Cluster)), (Some(refused), None));
    // The node makes this address of the service's external ones, which the policy does not concern.
    assert_eq!(stale(2, Client::Node), None);
}

#[test]
fn a_new_backend_elsewhere_of_a_service_whose_policy_is_local_has_no_connections_to_end() {
    let mut all = UdpServices::new("n1", &[]);
    let local = Service { external_local: true, ..service(1, Some(30_053)) };
    all.set_service(&name("one"), Some(&local));
    all.take_stale();
    two_nodes(&mut all);
    assert!(all.take_stale().is_empty());
    // The service was another one a moment ago: seen at once, and seen in two.
    let other = Translation { front: Front::NodePort(30_053), backend: backend(2) };
    for at_once in [true, false] {
        all.set_service(&name("one"), Some(&service(1, Some(30_053))));
        all.take_stale();
        all.set_service(&name("one"), None);
        let gone = if at_once { None } else { Some(Stale::Backend(other)) };
        assert!(gone.is_none_or(|gone| all.take_stale().contains(&gone)));
        all.set_service(&name("one"), Some(&local));
        let stale = all.take_stale();
        assert_eq!(stale.contains(&Stale::Refused(other, Client::Outside)), at_once, "{stale:?}");
        assert_eq!(
            all.in_force().still(&Stale::Backend(other)),
            Some(Stale::Refused(other, Client::Outside))
        );
    }
}

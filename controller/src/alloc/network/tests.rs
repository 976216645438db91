use super::super::range::REST;
use super::*;

fn blue() -> NamespacedName {
    NamespacedName::new("shop", "blue")
}

fn subnet(net: &str) -> Subnet {
    let net: IpNet = net.parse().unwrap();
    Subnet { net, gateway: api::addr::gateway_of(&net).unwrap(), excluded: Vec::new() }
}

fn owner(uid: &str) -> Owner {
    Owner { uid: uid.to_owned(), key: "shop/blue".to_owned() }
}

fn ip(text: &str) -> StaticIp {
    StaticIp { ip: text.parse().unwrap(), prefix_len: None }
}

fn ipam(nets: &[&str], router: bool) -> NetworkIpam {
    let mut ipam = NetworkIpam::default();
    let subnets: Vec<Subnet> = nets.iter().map(|net| subnet(net)).collect();
    let router = router.then(|| MacAddr::from_ip(subnets[0].gateway));
    ipam.set(&blue(), &subnets, router);
    ipam
}

fn give(ipam: &mut NetworkIpam, uid: &str, ips: &[StaticIp]) -> Result<String, GrantError> {
    let grant = ipam.give(&blue(), &owner(uid), Wish { ips, ..Wish::default() }, Instant::now())?;
    Ok(grant.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

#[test]
fn pods_of_all_nodes_share_one_range_behind_the_gateway() {
    let mut ipam = ipam(&["172.16.24.0/24", "fd00:24::/64"], true);
    assert_eq!(give(&mut ipam, "a", &[]).unwrap(), "172.16.24.2/24 fd00:24::2/64");
    assert_eq!(give(&mut ipam, "b", &[]).unwrap(), "172.16.24.3/24 fd00:24::3/64");
    assert_eq!(
        give(&mut ipam, "a", &[]).unwrap(),
        "172.16.24.2/24 fd00:24::2/64",
        "asking again gives the same"
    );
    assert_eq!(ipam.get(&blue(), &owner("b")).unwrap().mac.to_string(), "0a:58:ac:10:18:03");
    assert_eq!(ipam.counts(&blue()), (2, 251));
}

#[test]
fn an_address_that_is_asked_for_is_given_once() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    assert_eq!(give(&mut ipam, "a", &[ip("172.16.24.55")]).unwrap(), "172.16.24.55/24");
    let taken = give(&mut ipam, "b", &[ip("172.16.24.55")]).unwrap_err();
    assert_eq!(taken.to_string(), "address 172.16.24.55 belongs to another pod (UID a)");
    assert!(!ipam.has_pod("b"));
    assert_eq!(ipam.release("a", Instant::now()), BTreeSet::from([blue()]));
    assert_eq!(
        give(&mut ipam, "b", &[ip("172.16.24.55")]).unwrap(),
        "172.16.24.55/24",
        "asked for, it need not rest"
    );
}

#[test]
fn what_cannot_be_given_is_refused_with_the_reason() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    let wrong = StaticIp { prefix_len: Some(16), ..ip("172.16.24.9") };
    for (wish, words) in [
        (ip("172.16.25.9"), "172.16.25.9 is not in 172.16.24.0/24"),
        (ip("fd00::9"), "fd00::9 is not in"),
        (wrong, "172.16.24.9/16: the network has /24"),
        (ip("172.16.24.0"), "which no host has"),
        (ip("172.16.24.255"), "which no host has"),
        (ip("172.16.24.1"), "172.16.24.1 is the network's gateway"),
    ] {
        let error = give(&mut ipam, "a", &[wish]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(ipam.counts(&blue()).0, 0);
}

#[test]
fn a_pod_may_be_the_gateway_where_no_router_is() {
    let mut ipam = ipam(&["172.16.24.0/24"], false);
    assert_eq!(give(&mut ipam, "router", &[ip("172.16.24.1")]).unwrap(), "172.16.24.1/24");
    assert_eq!(give(&mut ipam, "a", &[]).unwrap(), "172.16.24.2/24");
    ipam.release("router", Instant::now());
    assert_eq!(give(&mut ipam, "b", &[]).unwrap(), "172.16.24.3/24");
}

#[test]
fn a_mac_address_that_is_asked_for_is_given_once_and_others_go_around_it() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    let asks = |mac: &str| Wish { mac: Some(mac.parse().unwrap()), ..Wish::default() };
    let mut ask = |uid: &str, mac: &str| ipam.give(&blue(), &owner(uid), asks(mac), Instant::now());
    // That of 172.16.24.3, which the next pod would get.
    assert_eq!(ask("a", "0a:58:ac:10:18:03").unwrap().addresses[0].to_string(), "172.16.24.2/24");
    assert!(matches!(ask("b", "0a:58:ac:10:18:03"), Err(GrantError::MacTaken { .. })));
    assert!(matches!(ask("b", "0a:58:ac:10:18:01"), Err(GrantError::GatewayMac(_))));
    assert_eq!(give(&mut ipam, "b", &[]).unwrap(), "172.16.24.4/24");
    assert!(matches!(give(&mut ipam, "c", &[ip("172.16.24.3")]), Err(GrantError::MacTaken { .. })));
}

#[test]
fn a_full_network_is_refused_until_an_address_is_free_and_those_rest() {
    let mut ipam = ipam(&["172.16.24.0/29"], true);
    for uid in ["a", "b", "c", "d"] {
        give(&mut ipam, uid, &[]).unwrap();
    }
    ipam.release("b", Instant::now());
    assert_eq!(
        give(&mut ipam, "e", &[]).unwrap(),
        "172.16.24.6/29",
        "one that has never been given goes first"
    );
    assert_eq!(give(&mut ipam, "f", &[]).unwrap(), "172.16.24.3/29", "nothing else is left");
    assert!(matches!(give(&mut ipam, "g", &[]), Err(GrantError::Exhausted(_))));
    assert_eq!(ipam.counts(&blue()), (5, 0));
    let now = Instant::now();
    ipam.release("c", now);
    ipam.release("a", now + REST * 2);
    let later = now + REST * 2;
    let given = ipam.give(&blue(), &owner("h"), Wish::default(), later).unwrap();
    assert_eq!(given.addresses[0].to_string(), "172.16.24.4/29");
}

#[test]
fn networks_with_the_same_range_have_nothing_in_common_and_one_that_goes_leaves_nothing() {
    let mut ipam = ipam(&["172.16.24.0/24"], false);
    let red = NamespacedName::new("shop", "red");
    ipam.set(&red, &[subnet("172.16.24.0/24")], None);
    let other = Owner { uid: "a".to_owned(), key: "shop/red".to_owned() };
    let given =
        ipam.give(&red, &other, Wish { ips: &[ip("172.16.24.9")], ..Wish::default() }, Instant::now());
    assert_eq!(given.unwrap().addresses[0].to_string(), "172.16.24.9/24");
    assert_eq!(give(&mut ipam, "a", &[ip("172.16.24.9")]).unwrap(), "172.16.24.9/24");
    ipam.remove(&red);
    assert!(ipam.has_pod("a"));
    assert_eq!(ipam.give(&red, &other, Wish::default(), Instant::now()), Err(GrantError::NotReady));
    ipam.take_back(&blue(), &owner("a"), Instant::now());
    assert!(!ipam.has_pod("a"));
}

#[test]
fn an_address_beyond_those_that_are_given_can_be_asked_for() {
    let mut ipam = ipam(&["fd00:24::/64"], false);
    assert_eq!(give(&mut ipam, "a", &[ip("fd00:24::1:2:3:4")]).unwrap(), "fd00:24::1:2:3:4/64");
    assert!(matches!(give(&mut ipam, "b", &[ip("fd00:24::1:2:3:4")]), Err(GrantError::AddressTaken { .. })));
}

#[test]
fn what_is_given_stays_given_when_other_addresses_are_excluded() {
    let mut ipam = ipam(&["172.16.24.0/29"], true);
    assert_eq!(give(&mut ipam, "a", &[]).unwrap(), "172.16.24.2/29");
    assert_eq!(give(&mut ipam, "b", &[]).unwrap(), "172.16.24.3/29");
    let excluded = vec!["172.16.24.2/31".parse().unwrap(), "172.16.24.4/32".parse().unwrap()];
    let narrower = [Subnet { excluded, ..subnet("172.16.24.0/29") }];
    let router = Some(MacAddr::from_ip(narrower[0].gateway));
    ipam.set(&blue(), &narrower, router);
    assert_eq!(ipam.counts(&blue()), (2, 2));
    assert_eq!(give(&mut ipam, "a", &[]).unwrap(), "172.16.24.2/29", "it keeps what it has");
    assert_eq!(give(&mut ipam, "c", &[]).unwrap(), "172.16.24.5/29");
    assert!(matches!(give(&mut ipam, "d", &[ip("172.16.24.3")]), Err(GrantError::AddressTaken { .. })));
    ipam.set(&blue(), &[subnet("172.16.24.0/29")], router);
    assert_eq!(ipam.counts(&blue()), (3, 2));
    // Another range is another network.
    ipam.set(&blue(), &[subnet("172.16.25.0/29")], router);
    assert_eq!(ipam.counts(&blue()).0, 0);
    assert!(!ipam.has_pod("a"));
}

fn claim(name: &str) -> NamespacedName {
    NamespacedName::new("shop", name)
}

fn give_by(ipam: &mut NetworkIpam, uid: &str, by: &str, ips: &[StaticIp]) -> Result<String, GrantError> {
    let by = claim(by);
    let wish = Wish { ips, claim: Some(&by), ..Wish::default() };
    let grant = ipam.give(&blue(), &owner(uid), wish, Instant::now())?;
    Ok(grant.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

#[test]
fn a_claim_keeps_what_its_pod_got_for_the_next_one_and_from_all_others() {
    let mut ipam = ipam(&["172.16.24.0/29", "fd00:24::/64"], true);
    let now = Instant::now();
    let first = give_by(&mut ipam, "a", "db", &[]).unwrap();
    assert_eq!(ipam.release("a", now), BTreeSet::from([blue()]));
    // All other addresses are taken, one after another, also rested ones.
    for uid in ["b", "c", "d", "e"] {
        let given = ipam.give(&blue(), &owner(uid), Wish::default(), now + REST * 2).unwrap();
        assert_ne!(given.addresses[0].to_string(), "172.16.24.2/29");
    }
    assert!(matches!(give(&mut ipam, "f", &[]), Err(GrantError::Exhausted(_))));
    let asked = give(&mut ipam, "f", &[ip("172.16.24.2")]).unwrap_err();
    assert_eq!(
        asked.to_string(),
        "address 172.16.24.2 is kept by IPAMClaim shop/db; a pod that names the claim gets it"
    );
    assert_eq!(give_by(&mut ipam, "g", "db", &[]).unwrap(), first);
    assert_eq!(ipam.get(&blue(), &owner("g")).unwrap().mac.to_string(), "0a:58:ac:10:18:02");
    let taken = give_by(&mut ipam, "h", "db", &[]).unwrap_err();
    assert!(matches!(taken, GrantError::AddressTaken { .. }), "{taken}");
}

#[test]
fn what_a_claim_no_longer_keeps_is_free_when_no_pod_has_it() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    let now = Instant::now();
    give_by(&mut ipam, "a", "db", &[]).unwrap();
    let (network, kept) = ipam.kept(&claim("db")).unwrap();
    assert_eq!((network.clone(), kept), (blue(), vec!["172.16.24.2/24".parse().unwrap()]));
    assert_eq!(ipam.let_go(&claim("db"), now), Some(blue()));
    assert!(ipam.kept(&claim("db")).is_none() && ipam.let_go(&claim("db"), now).is_none());
    assert!(give(&mut ipam, "b", &[ip("172.16.24.2")]).is_err(), "the pod still has it");
    ipam.release("a", now);
    assert_eq!(give(&mut ipam, "b", &[ip("172.16.24.2")]).unwrap(), "172.16.24.2/24");
    assert_eq!(ipam.counts(&blue()), (1, 252));
}

#[test]
fn a_claim_with_addresses_gets_them_unless_somebody_has_them() {
    let mut ipam = ipam(&["172.16.24.0/24", "fd00:24::/64"], true);
    let now = Instant::now();
    let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
    assert_eq!(ipam.keep(&blue(), &claim("db"), &nets(&["172.16.24.9/24"]), now), Ok(()));
    assert_eq!(give(&mut ipam, "a", &[]).unwrap(), "172.16.24.10/24 fd00:24::2/64", "the next one in turn");
    // The other family is added to what the claim keeps.
    assert_eq!(give_by(&mut ipam, "b", "db", &[]).unwrap(), "172.16.24.9/24 fd00:24::3/64");
    assert_eq!(ipam.kept(&claim("db")).unwrap().1.len(), 2);
    ipam.release("b", now);
    let differs = give_by(&mut ipam, "b", "db", &[ip("172.16.24.7")]).unwrap_err();
    assert!(
        differs.to_string().contains("keeps address 172.16.24.9, and the pod asks for 172.16.24.7"),
        "{differs}"
    );
    for (ips, words) in [
        (["172.16.24.9/24"], "kept by IPAMClaim shop/db"),
        (["172.16.24.10/24"], "belongs to another pod (UID a)"),
        (["172.16.24.1/24"], "gateway"),
        (["172.16.24.8/16"], "the network has /24"),
        (["10.0.0.1/8"], "is not in"),
    ] {
        let error = ipam.keep(&blue(), &claim("other"), &nets(&ips), now).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(ipam.kept(&claim("other")).is_none());
    }
}

#[test]
fn what_is_kept_stays_kept_when_other_addresses_are_excluded_and_ends_with_the_network() {
    let mut ipam = ipam(&["172.16.24.0/29"], true);
    let now = Instant::now();
    give_by(&mut ipam, "a", "db", &[]).unwrap();
    ipam.release("a", now);
    let excluded = Subnet { excluded: vec!["172.16.24.6/32".parse().unwrap()], ..subnet("172.16.24.0/29") };
    let router = Some(MacAddr::from_ip(excluded.gateway));
    ipam.set(&blue(), &[excluded], router);
    let mut given = Vec::new();
    while let Ok(one) = give(&mut ipam, &format!("p{}", given.len()), &[]) {
        given.push(one);
    }
    assert_eq!(given, ["172.16.24.3/29", "172.16.24.4/29", "172.16.24.5/29"]);
    ipam.remove(&blue());
    assert!(ipam.kept(&claim("db")).is_none() && ipam.claims.is_empty());
}

#[test]
fn a_pod_that_has_an_address_keeps_it_whoever_it_is_kept_for() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    let now = Instant::now();
    let nets = ["172.16.24.9/24".parse().unwrap()];
    ipam.keep(&blue(), &claim("db"), &nets, now).unwrap();
    let old = |ipam: &mut NetworkIpam, uid: &str, by: &NamespacedName| {
        let wish = Wish { ips: &[ip("172.16.24.9")], claim: Some(by), is_old: true, ..Wish::default() };
        ipam.give(&blue(), &owner(uid), wish, now).map(drop)
    };
    old(&mut ipam, "a", &claim("other")).unwrap();
    assert!(ipam.kept(&claim("other")).is_none(), "another claim keeps it");
    ipam.release("a", now);
    assert_eq!(give_by(&mut ipam, "b", "db", &[]).unwrap(), "172.16.24.9/24");
    ipam.let_go(&claim("db"), now);
    ipam.adopt(&blue(), &owner("b"), &claim("new"), now);
    assert_eq!(ipam.kept(&claim("new")).unwrap().1, nets);
}

#[test]
fn mac_addresses_begin_as_the_network_says() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    give(&mut ipam, "a", &[]).unwrap();
    ipam.set_mac_prefix(&blue(), [0x02, 0x11]);
    give(&mut ipam, "b", &[]).unwrap();
    let mac = |uid: &str| ipam.get(&blue(), &owner(uid)).unwrap().mac.to_string();
    assert_eq!((mac("a").as_str(), mac("b").as_str()), ("0a:58:ac:10:18:02", "02:11:ac:10:18:03"));
}

#[test]
fn a_claim_keeps_addresses_of_one_network() {
    let mut ipam = ipam(&["172.16.24.0/24"], true);
    let red = NamespacedName::new("shop", "red");
    ipam.set(&red, &[subnet("172.16.25.0/24")], None);
    give_by(&mut ipam, "a", "db", &[]).unwrap();
    let by = claim("db");
    let wish = Wish { claim: Some(&by), ..Wish::default() };
    ipam.give(&red, &owner("b"), wish, Instant::now()).unwrap();
    assert_eq!(ipam.kept(&by).unwrap().0, &blue());
    ipam.let_go(&by, Instant::now());
    assert!(ipam.kept(&by).is_none() && ipam.pools.values().all(|pool| pool.claims.is_empty()));
}

use api::MacAddr;

use super::packet::{microflow, shares_prefix};
use super::*;

fn pod(name: &str, address: &str, node: &str) -> Pod {
    let address: IpAddr = address.parse().unwrap();
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        node: node.to_owned(),
        mac: MacAddr::from_ip(address).to_string(),
        gateway: "10.244.0.1".parse().ok(),
        prefix: 24,
        labels: Value::Null,
        address,
    }
}

#[test]
fn a_packet_goes_to_the_neighbour_itself_and_to_all_others_by_the_gateway() {
    let from = pod("web", "10.244.0.3", "n1");
    let of = |to: Target, destination: &str| {
        microflow(&from, &to, destination.parse().unwrap(), 40_000, "tcp").unwrap()
    };
    let near = of(Target::Pod(pod("db", "10.244.0.4", "n1")), "10.244.0.4:80");
    assert!(
        near.contains("inport == \"shop_web\"") && near.contains("eth.dst == 0a:58:0a:f4:00:04"),
        "{near}"
    );
    let far = of(Target::Pod(pod("db", "10.244.1.4", "n2")), "10.244.1.4:80");
    assert!(far.contains("eth.dst == 0a:58:0a:f4:00:01") && far.ends_with("tcp.dst == 80"), "{far}");
}

#[test]
fn where_a_packet_comes_out_is_told_by_its_object() {
    let (from, db) = (pod("web", "10.244.0.3", "n1"), pod("db", "10.244.1.4", "n2"));
    let traced = |outputs: &[&str]| Traced {
        outputs: outputs.iter().map(|&port| port.to_owned()).collect(),
        ..Traced::default()
    };
    assert_eq!(
        verdict(&traced(&["shop_db"]), &from, &Target::Pod(db.clone()), None),
        ("delivered to pod shop/db".to_owned(), true)
    );
    let (text, delivered) = verdict(&traced(&[]), &from, &Target::Pod(db), None);
    assert!(!delivered && text.starts_with("dropped"));
    let service = Target::Service {
        name: "shop/db".to_owned(),
        address: "10.96.0.1:80".parse().unwrap(),
        backends: Vec::new(),
    };
    assert!(verdict(&traced(&[]), &from, &service, None).0.contains("no ready backend"));
}

#[test]
fn addresses_of_one_range_share_their_first_bits() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert!(shares_prefix(ip("10.244.0.3"), 24, ip("10.244.0.250")));
    assert!(!shares_prefix(ip("10.244.0.3"), 24, ip("10.244.1.3")));
    assert!(
        shares_prefix(ip("fd00::3"), 64, ip("fd00::9")) && !shares_prefix(ip("fd00::3"), 64, ip("10.0.0.1"))
    );
}

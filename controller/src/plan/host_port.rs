//! Host ports as load balancers of the node's gateway router and switch: one row for each node and protocol, marked as ours.
//!
//! The pod is on the node itself, so its answers come back through the same router, and the client's address is kept.
//! Loopback addresses are not included: only the node itself reaches them, and its agent translates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use api::host_port::{Listen, OWNER_KEY, Place};
use api::ovn_name;
use ipnet::IpNet;

use super::columns::map;
use super::service::balancer_options;
use super::{DesiredRow, Item, RowKey, Table};
use crate::config::Config;
use crate::index::{Index, Node, Protocol};

/// The items of a node's host ports; none until its gateway is known.
pub fn items(index: &Index, node: &Node, config: &Config) -> Vec<Item> {
    let (false, Some(gateway), Some(_)) = (node.subnets.is_empty(), &node.gateway, &node.chassis) else {
        return Vec::new();
    };
    let own: BTreeSet<IpAddr> =
        gateway.ip_addresses.iter().chain(&node.host_cidrs).map(IpNet::addr).collect();
    let (served, _) = index.host_ports(&node.name);
    let mut vips: BTreeMap<Protocol, BTreeMap<String, String>> = BTreeMap::new();
    for (place, by) in &served {
        let addresses: Vec<IpAddr> = match place.listen {
            Listen::One(ip) if ip.is_loopback() => continue,
            Listen::One(ip) => vec![ip],
            Listen::EveryIpv4 | Listen::EveryIpv6 => {
                let v4 = place.listen == Listen::EveryIpv4;
                let taken = |ip: IpAddr| served.contains_key(&Place { listen: Listen::One(ip), ..*place });
                own.iter().copied().filter(|ip| ip.is_ipv4() == v4 && !taken(*ip)).collect()
            }
        };
        let rules = vips.entry(place.protocol).or_default();
        for ip in addresses {
            rules.insert(SocketAddr::new(ip, place.port).to_string(), by.target.to_string());
        }
    }
    vips.retain(|_, rules| !rules.is_empty());
    vips.into_iter().flat_map(|(protocol, rules)| balancer(node, protocol, rules, config)).collect()
}

fn balancer(node: &Node, protocol: Protocol, rules: BTreeMap<String, String>, config: &Config) -> Vec<Item> {
    let name = format!("HostPorts_{}_{}", node.name, protocol.upper());
    let row = RowKey::new(Table::LoadBalancer, name.clone());
    let desired = DesiredRow::new(row.clone())
        .with("name", name)
        .with("protocol", protocol.lower())
        .with("vips", rules)
        .with("options", balancer_options(protocol, true, config))
        .with("external_ids", map([(OWNER_KEY, &node.name)]));
    let owners = [
        RowKey::new(Table::LogicalRouter, ovn_name::gateway_router(&node.name)),
        RowKey::new(Table::LogicalSwitch, node.name.clone()),
    ];
    let mut items = vec![Item::from(desired)];
    items.extend(owners.iter().map(|owner| Item::link(owner, "load_balancer", &row)));
    items
}

#[cfg(test)]
mod tests {
    use ovsdb_client::{Atom, Datum};
    use serde_json::json;

    use super::*;
    use crate::config::Features;
    use crate::index::{Pod, convert};
    use crate::plan::{Member, plan};
    use crate::unit::Unit;
    use api::NamespacedName;

    fn config() -> Config {
        Config {
            cluster_subnets: vec![
                "10.244.0.0/16/24".parse().unwrap(),
                "fd00:10:244::/48/64".parse().unwrap(),
            ],
            service_cidrs: Vec::new(),
            join_subnets: Vec::new(),
            masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
            mtu: 1400,
            host_network_namespace: None,
            default_network: true,
            features: Features::ALL,
        }
    }

    fn node() -> Node {
        let gateway = json!({"mode": "shared", "bridge-id": "b", "interface-id": "b_n", "mac-address": "02:42:ac:12:00:02",
            "ip-addresses": ["172.18.0.2/16", "fd00:172:18::2/64"], "next-hops": [], "node-port-enable": "true", "vlan-id": "0"});
        Node {
            name: "n1".to_owned(),
            id: 2,
            subnets: vec!["10.244.0.0/24".parse().unwrap()],
            addresses: Vec::new(),
            chassis: Some("c".to_owned()),
            gateway: Some(serde_json::from_value(gateway).unwrap()),
            gateway_unknown: false,
            host_cidrs: vec!["172.18.0.2/16".parse().unwrap(), "192.0.2.9/32".parse().unwrap()],
            userspace_tso: false,
            labels: BTreeMap::new(),
        }
    }

    fn pod(name: &str, created: u8, ip: &str, port: serde_json::Value) -> Pod {
        let object = json!({
            "metadata": {"name": name, "namespace": "x", "uid": name,
                "creationTimestamp": format!("2026-01-01T00:00:0{created}Z")},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [port]}]},
        });
        let mut pod = convert::pod(serde_json::from_value(object).unwrap()).unwrap().pod;
        pod.addresses = vec![format!("{ip}/24").parse().unwrap()];
        pod
    }

    fn port(protocol: &str, host_ip: &str) -> serde_json::Value {
        json!({"containerPort": 8080, "hostPort": 54323, "protocol": protocol, "hostIP": host_ip})
    }

    /// `name @ places: vip=target …`
    fn planned(index: &Index) -> Vec<String> {
        let items = plan(index, &config(), &Unit::HostPorts("n1".to_owned()));
        let rows = items.iter().filter_map(|item| if let Item::Row(row) = item { Some(row) } else { None });
        rows.map(|row| {
            let member = Member::Row(row.key.clone());
            let places = items.iter().filter_map(|item| match item {
                Item::Edge(edge) if edge.member == member => Some(edge.owner.key.as_str()),
                _ => None,
            });
            let Datum::Map(pairs) = &row.columns["vips"] else { panic!("{row:?}") };
            let text = |atom: &Atom| if let Atom::String(s) = atom { s.clone() } else { panic!("{atom:?}") };
            let vips: Vec<_> = pairs.iter().map(|(k, v)| format!("{}={}", text(k), text(v))).collect();
            format!("{} @ {}: {}", row.key.key, places.collect::<Vec<_>>().join(","), vips.join(" "))
        })
        .collect()
    }

    fn index(pods: &[Pod]) -> Index {
        let mut index = Index::default();
        index.apply_node(node());
        for pod in pods {
            index.apply_pod(pod.clone());
        }
        index
    }

    #[test]
    fn an_address_is_served_alone_and_no_address_means_every_one_of_the_node() {
        let one = pod("a", 1, "10.244.0.3", port("TCP", "172.18.0.2"));
        let every = pod("b", 2, "10.244.0.4", port("UDP", ""));
        assert_eq!(
            planned(&index(&[one, every])),
            [
                "HostPorts_n1_TCP @ GR_n1,n1: 172.18.0.2:54323=10.244.0.3:8080",
                "HostPorts_n1_UDP @ GR_n1,n1: 172.18.0.2:54323=10.244.0.4:8080 192.0.2.9:54323=10.244.0.4:8080",
            ]
        );
    }

    #[test]
    fn an_address_of_its_own_goes_before_every_address() {
        let one = pod("a", 2, "10.244.0.3", port("TCP", "172.18.0.2"));
        let every = pod("b", 1, "10.244.0.4", port("TCP", "0.0.0.0"));
        assert_eq!(
            planned(&index(&[one, every])),
            ["HostPorts_n1_TCP @ GR_n1,n1: 172.18.0.2:54323=10.244.0.3:8080 192.0.2.9:54323=10.244.0.4:8080"]
        );
    }

    #[test]
    fn loopback_and_host_network_pods_need_no_load_balancer() {
        let loopback = pod("a", 1, "10.244.0.3", port("TCP", "127.0.0.1"));
        let own = Pod { host_network: true, ..pod("b", 1, "172.18.0.2", port("TCP", "")) };
        assert!(planned(&index(&[loopback, own])).is_empty());
    }

    #[test]
    fn the_younger_of_two_claimants_gets_the_port_when_the_older_goes() {
        let old = pod("z", 1, "10.244.0.3", port("TCP", "172.18.0.2"));
        let young = pod("a", 2, "10.244.0.4", port("TCP", "172.18.0.2"));
        let mut index = index(&[young, old]);
        assert!(planned(&index)[0].ends_with("=10.244.0.3:8080"));
        let dirty = index.delete_pod(&NamespacedName::new("x", "z"));
        assert!(dirty.contains(&Unit::HostPorts("n1".to_owned())), "{dirty:?}");
        assert!(planned(&index)[0].ends_with("=10.244.0.4:8080"));
    }

    #[test]
    fn only_what_host_ports_depend_on_makes_them_dirty() {
        let mut index = index(&[]);
        let with = pod("a", 1, "10.244.0.3", port("TCP", ""));
        let unit = Unit::HostPorts("n1".to_owned());
        assert!(index.apply_pod(with.clone()).contains(&unit));
        let relabelled = Pod { labels: BTreeMap::from([("a".into(), "b".into())]), ..with.clone() };
        assert!(!index.apply_pod(relabelled).contains(&unit));
        let moved = Pod { addresses: vec!["10.244.0.9/24".parse().unwrap()], ..with };
        assert!(index.apply_pod(moved).contains(&unit));
        let without = pod("c", 1, "10.244.0.5", json!({"containerPort": 80}));
        assert!(!index.apply_pod(without).contains(&unit));
    }
}

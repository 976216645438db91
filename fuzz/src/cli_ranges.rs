//! Address ranges on the command lines of controller and node agent, and what is derived from accepted ones.

use std::time::Instant;

use api::addr::{self, Family};
use api::admin::FlowSpec;
use api::annotation::ClusterNetwork;
use api::cluster_network::ClusterSubnet;
use clap::Parser;
use controller::alloc::node::NodeAllocator;
use controller::config::{Config, Features};
use controller::index::convert;
use ipnet::IpNet;
use node_agent::config as args;
use node_agent::kube::cluster_network::{self, FLAGS};
use ovsdb_client::Endpoint;
use serde_json::json;

/// The node agent's command line, with readable settings.
#[derive(Debug, Parser)]
struct Agent {
    #[command(flatten)]
    config: args::Config,
}

/// Lines with the values of `--cluster-subnets`, `--service-cidrs`, `--join-subnet`, `--masquerade-subnet` and `--mtu`; an
/// empty line omits its flag. A sixth line is the address of a database, a tunnel endpoint, or a flow.
pub fn cli_ranges(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines: Vec<&str> = text.split('\n').collect();
    for part in lines.iter().flat_map(|line| line.split(',')) {
        subnet(part);
        range(part);
    }
    place(lines.get(5).unwrap_or(&""));
    let given = FLAGS.iter().zip(&lines).filter(|(_, value)| !value.is_empty());
    let flags: Vec<String> = given.map(|(flag, value)| format!("{flag}={value}")).collect();
    let flags = flags.iter().map(String::as_str);
    let agent = Agent::try_parse_from(["agent", "--node-name=n1"].into_iter().chain(flags.clone()));
    let fixed = ["slipstream-controller", "run", "--nb=tcp:192.0.2.1:6641"];
    let taken = controller::args::Args::try_parse_from(fixed.into_iter().chain(flags)).is_ok();
    match agent {
        Ok(agent) => both(&agent.config, taken),
        Err(error) => assert!(!taken, "only the controller takes what the agent calls {error}"),
    }
}

/// Parses one word as a cluster subnet.
fn subnet(text: &str) {
    let Ok(ours) = text.parse::<ClusterSubnet>() else { return };
    assert_eq!(ours.to_string().parse(), Ok(ours));
    assert!(ours.host_len > ours.cidr.prefix_len());
    // The first part must have room for a gateway, a management port and a pod.
    let part = IpNet::new(ours.cidr.addr(), ours.host_len).unwrap();
    assert!(ours.cidr.contains(&part));
    let (gateway, management) = (addr::gateway_of(&part).unwrap(), addr::management_of(&part).unwrap());
    let pod = addr::nth(&part, 3).unwrap();
    assert!([gateway, management, pod].iter().all(|ip| part.contains(ip)) && gateway != management);
    assert!(addr::nth(&part, 4).is_some(), "the last one may be the broadcast address");
}

/// Parses one word as a range of any kind.
fn range(text: &str) {
    let Ok(net) = text.parse::<IpNet>() else { return };
    assert_eq!(net.to_string().parse(), Ok(net));
    for n in [0, 1, 2, 5, 5000, u32::MAX] {
        assert!(addr::nth(&net, n).is_none_or(|ip| net.contains(&ip)));
    }
    if let Some(five) = addr::Masquerade::of(&net) {
        let all = [five.ovn, five.host, five.local_service, five.next_hop, five.hairpin];
        assert!(all.is_sorted_by(|a, b| a < b) && all.iter().all(|ip| net.contains(ip)));
    }
}

/// Parses other values of the command line, and compares them with their written form.
fn place(text: &str) {
    if let Ok(list) = Endpoint::parse_list(text) {
        assert_eq!(Endpoint::parse_list(&Endpoint::format_list(&list)).ok(), Some(list));
    }
    if let Ok(encap) = text.parse::<args::EncapIp>() {
        assert!(text == "auto" || matches!(encap, args::EncapIp::Fixed(ip) if text.parse() == Ok(ip)));
    }
    let words: Vec<&str> = text.split(' ').collect();
    if let [protocol, source, destination] = words[..]
        && let Ok(flow) = FlowSpec::parse(protocol, source, destination)
    {
        let written = flow.to_string();
        let words: Vec<&str> = written.split(' ').collect();
        assert_eq!(FlowSpec::parse(words[0], words[1], words[2]), Ok(flow));
    }
}

/// Passes the agent's flags to the controller: if the controller accepts them, a cluster must be possible with them.
fn both(agent: &args::Config, taken: bool) {
    let network = &agent.network;
    let config = Config {
        cluster_subnets: network.cluster_subnets.clone(),
        service_cidrs: network.service_cidrs.clone(),
        join_subnets: network.join_subnet.clone(),
        masquerade_subnets: network.masquerade_subnet.clone(),
        mtu: network.mtu,
        host_network_namespace: None,
        default_network: network.default_network,
        features: Features::ALL,
    }
    .with_default_ranges();
    assert!(taken, "the controller does not take what it can use: {config:?}");
    let told = ClusterNetwork::read(&config.published()).unwrap();
    assert_eq!(cluster_network::differences(&told, &cluster_network::of(agent)), []);
    if config.validate().is_ok() {
        usable(&config);
    }
}

/// No two ranges may share an address, and a first node must get its assignment.
fn usable(config: &Config) {
    let ranges = config.own_ranges();
    for (at, one) in ranges.iter().enumerate() {
        for other in &ranges[at + 1..] {
            assert!(one.broadcast() < other.network() || other.broadcast() < one.network(), "{one}, {other}");
        }
    }
    let families = config.families();
    assert!(families.first().is_some_and(std::net::IpAddr::is_ipv4) && families.len() <= 2);
    for family in &families {
        assert!(config.masquerade(*family).is_some());
    }
    let node =
        convert::node(serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap()).unwrap();
    let mut nodes = NodeAllocator::new(config);
    let made = nodes.assign(&node, Instant::now()).unwrap();
    assert_eq!(made.subnets.len(), families.len());
    for subnet in &made.subnets {
        let whole = config.cluster_subnets.iter().find(|whole| whole.cidr.contains(subnet)).unwrap();
        assert_eq!(whole.host_len, subnet.prefix_len());
    }
    for id in [1, made.id] {
        let joined = config.join_addresses(id);
        assert_eq!(joined.len(), families.len(), "join addresses of number {id}: {joined:?}");
        let distinct = joined.iter().map(Family::of_net).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(distinct.len(), families.len());
    }
    assert!(config.hairpin_addresses().starts_with(|c: char| c.is_ascii_digit()));
}

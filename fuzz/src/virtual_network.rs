//! A network as a user writes it: the fields of `spec`, and the form of before.

use std::net::IpAddr;

use api::addr::Family;
use api::virtual_network::{Limits, SpecError, VirtualNetworkSpec, check_name, legacy, overlap};
use ipnet::IpNet;
use serde_json::Value;

/// A cluster with both families.
fn limits() -> Limits {
    let own = [
        ("cluster subnet", "10.244.0.0/16"),
        ("cluster subnet", "fd00:10:244::/48"),
        ("service range", "10.96.0.0/16"),
    ];
    Limits {
        own: own.map(|(what, net)| (what.to_owned(), net.parse().unwrap())).to_vec(),
        node_prefixes: vec![(Family::V4, 24), (Family::V6, 64)],
        mtu: 1400,
    }
}

/// JSON of a `spec`; or the name of an object in the first line, and its `spec.config` after that.
pub fn virtual_network(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        match VirtualNetworkSpec::read(&value) {
            Ok(spec) => usable(&spec),
            Err(error) => is_told(&error),
        }
    }
    let (name, config) = text.split_once('\n').unwrap_or((text, ""));
    if let Err(error) = check_name(name) {
        is_told(&error);
    }
    match legacy::convert(name, config) {
        Ok(spec) => {
            assert_eq!(check_name(name), Ok(()));
            usable(&spec);
        }
        Err(error) => is_told(&error),
    }
}

/// What is read is written and read as the same; what is accepted has addresses for pods, and none of the cluster's.
fn usable(spec: &VirtualNetworkSpec) {
    let written = serde_json::to_value(spec).unwrap();
    assert_eq!(VirtualNetworkSpec::read(&written).as_ref(), Ok(spec), "written as {written}");
    let limits = limits();
    let checked = match spec.check(&limits) {
        Ok(checked) => checked,
        Err(error) => return is_told(&error),
    };
    assert!((1..=2).contains(&checked.subnets.len()) && checked.subnets.len() == spec.subnets.len());
    let is_v4 = |net: &IpNet| net.addr().is_ipv4();
    if let [one, other] = &checked.subnets[..] {
        assert_ne!(is_v4(&one.net), is_v4(&other.net));
    }
    for subnet in &checked.subnets {
        let net = subnet.net;
        assert_eq!(net, net.trunc());
        assert!(limits.own.iter().all(|(_, own)| !overlap(own, &net)), "{net}");
        assert!(net.contains(&subnet.gateway) && subnet.gateway != net.network());
        let special = match subnet.gateway {
            IpAddr::V4(ip) => {
                net.broadcast() == ip || ip.is_loopback() || ip.is_multicast() || ip.is_link_local()
            }
            IpAddr::V6(ip) => ip.is_multicast() || ip.is_unicast_link_local(),
        };
        assert!(!special, "gateway {}", subnet.gateway);
        assert!(net.max_prefix_len() - net.prefix_len() >= 2, "{net} has room for a gateway and a pod");
        assert!(subnet.excluded.iter().all(|range| net.contains(range)));
    }
    assert!(checked.mtu <= limits.mtu && checked.mtu >= 576);
}

/// An error names a field, and fits into an Event.
fn is_told(error: &SpecError) {
    assert!(!error.field.is_empty() && !error.problem.is_empty());
    assert!(error.to_string().chars().count() < 1000, "{} characters", error.to_string().len());
}

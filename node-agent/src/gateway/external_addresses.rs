//! Filter for external addresses of services: addresses of the cluster's CIDRs and of nodes are not served. Otherwise a user who may
//! create services could redirect the node's own connections, to itself and to the API server, to their pods. OVN's load balancers
//! omit the same addresses; the controller reports that to the owner of the service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::services::NodeService;

/// Returns the services without forbidden addresses.
pub fn served(mut services: Vec<NodeService>, own: &[IpNet], nodes: &BTreeSet<IpAddr>) -> Vec<NodeService> {
    for service in &mut services {
        service.external_ips.retain(|ip| !nodes.contains(ip) && !own.iter().any(|net| net.contains(ip)));
    }
    services
}

#[cfg(test)]
mod tests {
    use super::super::services::fixture;
    use super::*;

    #[test]
    fn addresses_of_the_cluster_and_of_nodes_are_left_out() {
        let mut service = fixture::reference_services("n1").remove(0);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let claimed = ["10.96.0.10", "10.244.3.7", "172.18.0.2", "172.18.0.10", "192.0.2.1"];
        service.external_ips = claimed.map(ip).to_vec();
        let own = ["10.96.0.0/12", "10.244.0.0/16"].map(|net| net.parse().unwrap());
        let nodes = BTreeSet::from([ip("172.18.0.2")]);
        let served = served(vec![service], &own, &nodes);
        assert_eq!(served[0].external_ips, [ip("172.18.0.10"), ip("192.0.2.1")]);
    }
}

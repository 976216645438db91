//! Host ports claimed by this node's pods, and the pod that serves each, by the same rules as in the controller.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::annotation::{POD_NETWORKS, PodNetworks};
use api::host_port::{self, Claim, Listen, Place, Served};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use api::Protocol;

/// Serving pod of each host port.
pub type HostPorts = BTreeMap<Place, Served>;

/// Host port claims of this node's pods, by `namespace/name`.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<String, Vec<Claim>>);

impl Claims {
    /// Adds or updates a pod. Returns true when its claims changed.
    pub fn apply(&mut self, pod: &Pod) -> bool {
        let claims = claims_of(pod);
        if claims.is_empty() {
            return self.delete(pod);
        }
        self.0.insert(name_of(pod), claims.clone()) != Some(claims)
    }

    /// Removes a pod. Returns true when it had claims.
    pub fn delete(&mut self, pod: &Pod) -> bool {
        self.0.remove(&name_of(pod)).is_some()
    }

    /// Resolves the claims to the serving pod of each host port.
    pub fn served(&self) -> HostPorts {
        host_port::serve(self.0.values().flatten().cloned()).0
    }
}

/// Addresses on which a host port is served; `EveryIpv4` and `EveryIpv6` expand to those of `own`.
pub fn addresses(ports: &HostPorts, place: &Place, own: &[IpAddr]) -> Vec<IpAddr> {
    let v4 = match place.listen {
        Listen::One(ip) => return vec![ip],
        Listen::EveryIpv4 => true,
        Listen::EveryIpv6 => false,
    };
    let taken = |ip: IpAddr| ports.contains_key(&Place { listen: Listen::One(ip), ..*place });
    own.iter().copied().filter(|ip| ip.is_ipv4() == v4 && !taken(*ip)).collect()
}

fn name_of(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Claims of a pod; empty if it uses the host network, has no address yet, or has terminated.
fn claims_of(pod: &Pod) -> Vec<Claim> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if spec.host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    // An invalid annotation is reported by ADD.
    let networks = pod.annotations().get(POD_NETWORKS).and_then(|value| PodNetworks::default_of(value).ok());
    let addresses: Vec<IpAddr> =
        networks.iter().flat_map(|n| n.ip_addresses.iter().map(IpNet::addr)).collect();
    let created = pod.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let lasting = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(lasting));
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    let claims = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        Some(Claim {
            pod: name_of(pod),
            created,
            protocol: Protocol::parse(port.protocol.as_deref())?,
            host_port: port.host_port.and_then(number)?,
            host_ip: port.host_ip.as_deref().and_then(|ip| ip.parse().ok()),
            addresses: addresses.clone(),
            container_port: number(port.container_port)?,
        })
    });
    if addresses.is_empty() { Vec::new() } else { claims.collect() }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A pod with address 10.244.0.`n` and these ports.
    pub(crate) fn pod(n: u8, ports: &serde_json::Value, phase: &str) -> Pod {
        let networks = json!({"default": {"ip_addresses": [format!("10.244.0.{n}/24")], "mac_address": "0a:58:0a:f4:00:03"}});
        serde_json::from_value(json!({
            "metadata": {"name": format!("p{n}"), "namespace": "x", "annotations": {POD_NETWORKS: networks.to_string()},
                "creationTimestamp": format!("2026-01-01T00:00:0{n}Z")},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": ports}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    pub(crate) fn port(protocol: &str, host_ip: &str) -> serde_json::Value {
        json!([{"containerPort": 8080, "hostPort": 54323, "protocol": protocol, "hostIP": host_ip}])
    }

    /// The claims of three pods to one host port, on different addresses and protocols.
    pub(crate) fn three() -> HostPorts {
        let mut claims = Claims::default();
        claims.apply(&pod(3, &port("TCP", "127.0.0.1"), "Running"));
        claims.apply(&pod(4, &port("TCP", "172.18.0.2"), "Running"));
        claims.apply(&pod(5, &port("UDP", ""), "Running"));
        claims.served()
    }

    #[test]
    fn every_port_has_the_pod_that_claims_it() {
        let served: Vec<_> = three()
            .into_iter()
            .map(|(place, by)| (place.protocol, place.listen, by.target.to_string()))
            .collect();
        let one = |ip: &str| Listen::One(ip.parse().unwrap());
        assert_eq!(
            served,
            [
                (Protocol::Tcp, one("127.0.0.1"), "10.244.0.3:8080".to_owned()),
                (Protocol::Tcp, one("172.18.0.2"), "10.244.0.4:8080".to_owned()),
                (Protocol::Udp, Listen::EveryIpv4, "10.244.0.5:8080".to_owned()),
            ]
        );
    }

    #[test]
    fn a_finished_pod_and_one_in_the_host_network_claim_nothing() {
        let mut claims = Claims::default();
        let mut own = pod(3, &port("TCP", ""), "Running");
        own.spec.as_mut().unwrap().host_network = Some(true);
        assert!(!claims.apply(&own));
        assert!(claims.apply(&pod(4, &port("TCP", ""), "Running")));
        assert!(!claims.apply(&pod(4, &port("TCP", ""), "Running")), "the same again is no change");
        assert!(claims.apply(&pod(4, &port("TCP", ""), "Failed")));
        assert!(claims.served().is_empty());
    }

    #[test]
    fn containers_that_run_beside_the_others_may_have_host_ports() {
        let mut sidecar = pod(3, &json!([]), "Running");
        sidecar.spec.as_mut().unwrap().init_containers = serde_json::from_value(json!([
            {"name": "once", "ports": [{"containerPort": 1, "hostPort": 1}]},
            {"name": "lasting", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 2}]},
        ]))
        .unwrap();
        let mut claims = Claims::default();
        claims.apply(&sidecar);
        assert_eq!(claims.served().keys().map(|place| place.port).collect::<Vec<_>>(), [2]);
    }
}

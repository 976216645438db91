//! Names of OVN and OVS objects and the keys of their `external_ids`. They are the same as in ovn-kubernetes, so that a cluster can
//! be migrated node by node, and operators find familiar names in `ovn-nbctl show`.

/// The distributed router that joins all node switches.
pub const CLUSTER_ROUTER: &str = "ovn_cluster_router";
/// The switch between the cluster router and the gateway routers.
pub const JOIN_SWITCH: &str = "join";
/// Control-plane protection profile of every router.
pub const COPP: &str = "ovnkube-default";
/// Meter of every ACL that may log.
pub const ACL_METER: &str = "acl-logging";
/// Physical network name behind the gateway bridge.
pub const PHYSICAL_NETWORK: &str = "physnet";
/// Physical network of a node's second uplink, in `ovn-bridge-mappings`.
pub const SECOND_PHYSICAL_NETWORK: &str = "exgwphysnet";
/// Load balancers for all node switches and all gateway routers.
pub const CLUSTER_LB_GROUP: &str = "clusterLBGroup";
/// Load balancers for all node switches.
pub const SWITCH_LB_GROUP: &str = "clusterSwitchLBGroup";
/// Load balancers for all gateway routers.
pub const ROUTER_LB_GROUP: &str = "clusterRouterLBGroup";
/// Interface of the node's management port.
pub const MANAGEMENT_INTERFACE: &str = "ovn-k8s-mp0";
/// Integration bridge.
pub const INTEGRATION_BRIDGE: &str = "br-int";
/// Name of the controller in `k8s.ovn.org/owner-controller` and at the head of every id.
pub const OWNER: &str = "default-network-controller";

/// Keys of `external_ids` in the northbound database.
pub mod key {
    /// Primary key of generated rows, see [`super::OwnerId`].
    pub const ID: &str = "k8s.ovn.org/id";
    /// Controller that owns the row.
    pub const OWNER_CONTROLLER: &str = "k8s.ovn.org/owner-controller";
    /// Kind of owner, such as `NetworkPolicy`.
    pub const OWNER_TYPE: &str = "k8s.ovn.org/owner-type";
    /// Name of the owner.
    pub const NAME: &str = "k8s.ovn.org/name";
    /// `Service` on load balancers.
    pub const KIND: &str = "k8s.ovn.org/kind";
    /// `namespace/name` of a load balancer's service.
    pub const OWNER: &str = "k8s.ovn.org/owner";
    /// Name of the network that a row belongs to; none on rows of the cluster's own.
    pub const NETWORK: &str = "k8s.ovn.org/network";
    /// On a pod's port on another network than the cluster's: the key of its entry in the pod's annotation.
    pub const NAD: &str = "k8s.ovn.org/nad";
    /// `namespace/name` of the `VirtualNetwork` that a row belongs to: the mark of rows that are ours.
    pub const VIRTUAL_NETWORK: &str = "slipstream.dev/virtual-network";
}

/// Router port of the cluster router towards a node switch.
pub fn router_to_switch(node: &str) -> String {
    format!("rtos-{node}")
}

/// Node switch port towards the cluster router.
pub fn switch_to_router(node: &str) -> String {
    format!("stor-{node}")
}

/// Switch port of the node's management port.
pub fn management_port(node: &str) -> String {
    format!("k8s-{node}")
}

/// Gateway router of a node.
pub fn gateway_router(node: &str) -> String {
    format!("GR_{node}")
}

/// External switch of a node.
pub fn external_switch(node: &str) -> String {
    format!("ext_{node}")
}

/// Router port of `router` (the cluster router or a gateway router) towards the join switch.
pub fn router_to_join(router: &str) -> String {
    format!("rtoj-{router}")
}

/// Join switch port towards `router`.
pub fn join_to_router(router: &str) -> String {
    format!("jtor-{router}")
}

/// Gateway router port towards the external switch.
pub fn router_to_external(node: &str) -> String {
    format!("rtoe-{}", gateway_router(node))
}

/// External switch port towards the gateway router.
pub fn external_to_router(node: &str) -> String {
    format!("etor-{}", gateway_router(node))
}

/// Name of a second uplink's switch or port, by that of the first one's.
pub fn of_second_uplink(name: &str) -> String {
    format!("exgw-{name}")
}

/// Localnet port of the external switch, also the `interface-id` in the gateway configuration.
pub fn localnet_port(bridge: &str, node: &str) -> String {
    format!("{bridge}_{node}")
}

/// Localnet port of a virtual network's switch, named as ovn-kubernetes names those of its secondary networks.
pub fn network_localnet_port(switch: &str) -> String {
    format!("{switch}_ovn_localnet_port")
}

/// Router between a virtual network and its peers.
pub fn peers_router(switch: &str) -> String {
    format!("{switch}_peers")
}

/// Port of a virtual network's router towards a peer, by the names of their switches, which have no `_`.
pub fn router_to_peer(switch: &str, peer: &str) -> String {
    format!("rtop-{switch}_{peer}")
}

/// Patch port on the gateway bridge that ovn-controller creates for the localnet port.
pub fn patch_port(bridge: &str, node: &str) -> String {
    format!("patch-{}-to-{INTEGRATION_BRIDGE}", localnet_port(bridge, node))
}

/// Switch port of a pod, also the `iface-id` of its OVS interface.
pub fn pod_port(namespace: &str, pod: &str) -> String {
    format!("{namespace}_{pod}")
}

/// Switch port of a pod on another network than the cluster's, also the `iface-id` of its OVS interface. `key` is the entry's key
/// in the annotation [`POD_NETWORKS`](crate::annotation::POD_NETWORKS): `namespace/network`, or `namespace/network/interface`.
/// Different keys give different names, as the parts contain neither `.` nor `_`.
pub fn network_pod_port(key: &str, namespace: &str, pod: &str) -> String {
    format!("{}_{}", key.replace('/', "."), pod_port(namespace, pod))
}

/// Name of the gateway chassis row of a node's router port.
pub fn gateway_chassis(node: &str, chassis: &str) -> String {
    format!("{}-{chassis}", router_to_switch(node))
}

/// Name of a port group or address set: `a` and the decimal FNV-1a hash (64 bits) of the row's whole id, as a name must
/// be a valid identifier in a match.
pub fn hashed(id: &str) -> String {
    format!("a{}", crate::hash::fnv1a(id.as_bytes()))
}

/// The id `default-network-controller:TYPE:PART:PART…` of generated rows.
pub fn owner_id(owner_type: &str, parts: &[&str]) -> String {
    let mut id = format!("{OWNER}:{owner_type}");
    for part in parts {
        id.push(':');
        id.push_str(part);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_names_are_those_of_the_reference() {
        for (id, name) in [
            ("default-network-controller:Cluster:clusterPortGroup", "a13298398610555951118"),
            ("default-network-controller:NetpolNamespace:blue:Egress", "a1339415074182081584"),
            (
                "default-network-controller:PodSelector:LS{ML:{team: red,},}_LS{ML:{name: a,},}:v4",
                "a12378852315740661115",
            ),
        ] {
            assert_eq!(hashed(id), name, "{id}");
        }
    }

    #[test]
    fn an_id_joins_its_parts_by_colons() {
        assert_eq!(
            owner_id("Cluster", &["clusterPortGroup"]),
            "default-network-controller:Cluster:clusterPortGroup"
        );
    }

    #[test]
    fn ports_on_other_networks_differ_from_each_other_and_from_the_cluster_networks() {
        let port = network_pod_port("blue-net/a", "shop", "web-1");
        assert_eq!(port, "blue-net.a_shop_web-1");
        assert_ne!(port, network_pod_port("blue/net-a", "shop", "web-1"));
        assert_ne!(port, network_pod_port("blue-net/a/net2", "shop", "web-1"));
        assert_ne!(port, pod_port("shop", "web-1"));
    }

    #[test]
    fn the_patch_port_is_named_after_the_localnet_port() {
        assert_eq!(patch_port("breth0", "n1"), "patch-breth0_n1-to-br-int");
    }
}

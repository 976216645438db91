//! Evaluates the eligibility rules on OVS, pods and uplink, and writes the resulting paths to the cache.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::ovn_name::{INTEGRATION_BRIDGE, MANAGEMENT_INTERFACE};
use ebpf::layout::scope;
use nix::net::if_::if_nametoindex;
use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};

use crate::attach::Names;
use crate::attach::shim_ovs_end;
use crate::flow_cache::cache::{GatewayEnd, Underlay};
use crate::flow_cache::eligibility::error::TunnelError;
use crate::flow_cache::eligibility::flow_actions::FlowExclusions;
use crate::flow_cache::eligibility::rules::{self, Mirrored, NodePlace, Pod};
use crate::flow_cache::invalidation::{Cause, Input};
use crate::flow_cache::physical::Physical;
use crate::flow_cache::state::ports::host_veth;
use crate::flow_cache::state::view::View;
use crate::flow_cache::state::{Decided, Exclusions, STARTING, Shared};
use crate::kernel::link::LinkError;
use crate::ovs::ports::PodPort;
use api::admin::{EndpointStatus, NodePath, Path, PathStatus};

/// Why the uplink and its bridge cannot be an end of the fast path.
#[derive(Debug, thiserror::Error)]
enum EndError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("bridge {bridge} has no MAC address")]
    NoMac { bridge: String },
    #[error("tunnel endpoint {address} (ovn-encap-ip) is not an address of the gateway bridge {bridge}")]
    NotOfBridge { address: std::net::Ipv4Addr, bridge: String },
}

impl View {
    fn decide(
        &self,
        shared: &Shared,
        bridge: Option<&str>,
        exclusions: &Exclusions,
        queues: &HashMap<u32, String>,
        physical: &Physical,
    ) -> (Decided, Result<std::net::Ipv4Addr, TunnelError>) {
        let node = self.node_with(shared, &exclusions.integration);
        let snapshot = self.ovs.replica().read();
        let mirrors = || snapshot.table::<Mirror>().iter().map(AsRef::as_ref);
        let find = |name: &str| snapshot.table::<Bridge>().by_index("name", name).next().cloned();
        let gateway = bridge.and_then(find);
        let copied = gateway.as_ref().map(|row| Mirrored::of(row, mirrors())).unwrap_or_default();
        let named = |name: &str| snapshot.table::<Port>().by_index("name", name).next().cloned();
        let port = named(&shim_ovs_end(&self.uplink)).or_else(|| named(&self.uplink));
        let endpoint = match snapshot.table::<OpenVSwitch>().iter().next() {
            Some(system) => {
                let interfaces = snapshot.table::<Interface>().iter().map(AsRef::as_ref);
                rules::tunnel_endpoint(system, gateway.as_deref(), port.as_deref(), &copied, interfaces)
            }
            None => Err(TunnelError::NoDatabase),
        };
        let mirrored = find(INTEGRATION_BRIDGE).map(|row| Mirrored::of(&row, mirrors())).unwrap_or_default();
        let mut endpoints = Vec::new();
        for interface in snapshot.table::<Interface>().iter() {
            let Some(pod) = PodPort::of(interface) else { continue };
            let (id, port) = (pod.id(), named(&interface.name));
            let path = match (&node.path, port) {
                (Path::Ovs, _) => PathStatus::ovs(format!("node: {}", node.reason)),
                (Path::Ebpf, None) => PathStatus::ovs("no OVS port yet"),
                (Path::Ebpf, Some(port)) => {
                    let known = self.pods.of_port(&pod).unwrap_or_default();
                    let host = if_nametoindex(Names::of(&id).host.as_str());
                    let queue = host.ok().and_then(|host| queues.get(&host));
                    let pod = Pod {
                        port: &port,
                        interface,
                        wanted: known.path.as_deref(),
                        forwards: known.forwards,
                        queue: queue.map(String::as_str),
                    };
                    rules::endpoint(pod, &mirrored, &exclusions.integration, &physical.paths)
                }
            };
            endpoints.push(EndpointStatus { id, port: pod.iface_id, addresses: pod.addresses, path });
        }
        endpoints.sort_by(|a, b| (&a.port, &a.id).cmp(&(&b.port, &b.id)));
        let tunnel = match (&node.path, &endpoint) {
            (Path::Ovs, _) => PathStatus::ovs(format!("node: {}", node.reason)),
            (_, Ok(_)) => PathStatus::ebpf("eligible"),
            (_, Err(why)) => PathStatus::ovs(why.to_string()),
        };
        let own = bridge.and_then(named);
        let management = named(MANAGEMENT_INTERFACE);
        let row_of = |port: &Port| {
            let uuid = port.interfaces.iter().next()?;
            snapshot.table::<Interface>().get(uuid).cloned()
        };
        let place = |port: &Option<Arc<Port>>, mirrored| {
            let port = port.clone()?;
            let index = if_nametoindex(port.name.as_str()).ok();
            let queue = index.and_then(|index| queues.get(&index)).cloned();
            Some(NodePlace { interface: row_of(&port)?, port, mirrored, queue })
        };
        let gateway = match (&node.path, shared.gateway_unsynced()) {
            (Path::Ovs, _) => PathStatus::ovs(format!("node: {}", node.reason)),
            (_, Some(why)) => PathStatus::ovs(why),
            (_, None) => {
                let places = [place(&port, &copied), place(&own, &copied), place(&management, &mirrored)];
                rules::gateway(gateway.as_deref(), &places, &exclusions.gateway)
            }
        };
        (Decided { node, tunnel, gateway, gateway_end: None, underlay: None, endpoints }, endpoint)
    }

    /// Path of the node and the reason for it.
    pub(super) fn node(&self, shared: &Shared) -> PathStatus {
        self.node_with(shared, &shared.exclusions().0.integration)
    }

    fn node_with(&self, shared: &Shared, exclusions: &FlowExclusions) -> PathStatus {
        if shared.cache.is_none() {
            return PathStatus::ovs(shared.without());
        }
        let wanted = shared.wanted();
        if wanted == NodePath::Ovs {
            return PathStatus::ovs("requested for the node (slipctl path node ovs)");
        }
        let (Some(system), Some(integration)) = (self.ovs.system(), self.ovs.bridge(INTEGRATION_BRIDGE))
        else {
            return PathStatus::ovs("no bridge br-int yet; waiting for ovn-controller");
        };
        let copied = self.copies();
        let snapshot = self.ovs.replica().read();
        let interfaces = snapshot.table::<Interface>().iter().map(AsRef::as_ref);
        match rules::node(&system, &integration, exclusions, interfaces).or(copied) {
            Some(why) => PathStatus::ovs(why),
            None if wanted == NodePath::Ebpf => {
                PathStatus::ebpf("requested for the node (slipctl path node ebpf)")
            }
            None => PathStatus::ebpf("eligible"),
        }
    }

    /// Why mirrors make the node ineligible.
    fn copies(&self) -> Option<String> {
        let gateway = self.bridge();
        let snapshot = self.ovs.replica().read();
        snapshot.table::<Mirror>().iter().next()?;
        let named = |name: &str| snapshot.table::<Port>().by_index("name", name).next().cloned();
        let shim = named(&shim_ovs_end(&self.uplink));
        let pods = snapshot.table::<Interface>().iter().filter(|row| PodPort::of(row).is_some());
        let others = [self.uplink.as_str(), MANAGEMENT_INTERFACE].into_iter().chain(gateway.as_deref());
        let names = pods.map(|row| row.name.as_str()).chain(others);
        let ruled = names.filter_map(named).chain(shim.clone()).map(|port| port.uuid).collect();
        let bridges = [INTEGRATION_BRIDGE].into_iter().chain(gateway.as_deref());
        bridges.filter_map(|name| snapshot.table::<Bridge>().by_index("name", name).next().cloned()).find_map(
            |bridge| {
                let mirrors = snapshot.table::<Mirror>().iter().map(AsRef::as_ref);
                rules::copies(&bridge.name, &Mirrored::of(&bridge, mirrors), &ruled, shim.is_some())
            },
        )
    }

    /// What the fast path needs to know of the gateway bridge.
    async fn gateway_end(&self, bridge: &str) -> Result<GatewayEnd, EndError> {
        let uplink = self.netlink.get(&self.uplink).await?;
        let own = self.netlink.get(bridge).await?;
        let mac = own.mac.ok_or_else(|| EndError::NoMac { bridge: bridge.to_owned() })?;
        Ok(GatewayEnd { mac, mtu: uplink.mtu })
    }

    /// Checks the tunnel endpoint of the database against the kernel's links and addresses.
    async fn underlay(&self, bridge: &str, address: std::net::Ipv4Addr) -> Result<Underlay, EndError> {
        let uplink = self.netlink.get(&self.uplink).await?;
        let holder = self.netlink.get(bridge).await?;
        let addresses = self.netlink.addresses(holder.index, bridge).await?;
        if !addresses.iter().any(|net| net.addr() == address) {
            return Err(EndError::NotOfBridge { address, bridge: bridge.to_owned() });
        }
        let mac = holder.mac.ok_or_else(|| EndError::NoMac { bridge: bridge.to_owned() })?;
        Ok(Underlay { address, mac, mtu: uplink.mtu })
    }
}

/// Evaluates all paths and writes the changed ones to the cache. `queues`: the queueing disciplines by interface index, read anew;
/// those of the round before stand when they cannot be read, and without any nothing is evaluated. `again`: programs on interfaces of
/// physical networks are looked at again.
pub(super) async fn round(
    shared: &Shared,
    view: &View,
    queues: &mut Option<HashMap<u32, String>>,
    again: bool,
) {
    if *view.ovs.replica().synced().borrow() {
        shared.update_remotes(&view.ovs);
    }
    // Before an endpoint takes part in the cache, so that what concerns its port is known.
    shared.read_ports(&view.ovs);
    let bridge = view.bridge();
    let (exclusions, number) = shared.exclusions();
    let read = view.netlink.queueing_disciplines().await;
    if let Some(read) = shared.check("read queueing disciplines", read) {
        *queues = Some(read);
    }
    let Some(queues) = queues else { return };
    let mut physical = view.physical(shared, &exclusions, queues).await;
    physical.add(shared, again);
    let (mut decided, address) = view.decide(shared, bridge.as_deref(), &exclusions, queues, &physical);
    if let (Path::Ebpf, Some(bridge), Ok(address)) = (decided.tunnel.path, &bridge, address) {
        match view.underlay(bridge, address).await {
            Ok(underlay) => decided.underlay = Some(underlay),
            Err(why) => decided.tunnel = PathStatus::ovs(why.to_string()),
        }
    }
    if let Some(held) = shared.gateway_held().filter(|_| decided.node.path == Path::Ebpf) {
        // OVS may only be starting again, and its interfaces with it.
        (decided.gateway, decided.gateway_end) = held;
    } else if let (Path::Ebpf, Some(bridge)) = (decided.gateway.path, &bridge) {
        match view.gateway_end(bridge).await {
            Ok(end) => decided.gateway_end = Some(end),
            Err(why) => decided.gateway = PathStatus::ovs(why.to_string()),
        }
    }
    let ids: BTreeSet<&str> = decided.endpoints.iter().map(|endpoint| endpoint.id.as_str()).collect();
    shared.retain_endpoints(|id| ids.contains(id));
    let left =
        |endpoint: &&EndpointStatus| shared.set_endpoint(&endpoint.id, endpoint.path.path == Path::Ebpf);
    let left: Vec<_> = decided.endpoints.iter().filter(left).filter_map(|one| host_veth(&one.id)).collect();
    physical.drop_gone(shared);
    let fast = decided.endpoints.iter().filter(|endpoint| endpoint.path.path == Path::Ebpf).count();
    shared.metrics.endpoints(fast, decided.endpoints.len() - fast);
    let (node, tunnel, underlay) = (decided.node.clone(), decided.tunnel.clone(), decided.underlay);
    let (gateway, gateway_end) = (decided.gateway.clone(), decided.gateway_end);
    let before = shared.decided(decided);
    if before.node != node {
        tracing::info!(path = ?node.path, reason = node.reason, "path of the node changed");
        if node.path == Path::Ovs && shared.wanted() == NodePath::Ebpf {
            tracing::warn!(
                reason = node.reason,
                "path `ebpf` is requested for the node, but it is not eligible"
            );
        }
    }
    if before.tunnel != tunnel {
        tracing::info!(path = ?tunnel.path, reason = tunnel.reason, "path of tunnelled packets changed");
    }
    if before.gateway != gateway {
        tracing::info!(
            path = ?gateway.path,
            reason = gateway.reason,
            "path of the node's own traffic and of that with the outside changed"
        );
    }
    let mut taken_off = shared.set_gateway(gateway_end);
    // At start, the resync invalidates all entries; the first evaluation does not.
    let starting = before.node.reason == STARTING;
    if let Some(cache) = &shared.cache
        && (before.underlay != underlay || starting)
    {
        shared.check("set the tunnel endpoint", cache.set_underlay(underlay));
        taken_off |= !starting;
    }
    shared.take(Input::Enable(node.path == Path::Ebpf && shared.wanted() != NodePath::Ovs));
    if taken_off {
        shared.take(Input::Changed(Cause::Path));
    } else if !left.is_empty() {
        // The other end of a flow whose port is gone is of no use to anybody.
        shared.take_buckets(Cause::Path, left.into_iter().map(scope::port).collect());
    }
    shared.exclusions_applied(number);
}

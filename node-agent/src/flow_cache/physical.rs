//! Evaluates the eligibility rules on bridges that lead to physical networks, and tells the cache of their interfaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::admin::{Path, PathStatus};
use api::ovn_name::INTEGRATION_BRIDGE;
use ovsdb_client::Uuid;
use ovsdb_client::vswitch::{Bridge, Interface, Port};

use super::cache::PhysicalPort;
use super::eligibility::physical::{self as rules, BridgePort, Link, Way};
use super::state::view::View;
use super::state::{Exclusions, Shared};
use crate::attach;

/// What was found of all of them.
#[derive(Debug, Default)]
pub(super) struct Physical {
    /// Paths of the physical networks, by the OpenFlow ports of br-int that lead there.
    pub(super) paths: BTreeMap<u32, PathStatus>,
    /// The interfaces to which programs are to be attached.
    pub(super) interfaces: BTreeMap<u32, PhysicalPort>,
}

/// A bridge with its way to the physical network, or why it has none that the cache could use.
struct Found {
    bridge: Arc<Bridge>,
    way: Result<Way, String>,
    /// OpenFlow ports of br-int that lead to the bridge.
    inner: Vec<u32>,
}

impl Found {
    /// Whether its port is the shim of a second uplink, to which the gateway attaches the programs.
    fn is_interposed(&self) -> bool {
        let uplink = self.bridge.external_ids.get("bridge-uplink");
        let shim = uplink.map(|uplink| attach::shim_ovs_end(uplink));
        self.way.as_ref().is_ok_and(|way| Some(&way.interface.name) == shim.as_ref())
    }
}

impl View {
    fn found(&self, name: &str) -> Option<Found> {
        let snapshot = self.ovs.replica().read();
        let named = |name: &str| snapshot.table::<Bridge>().by_index("name", name).next().cloned();
        let bridge = named(name)?;
        let integration = named(INTEGRATION_BRIDGE)?;
        let interface = |name: &str| snapshot.table::<Interface>().by_index("name", name).next().cloned();
        let row = |uuid: &Uuid| snapshot.table::<Interface>().get(uuid).cloned();
        let ports = bridge.ports.iter().filter_map(|uuid| snapshot.table::<Port>().get(uuid));
        let with_rows =
            |port: &Arc<Port>| (Arc::clone(port), port.interfaces.iter().filter_map(row).collect());
        let ports: Vec<BridgePort> = ports.map(with_rows).collect();
        let is_inner = |name: &str| {
            let port = snapshot.table::<Port>().by_index("name", name).next();
            port.is_some_and(|port| integration.ports.contains(&port.uuid))
        };
        let way = rules::way(name, &ports, is_inner);
        let peers = ports.iter().flat_map(|(_, interfaces)| interfaces);
        let peers = peers.filter_map(|row| interface(row.options.get("peer")?));
        let inner = peers.filter_map(|row| u32::try_from(row.ofport?).ok()).collect();
        Some(Found { bridge, way, inner })
    }

    async fn look(
        &self,
        shared: &Shared,
        found: &Found,
        exclusions: &Exclusions,
        queues: &HashMap<u32, String>,
        interfaces: &mut BTreeMap<u32, PhysicalPort>,
    ) -> PathStatus {
        let Found { bridge, way, .. } = found;
        if shared.netdev {
            return PathStatus::ovs(format!(
                "bridge {} is of OVS's userspace datapath, which reads packets before any program",
                bridge.name
            ));
        }
        let way = match way {
            Ok(way) => way,
            Err(why) => return PathStatus::ovs(why.clone()),
        };
        let (link, own) =
            (self.netlink.find(&way.interface.name).await, self.netlink.find(&bridge.name).await);
        let (link, own) = match (link, own) {
            (Ok(link), Ok(own)) => (link, own),
            (Err(error), _) | (_, Err(error)) => return PathStatus::ovs(error.to_string()),
        };
        // With programs whatever else is: what changes from moment to moment attaches and detaches nothing.
        if let Some(link) = &link {
            interfaces.insert(link.index, PhysicalPort::Interface { fast: false });
            interfaces.extend(own.map(|own| (own.index, PhysicalPort::Own)));
        }
        if self.second_bridge().as_ref() == Some(&bridge.name) {
            return PathStatus::ovs(format!("bridge {} is the second uplink's", bridge.name));
        }
        let number = match shared.physical_number(&bridge.name) {
            Ok(number) => number,
            Err(why) => return PathStatus::ovs(why),
        };
        let known = link
            .as_ref()
            .map(|link| Link { mtu: link.mtu, queue: queues.get(&link.index).map(String::as_str) });
        let none = Arc::default();
        let flows = exclusions.physical.get(&number).unwrap_or(&none);
        let path = rules::path(bridge, way, flows, known, self.pod_mtu);
        if let (Path::Ebpf, Some(link)) = (path.path, link) {
            interfaces.insert(link.index, PhysicalPort::Interface { fast: true });
        }
        path
    }

    /// Looks at all of them.
    pub(super) async fn physical(
        &self,
        shared: &Shared,
        exclusions: &Exclusions,
        queues: &HashMap<u32, String>,
    ) -> Physical {
        let mut all = Physical::default();
        for name in self.physical_bridges().into_iter().chain(self.second_bridge()) {
            let Some(found) = self.found(&name) else { continue };
            if found.is_interposed() {
                continue;
            }
            let path = self.look(shared, &found, exclusions, queues, &mut all.interfaces).await;
            all.paths.extend(found.inner.iter().map(|port| (*port, path.clone())));
        }
        all
    }
}

impl Physical {
    /// Attaches programs to what is new, before any endpoint uses it; what goes keeps them for now. On failure no endpoint will.
    pub(super) fn add(&mut self, shared: &Shared, again: bool) {
        let mut merged = shared.physical_sent();
        merged.retain(|ifindex, _| nix::net::if_::if_indextoname(*ifindex).is_ok());
        merged.extend(&self.interfaces);
        if !shared.set_physical(&merged, again) {
            let why =
                "the programs cannot be attached to an interface of a physical network (see the agent's log)";
            self.paths.values_mut().for_each(|path| *path = PathStatus::ovs(why));
        }
    }

    /// Lets go of what is gone, when no endpoint uses it any more.
    pub(super) fn drop_gone(&self, shared: &Shared) {
        shared.set_physical(&self.interfaces, false);
    }
}

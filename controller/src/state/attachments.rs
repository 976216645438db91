//! A pod's interfaces on virtual networks: what it asks for becomes what it gets, once, when it is made. Later changes of what it asks
//! for are nothing to a pod that runs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::NamespacedName;
use api::annotation::{DEFAULT_NETWORK, PodNetwork, PodRoute, ROLE_SECONDARY};
use api::pod_attachments::{
    Attachment, Iface, PRIMARY, PodAttachments, REQUEST, ROUTES, SELECTIONS, StaticIp,
};
use ipnet::IpNet;

use super::asked::{Asked, Refusal, Refused};
use super::definitions::all_of;
use super::ipam_claims::Used;
use super::pod_object::object;
use super::{Effects, Notice, NoticeKind, State};
use crate::alloc::{GrantError, Owner, Wish};
use crate::config::same_family;
use crate::index::Attached;
use crate::index::convert::SeenPod;

/// The key of an attachment in the pod's annotation: the network's name, and the interface's as well where another attachment of the
/// pod has the key.
fn key(network: &NamespacedName, interface: &str, taken: &[Attached]) -> String {
    let short = network.to_string();
    match taken.iter().any(|attached| attached.key == short) {
        true => format!("{short}/{interface}"),
        false => short,
    }
}

/// The annotation that asks for what comes with the first interface alone.
fn needs_default_network(request: &PodAttachments) -> Option<&'static str> {
    match (request.attachments.is_empty(), &request.primary) {
        (false, _) => Some(REQUEST),
        (true, Some(_)) => Some(PRIMARY),
        (true, None) => None,
    }
}

/// An attachment as a pod's annotation has it.
fn from_entry(key: &str, entry: &PodNetwork) -> Option<Attached> {
    let mut parts = key.splitn(3, '/');
    let network = NamespacedName::new(parts.next()?, parts.next()?);
    Some(Attached {
        key: key.to_owned(),
        network,
        interface: entry.interface.clone()?,
        addresses: entry.ip_addresses.clone(),
        mac: entry.mac_address,
        default_gateways: entry.gateway_ips.clone(),
        routes: entry.routes.clone(),
        mtu: entry.mtu.unwrap_or_default(),
        detect_duplicates: entry.detect_duplicates,
    })
}

/// The entry of an attachment in the pod's annotation.
fn entry(attached: &Attached) -> PodNetwork {
    let only = |count: usize| count == 1;
    PodNetwork {
        ip_addresses: attached.addresses.clone(),
        mac_address: attached.mac,
        gateway_ips: attached.default_gateways.clone(),
        routes: attached.routes.clone(),
        ip_address: attached.addresses.first().copied().filter(|_| only(attached.addresses.len())),
        gateway_ip: attached
            .default_gateways
            .first()
            .copied()
            .filter(|_| only(attached.default_gateways.len())),
        role: Some(ROLE_SECONDARY.to_owned()),
        interface: Some(attached.interface.clone()),
        mtu: Some(attached.mtu).filter(|mtu| *mtu > 0),
        detect_duplicates: attached.detect_duplicates,
    }
}

/// The entries of the pod's annotation: the cluster's network, without a gateway of a family whose default route goes through
/// another interface, and the others.
pub(super) fn entries(
    mut default: Option<PodNetwork>,
    attachments: &[Attached],
) -> api::annotation::PodNetworks {
    let elsewhere: Vec<_> = attachments.iter().flat_map(|attached| &attached.default_gateways).collect();
    let stays = |ip: &IpAddr| !elsewhere.iter().any(|other| same_family(**other, *ip));
    if let Some(default) = &mut default {
        default.gateway_ips.retain(stays);
        default.gateway_ip = default.gateway_ip.filter(stays);
    }
    let default = default.map(|default| (DEFAULT_NETWORK.to_owned(), default));
    let others = attachments.iter().map(|attached| (attached.key.clone(), entry(attached)));
    api::annotation::PodNetworks(others.chain(default).collect())
}

/// The list for older readers.
pub(super) fn iface_list(attachments: &[Attached], state: &State) -> String {
    let one = |attached: &Attached| {
        let address = attached.addresses.first();
        let network = state.index.networks.ready.get(&attached.network);
        let subnet = network.and_then(|network| {
            network.subnets.iter().find(|subnet| address.is_some_and(|net| subnet.net.contains(&net.addr())))
        });
        let own = attached.default_gateways.first().copied();
        Iface {
            ip_address: address.map(ToString::to_string).unwrap_or_default(),
            mac_address: attached.mac.to_string(),
            gateway_ip: own
                .or(subnet.map(|subnet| subnet.gateway))
                .map(|ip| ip.to_string())
                .unwrap_or_default(),
            interface: attached.interface.clone(),
            default_gateway: (!attached.default_gateways.is_empty()).to_string(),
        }
    };
    api::pod_attachments::iface_list(&attachments.iter().map(one).collect::<Vec<_>>())
}

/// One interface that a pod gets.
struct One {
    attached: Attached,
    owner: Owner,
    /// The pod had no address on this interface before.
    is_new: bool,
    claim: Option<Used>,
}

impl State {
    /// The pod's attachments, with addresses that are its own from now on; `None` until the pod that used a claim of it before is gone.
    pub(super) fn attach(&mut self, seen: &SeenPod) -> Result<Option<Vec<Attached>>, Box<Refusal>> {
        if let Some(kept) = self.kept_attachments(seen) {
            for attached in &kept {
                self.keep(seen, attached)?;
            }
            return Ok(Some(kept));
        }
        let no_network = match self.config.default_network {
            true => "no network",
            false => "no interface on a virtual network",
        };
        let trouble = |kind: NoticeKind, message: String| Notice {
            kind,
            object: Some(object(seen)),
            message: format!("pod {}: {message}; the pod gets {no_network} until then", seen.pod.name),
        };
        let request =
            seen.request.as_ref().map_err(|error| trouble(NoticeKind::Malformed, error.to_string()))?;
        if !self.config.default_network
            && let Some(key) = needs_default_network(request)
        {
            let message = format!(
                "annotation {key}: another plugin has the cluster's network (--default-network=false), and no call comes for what this \
                 annotation asks for; name NetworkAttachmentDefinitions of type slipstream-cni in annotation {SELECTIONS}"
            );
            return Err(trouble(NoticeKind::Malformed, message).into());
        }
        let selected = self.selected(seen).map_err(|(kind, error)| trouble(kind, error))?;
        let wanted = all_of(request, selected).map_err(|error| trouble(NoticeKind::Malformed, error))?;
        let mut found: Vec<Attached> = Vec::new();
        let mut fresh: Vec<(NamespacedName, Owner)> = Vec::new();
        let mut used: Vec<(Used, String)> = Vec::new();
        let mut failed = None;
        for (key, wanted) in &wanted {
            match self.attach_one(seen, wanted, &found) {
                Ok(One { attached, owner, is_new, claim }) => {
                    fresh.extend(is_new.then(|| (attached.network.clone(), owner)));
                    used.extend(claim.map(|claim| (claim, attached.interface.clone())));
                    found.push(attached);
                }
                Err(Refused::Soon) => {
                    failed = Some(None);
                    break;
                }
                Err(Refused::Told(kind, error, of_another)) => {
                    let message = format!("annotation {key}: interface {}: {error}", wanted.interface);
                    failed = Some(Some(Box::new(Refusal { notice: trouble(kind, message), of_another })));
                    break;
                }
            }
        }
        let failed = failed.or_else(|| {
            let error = self.add_routes(request, &mut found).err()?;
            Some(Some(trouble(NoticeKind::Malformed, format!("annotation {ROUTES}: {error}")).into()))
        });
        self.networks.touched.extend(found.iter().map(|attached| attached.network.clone()));
        let Some(refusal) = failed else {
            self.add_peer_routes(&mut found);
            for (claim, interface) in used {
                self.hold(claim, seen, &interface);
            }
            return Ok(Some(found));
        };
        // All or nothing.
        for (network, owner) in fresh {
            self.network_ipam.take_back(&network, &owner, self.now);
        }
        for (claim, _) in used {
            self.forget_unless_known(&claim.name);
        }
        refusal.map_or(Ok(None), Err)
    }

    /// The attachments of a pod that has been made before; none if it has not been.
    pub(super) fn kept_attachments(&self, seen: &SeenPod) -> Option<Vec<Attached>> {
        let old = self.index.pods.get(&seen.pod.name).filter(|old| old.uid == seen.pod.uid);
        if let Some(old) = old.filter(|old| !old.addresses.is_empty() || !old.attachments.is_empty()) {
            return Some(old.attachments.clone());
        }
        if !seen.pod.attachments.is_empty() {
            return Some(seen.pod.attachments.clone());
        }
        let was_made = seen.believed
            && (matches!(seen.networks, Some(Ok(_)))
                || (!self.config.default_network && !seen.others.is_empty()));
        if !was_made {
            return None;
        }
        let kept: Vec<Attached> =
            seen.others.iter().filter_map(|(key, entry)| from_entry(key, entry)).collect();
        // A network that is not known gives nothing, and what it may give is judged where its rows are planned.
        let may_have = |attached: &Attached| {
            let network = self.index.networks.ready.get(&attached.network);
            network.is_none_or(|network| network.serves(&seen.pod.name.namespace))
        };
        kept.iter().all(may_have).then_some(kept)
    }

    /// Claims what a pod has. A network that is not there is no reason to take its other interfaces.
    fn keep(&mut self, seen: &SeenPod, attached: &Attached) -> Result<(), Notice> {
        let owner = Owner { uid: seen.pod.uid.clone(), key: attached.key.clone() };
        // A pod uses the claim that it named when it was made.
        let used = seen.believed.then(|| self.claim_of(seen, attached)).flatten();
        if self.network_ipam.get(&attached.network, &owner).is_some() {
            if let Some(used) = used {
                self.network_ipam.adopt(&attached.network, &owner, &used.name, self.now);
                self.hold(used, seen, &attached.interface);
            }
            return Ok(());
        }
        let ips: Vec<StaticIp> =
            attached.addresses.iter().map(|net| StaticIp { ip: net.addr(), prefix_len: None }).collect();
        let claim = used.as_ref().map(|used| &used.name);
        let wish = Wish { ips: &ips, mac: Some(attached.mac), claim, is_old: true };
        self.networks.touched.insert(attached.network.clone());
        match self.network_ipam.give(&attached.network, &owner, wish, self.now) {
            Ok(_) => {
                if let Some(used) = used {
                    self.hold(used, seen, &attached.interface);
                }
                Ok(())
            }
            Err(GrantError::NotReady) => Ok(()),
            Err(error) => Err(Notice {
                kind: NoticeKind::Network,
                object: Some(object(seen)),
                message: format!(
                    "pod {}: interface {} on virtual network {}: {error}; the pod must be made again",
                    seen.pod.name, attached.interface, attached.network
                ),
            }),
        }
    }

    fn attach_one(
        &mut self,
        seen: &SeenPod,
        wanted: &Attachment,
        found: &[Attached],
    ) -> Result<One, Refused> {
        let network = self
            .resolve(&seen.pod.name.namespace, &wanted.network)
            .map_err(|error| (NoticeKind::Network, error))?;
        self.physical_networks
            .check(&seen.pod.node, network)
            .map_err(|error| (NoticeKind::Network, error))?;
        let claim = self.claim_for(seen, wanted, network)?;
        let (name, mtu) = (network.name.clone(), network.mtu);
        let is_physical = network.localnet.is_some();
        let subnets = network.subnets.clone();
        let default_gateways = match (wanted.default_route, wanted.gateways.is_empty()) {
            (true, true) => subnets.iter().map(|subnet| subnet.gateway).collect(),
            (true, false) => wanted.gateways.clone(),
            (false, _) => Vec::new(),
        };
        let is_held = |gateway: &&IpAddr| !subnets.iter().any(|subnet| subnet.net.contains(*gateway));
        if let Some(gateway) = wanted.gateways.iter().find(is_held) {
            let error = format!("gateway {gateway} is not an address of virtual network {name}");
            return Err((NoticeKind::Malformed, error).into());
        }
        let key = key(&name, &wanted.interface, found);
        let owner = Owner { uid: seen.pod.uid.clone(), key: key.clone() };
        let is_new = self.network_ipam.get(&name, &owner).is_none();
        let ips = claim.as_ref().map_or(&wanted.ips, |claim| &claim.ips);
        // Others may have an address there of which the controller does not know.
        let detect_duplicates = is_physical && !ips.is_empty();
        let wish =
            Wish { ips, mac: wanted.mac, claim: claim.as_ref().map(|claim| &claim.name), is_old: false };
        let grant = self.network_ipam.give(&name, &owner, wish, self.now).map_err(|error| {
            let kind = match error {
                GrantError::Exhausted(_) => NoticeKind::NetworkExhausted,
                _ => NoticeKind::Network,
            };
            Refused::Told(kind, format!("virtual network {name}: {error}"), Asked::of(&error, &name))
        })?;
        let attached = Attached {
            key,
            network: name,
            interface: wanted.interface.clone(),
            addresses: grant.addresses,
            mac: grant.mac,
            default_gateways,
            routes: Vec::new(),
            mtu,
            detect_duplicates,
        };
        Ok(One { attached, owner, is_new, claim })
    }

    /// Gives each route to the interface whose network has the next hop.
    fn add_routes(&self, request: &PodAttachments, found: &mut [Attached]) -> Result<(), String> {
        for route in &request.routes {
            let has = |attached: &Attached| {
                let network = self.index.networks.ready.get(&attached.network);
                network.is_some_and(|network| network.holds(&[IpNet::from(route.next_hop)]))
            };
            let Some(attached) = found.iter_mut().find(|attached| has(attached)) else {
                return Err(format!(
                    "the route to {}: next hop {} is an address of none of the networks that the pod asks for",
                    route.dest, route.next_hop
                ));
            };
            attached.routes.push(PodRoute { dest: route.dest, next_hop: route.next_hop });
        }
        Ok(())
    }

    /// The notice for the pod that has what a waiting pod asks for.
    pub(super) fn conflict_of(&self, waiting: &NamespacedName, refusal: &Refusal) -> Option<Notice> {
        let Asked { uid, what, network } = refusal.of_another.as_ref()?;
        // Only when something new is told of a pod.
        let (holder, _) =
            self.uids.iter().find(|(_, other)| *other == uid).filter(|(name, _)| *name != waiting)?;
        Some(Notice {
            kind: NoticeKind::AddressConflict,
            object: Some(self.pod_object(holder)),
            message: format!(
                "pod {holder}: pod {waiting} asks for its {what} on virtual network {network}, and waits until this pod is gone"
            ),
        })
    }

    /// A network of this name changed, or addresses of it are free: pods may have waited for it, the oldest first.
    pub(super) fn retry_pods_of_network(&mut self, name: &str, effects: &mut Effects) {
        for pod in self.waiting.of_network(name, self.definitions.naming(name)) {
            if let Some(seen) = self.waiting.get(&pod).cloned() {
                self.apply_pod(seen, effects);
            }
        }
    }

    /// Pods of these networks gave back addresses.
    pub(super) fn addresses_are_free(&mut self, networks: BTreeSet<NamespacedName>, effects: &mut Effects) {
        let names: BTreeSet<String> = networks.iter().map(|network| network.name.clone()).collect();
        self.retry_claims(&networks, effects);
        for network in &networks {
            self.retry_gateway(network, effects);
        }
        self.networks.touched.extend(networks);
        for name in names {
            self.retry_pods_of_network(&name, effects);
        }
    }
}

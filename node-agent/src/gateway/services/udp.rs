//! Which UDP addresses of services lead to which backends, and which led there once. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use api::addr::Family;
use api::service::{Condition, EndpointSlice, Front, Service};
use api::{NamespacedName, Protocol};
use ipnet::IpNet;

/// Address and port of a backend.
pub type Backend = (IpAddr, u16);

/// A backend behind one of a service's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Translation {
    /// The destination before OVN's load balancer.
    pub front: Front,
    /// The destination after it; of the front's family.
    pub backend: Backend,
}

/// Where a client of a service is, as far as traffic policies tell clients apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// A process of this node in the node's own network. Where it asks an external address, the node makes that the cluster address, and
    /// OVN's gateway router has all backends behind it.
    Node,
    /// Another of the cluster's addresses: a pod.
    Cluster,
    /// Anything else, other nodes too.
    Outside,
}

/// Tracked connections that do not do what services say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stale {
    /// Connections to a backend that the service does not have any more.
    Backend(Translation),
    /// Connections to a backend of another node, which a traffic policy `Local` refuses to these clients. Others may have it still.
    Refused(Translation, Client),
    /// Connections that were made before the service, and are not translated. A node port is served in the families of its service only.
    Untranslated(Front, Family),
}

/// The UDP translations that are in force at one time.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// Fronts of all services by family, with how many service ports have each.
    fronts: HashMap<(Front, Family), usize>,
    /// Translations, with how many slices lead to each.
    translations: HashMap<Translation, usize>,
    /// Translations among `translations` that some clients do not get on this node, with how many slices refuse each.
    refused: HashMap<(Translation, Client), usize>,
    /// Ranges of the cluster: pods, services and what OVN's routers have.
    cluster: Arc<[IpNet]>,
}

impl InForce {
    /// Whether a service has this translation.
    pub fn contains(&self, translation: &Translation) -> bool {
        self.translations.contains_key(translation)
    }

    /// What is stale now of connections that were: a backend that is back may be refused to some clients.
    pub fn still(&self, stale: &Stale) -> Option<Stale> {
        match stale {
            Stale::Backend(translation) | Stale::Refused(translation, _) => self.unwanted(*translation),
            Stale::Untranslated(front, family) => {
                self.fronts.contains_key(&(*front, *family)).then_some(*stale)
            }
        }
    }

    /// Which connections with a translation are stale.
    fn unwanted(&self, translation: Translation) -> Option<Stale> {
        if !self.contains(&translation) {
            return Some(Stale::Backend(translation));
        }
        let refused = |client: &Client| self.refused.contains_key(&(translation, *client));
        let client = [Client::Outside, Client::Cluster].into_iter().find(refused)?;
        Some(Stale::Refused(translation, client))
    }

    /// Ranges of the cluster, whose addresses are not outside.
    pub fn cluster(&self) -> Arc<[IpNet]> {
        Arc::clone(&self.cluster)
    }

    /// What a tracked connection to `destination`, translated to `backend` or not, is to services; `None` if it is as it should be, or to
    /// no service's address. A host port may have the number of a node port and goes first; its connections are said to be stale, and end
    /// with no harm but a new choice of the same pod.
    ///
    /// `is_own`: the destination is an address of this node, where it translates node ports.
    pub fn stale(
        &self,
        destination: (IpAddr, u16),
        is_own: bool,
        backend: Option<Backend>,
        client: Client,
    ) -> Option<Stale> {
        let [address, node_port] = Front::candidates(destination);
        let family = Family::of(destination.0);
        let has = |front: &Front| self.fronts.contains_key(&(*front, family));
        let Some(backend) = backend else {
            let untranslated = [Some(address), is_own.then_some(node_port)];
            let front = untranslated.into_iter().flatten().find(has);
            return front.map(|front| Stale::Untranslated(front, family));
        };
        let front = [address, node_port].into_iter().find(has)?;
        let stale = self.unwanted(Translation { front, backend });
        stale.filter(|stale| !matches!(stale, Stale::Refused(_, whose) if *whose != client))
    }

    /// Whether a connection that a load balancer translated has a destination of no service any more.
    pub fn unserved(&self, destination: (IpAddr, u16), backend: Backend) -> bool {
        let is_in_cluster = |ip: IpAddr| self.cluster.iter().any(|range| range.contains(&ip));
        let family = Family::of(destination.0);
        !Front::candidates(destination).iter().any(|front| self.fronts.contains_key(&(*front, family)))
            && (is_in_cluster(destination.0) || is_in_cluster(backend.0))
    }
}

/// What is kept of a slice: its service, and the backends by the name of the service port.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    owner: NamespacedName,
    backends: BTreeSet<Endpoint>,
}

/// A backend of a slice.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Endpoint {
    /// Name of the service port.
    port: String,
    backend: Backend,
    /// True for an endpoint on this node.
    here: bool,
}

/// Which backends are behind an address of a service on this node, by its traffic policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Behind {
    /// Backends of all nodes.
    All,
    /// A traffic policy `Local`: those of this node for such clients, all for others.
    OwnFor(Client),
}

/// Where a service is reached: the name of the service port, the address, its family, and what is behind it.
type Reached = (String, Front, Family, Behind);

/// UDP ports of all services, and their backends on all nodes.
#[derive(Debug, Default)]
pub(super) struct UdpServices {
    /// Name of this node.
    node: String,
    services: BTreeMap<NamespacedName, BTreeSet<Reached>>,
    slices: BTreeMap<NamespacedName, Kept>,
    /// Slices of each service.
    of: HashMap<NamespacedName, BTreeSet<NamespacedName>>,
    in_force: InForce,
    /// What became stale since it was asked for.
    stale: BTreeSet<Stale>,
}

impl UdpServices {
    /// For the node `node`, in a cluster with these ranges.
    pub(super) fn new(node: &str, cluster: &[IpNet]) -> Self {
        let in_force = InForce { cluster: cluster.into(), ..InForce::default() };
        Self { node: node.to_owned(), in_force, ..Self::default() }
    }

    /// Sets the state of a service; `None`: it was deleted.
    pub(super) fn set_service(&mut self, name: &NamespacedName, service: Option<&Service>) {
        let new = service.map(fronts).unwrap_or_default();
        let old = self.services.remove(name).unwrap_or_default();
        if new != old {
            let slices = self.of.get(name).into_iter().flatten();
            let slices = slices.filter_map(|slice| self.slices.get(slice));
            let changes: Vec<_> = slices.map(|slice| (Led::of(&old, slice), Led::of(&new, slice))).collect();
            for (_, front, family, _) in &new {
                let uses = self.in_force.fronts.entry((*front, *family)).or_default();
                *uses += 1;
                if *uses == 1 {
                    self.stale.insert(Stale::Untranslated(*front, *family));
                }
            }
            for (_, front, family, _) in &old {
                if lose(&mut self.in_force.fronts, &(*front, *family)) {
                    self.stale.remove(&Stale::Untranslated(*front, *family));
                }
            }
            for (before, after) in &changes {
                self.change(before, after);
            }
        }
        if !new.is_empty() {
            self.services.insert(name.clone(), new);
        }
    }

    /// Sets the state of a slice; `None`: it was deleted.
    pub(super) fn set_slice(&mut self, name: &NamespacedName, slice: Option<&EndpointSlice>) {
        let new = slice
            .and_then(|slice| Some(Kept { owner: slice.owner()?, backends: backends(slice, &self.node) }));
        let new = new.filter(|kept| !kept.backends.is_empty());
        let old = self.slices.remove(name);
        let of = |kept: &Option<Kept>| -> Led {
            let reached = kept.as_ref().and_then(|kept| Some((self.services.get(&kept.owner)?, kept)));
            reached.map(|(reached, kept)| Led::of(reached, kept)).unwrap_or_default()
        };
        let (before, after) = (of(&old), of(&new));
        if let Some(old) = &old
            && let Some(slices) = self.of.get_mut(&old.owner)
        {
            slices.remove(name);
            if slices.is_empty() {
                self.of.remove(&old.owner);
            }
        }
        if let Some(new) = new {
            self.of.entry(new.owner.clone()).or_default().insert(name.clone());
            self.slices.insert(name.clone(), new);
        }
        self.change(&before, &after);
    }

    fn change(&mut self, before: &Led, after: &Led) {
        // What there may be connections to: what was there, or went since it was asked for.
        let mut known = before.translations.clone();
        for translation in after.translations.difference(&before.translations) {
            *self.in_force.translations.entry(*translation).or_default() += 1;
            if self.stale.remove(&Stale::Backend(*translation)) {
                known.insert(*translation);
            }
        }
        for translation in before.translations.difference(&after.translations) {
            if lose(&mut self.in_force.translations, translation) {
                self.stale.insert(Stale::Backend(*translation));
            }
        }
        for refused @ (translation, client) in after.refused.difference(&before.refused) {
            let uses = self.in_force.refused.entry(*refused).or_default();
            *uses += 1;
            if *uses == 1 && known.contains(translation) {
                self.stale.insert(Stale::Refused(*translation, *client));
            }
        }
        for refused @ (translation, client) in before.refused.difference(&after.refused) {
            if lose(&mut self.in_force.refused, refused) {
                self.stale.remove(&Stale::Refused(*translation, *client));
            }
        }
    }

    /// Drops services that are not among `alive` (after a watch was restarted).
    pub(super) fn retain_services(&mut self, alive: &BTreeSet<NamespacedName>) {
        let dead: Vec<_> = self.services.keys().filter(|name| !alive.contains(*name)).cloned().collect();
        for name in dead {
            self.set_service(&name, None);
        }
    }

    /// Drops slices that are not among `alive` (after a watch was restarted).
    pub(super) fn retain_slices(&mut self, alive: &BTreeSet<NamespacedName>) {
        let dead: Vec<_> = self.slices.keys().filter(|name| !alive.contains(*name)).cloned().collect();
        for name in dead {
            self.set_slice(&name, None);
        }
    }

    /// The connections that became stale since the last call.
    pub(super) fn take_stale(&mut self) -> BTreeSet<Stale> {
        std::mem::take(&mut self.stale)
    }

    pub(super) fn in_force(&self) -> &InForce {
        &self.in_force
    }
}

/// Counts one use less; true if it was the last.
fn lose<K: std::hash::Hash + Eq>(uses: &mut HashMap<K, usize>, key: &K) -> bool {
    let Some(count) = uses.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let last = *count == 0;
    if last {
        uses.remove(key);
    }
    last
}

/// Where the UDP ports of a service are reached.
fn fronts(service: &Service) -> BTreeSet<Reached> {
    let udp = service.fronts().filter(|(port, _)| port.protocol == Protocol::Udp);
    let of_service: BTreeSet<Family> = service.cluster_ips.iter().copied().map(Family::of).collect();
    udp.flat_map(|(port, front)| {
        let families = match front {
            Front::Address(ip, _) => BTreeSet::from([Family::of(ip)]),
            Front::NodePort(_) => of_service.clone(),
        };
        families.into_iter().map(move |family| (port.name.clone(), front, family, behind(service, front)))
    })
    .collect()
}

fn behind(service: &Service, front: Front) -> Behind {
    let is_internal = matches!(front, Front::Address(ip, _) if service.cluster_ips.contains(&ip));
    match is_internal {
        true if service.internal_local => Behind::OwnFor(Client::Cluster),
        false if service.external_local => Behind::OwnFor(Client::Outside),
        _ => Behind::All,
    }
}

/// UDP backends of a slice that serve. `node`: the name of this node.
fn backends(slice: &EndpointSlice, node: &str) -> BTreeSet<Endpoint> {
    let ports = || slice.ports.iter().filter(|port| port.protocol == Protocol::Udp);
    let serving = slice.endpoints.iter().filter(|endpoint| endpoint.condition != Condition::NotReady);
    serving
        .flat_map(|endpoint| {
            let here = endpoint.node.as_deref() == Some(node);
            ports().map(move |port| Endpoint {
                port: port.name.clone(),
                backend: (endpoint.address, port.port),
                here,
            })
        })
        .collect()
}

/// What a slice leads to, by the addresses of its service.
#[derive(Debug, Default)]
struct Led {
    translations: BTreeSet<Translation>,
    /// Translations among `translations` that some clients do not get.
    refused: BTreeSet<(Translation, Client)>,
}

impl Led {
    fn of(reached: &BTreeSet<Reached>, slice: &Kept) -> Self {
        let mut led = Self::default();
        for Endpoint { port, backend, here } in &slice.backends {
            let family = Family::of(backend.0);
            for (_, front, _, behind) in
                reached.iter().filter(|(name, _, of, _)| name == port && *of == family)
            {
                let translation = Translation { front: *front, backend: *backend };
                if let (Behind::OwnFor(client), false) = (behind, *here) {
                    led.refused.insert((translation, *client));
                }
                led.translations.insert(translation);
            }
        }
        led
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;

//! Which UDP addresses of services lead to which backends, and which led there once. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use api::service::{Condition, EndpointSlice, Front, Service};
use api::{NamespacedName, Protocol};

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

/// Tracked connections that do not do what services say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stale {
    /// They lead to a backend that the service does not have any more.
    Backend(Translation),
    /// They were made before the service, and are not translated.
    Untranslated(Front),
}

/// The UDP translations that are in force at one time.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// Fronts of all services, with how many service ports have each.
    fronts: HashMap<Front, usize>,
    /// Translations, with how many slices lead to each.
    translations: HashMap<Translation, usize>,
}

impl InForce {
    /// Whether a service has this translation.
    pub fn contains(&self, translation: &Translation) -> bool {
        self.translations.contains_key(translation)
    }

    /// Whether connections that were stale still are.
    pub fn concerns(&self, stale: &Stale) -> bool {
        match stale {
            Stale::Backend(translation) => !self.contains(translation),
            Stale::Untranslated(front) => self.fronts.contains_key(front),
        }
    }

    /// What a tracked connection to `destination`, translated to `backend` or not, is to services; `None` if it is as it should be, or to
    /// no service's address. A host port may have the number of a node port and goes first; its connections are said to be stale, and
    /// end with no harm but a new choice of the same pod.
    pub fn stale(&self, destination: (IpAddr, u16), backend: Option<Backend>) -> Option<Stale> {
        let [address, node_port] = Front::candidates(destination);
        let has = |front: &Front| self.fronts.contains_key(front);
        let Some(backend) = backend else {
            return has(&address).then_some(Stale::Untranslated(address));
        };
        let front = [address, node_port].into_iter().find(has)?;
        let translation = Translation { front, backend };
        (!self.contains(&translation)).then_some(Stale::Backend(translation))
    }
}

/// What is kept of a slice: its service, and the backends by the name of the service port.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    owner: NamespacedName,
    backends: BTreeSet<(String, Backend)>,
}

/// UDP ports of all services, and their backends on all nodes.
#[derive(Debug, Default)]
pub(super) struct UdpServices {
    /// Fronts by the names of their ports.
    services: BTreeMap<NamespacedName, BTreeSet<(String, Front)>>,
    slices: BTreeMap<NamespacedName, Kept>,
    /// Slices of each service.
    of: HashMap<NamespacedName, BTreeSet<NamespacedName>>,
    in_force: InForce,
    /// What became stale since it was asked for.
    stale: BTreeSet<Stale>,
}

impl UdpServices {
    /// Sets the state of a service; `None`: it was deleted.
    pub(super) fn set_service(&mut self, name: &NamespacedName, service: Option<&Service>) {
        let new = service.map(fronts).unwrap_or_default();
        let old = self.services.remove(name).unwrap_or_default();
        if new != old {
            let slices = self.of.get(name).into_iter().flatten();
            let slices = slices.filter_map(|slice| self.slices.get(slice));
            let of = |fronts, slice| translations(fronts, slice).collect::<BTreeSet<_>>();
            let changes: Vec<_> = slices.map(|slice| (of(&old, slice), of(&new, slice))).collect();
            for (_, front) in &new {
                let uses = self.in_force.fronts.entry(*front).or_default();
                *uses += 1;
                if *uses == 1 {
                    self.stale.insert(Stale::Untranslated(*front));
                }
            }
            for (_, front) in &old {
                if lose(&mut self.in_force.fronts, front) {
                    self.stale.remove(&Stale::Untranslated(*front));
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
        let new = slice.and_then(|slice| Some(Kept { owner: slice.owner()?, backends: backends(slice) }));
        let new = new.filter(|kept| !kept.backends.is_empty());
        let old = self.slices.remove(name);
        let of = |kept: &Option<Kept>| -> BTreeSet<Translation> {
            let Some(kept) = kept else { return BTreeSet::new() };
            self.services
                .get(&kept.owner)
                .map(|fronts| translations(fronts, kept).collect())
                .unwrap_or_default()
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

    fn change(&mut self, before: &BTreeSet<Translation>, after: &BTreeSet<Translation>) {
        for translation in after.difference(before) {
            *self.in_force.translations.entry(*translation).or_default() += 1;
            self.stale.remove(&Stale::Backend(*translation));
        }
        for translation in before.difference(after) {
            if lose(&mut self.in_force.translations, translation) {
                self.stale.insert(Stale::Backend(*translation));
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

/// Where the UDP ports of a service are reached, by their names.
fn fronts(service: &Service) -> BTreeSet<(String, Front)> {
    let udp = service.fronts().filter(|(port, _)| port.protocol == Protocol::Udp);
    udp.map(|(port, front)| (port.name.clone(), front)).collect()
}

/// UDP backends of a slice that serve, by the name of the service port.
fn backends(slice: &EndpointSlice) -> BTreeSet<(String, Backend)> {
    let ports = || slice.ports.iter().filter(|port| port.protocol == Protocol::Udp);
    let serving = slice.endpoints.iter().filter(|endpoint| endpoint.condition != Condition::NotReady);
    serving
        .flat_map(|endpoint| ports().map(|port| (port.name.clone(), (endpoint.address, port.port))))
        .collect()
}

fn translations<'a>(
    fronts: &'a BTreeSet<(String, Front)>,
    slice: &'a Kept,
) -> impl Iterator<Item = Translation> + 'a {
    let same_family = |front: &Front, backend: &Backend| match front {
        Front::Address(ip, _) => ip.is_ipv4() == backend.0.is_ipv4(),
        Front::NodePort(_) => true,
    };
    slice.backends.iter().flat_map(move |(port, backend)| {
        let fronts = fronts.iter().filter(move |(name, front)| name == port && same_family(front, backend));
        fronts.map(|(_, front)| Translation { front: *front, backend: *backend })
    })
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;

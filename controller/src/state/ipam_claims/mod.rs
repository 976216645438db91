//! IPAMClaims: addresses on virtual networks that outlive pods. Users make them and name them in pods' annotations; for pods of
//! StatefulSets on a network with `ipam.lifecycle: Persistent` they are made here. A claim is used by one pod at a time.

mod report;
#[cfg(test)]
mod tests;
mod using;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::NamespacedName;
use api::ipam_claim::{Claim, KIND};

use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched};
use crate::alloc::GrantError;
use crate::index::convert::StatefulSet;
use crate::index::network::SeenClaim;
pub use report::{ClaimReport, ClaimStatus, NewClaim};
pub(super) use using::Used;
use using::uses;

/// The pod that uses a claim.
#[derive(Debug, Clone)]
struct Holder {
    pod: NamespacedName,
    uid: String,
    /// The interface inside the pod.
    interface: String,
    /// Where the claim is one that is made here.
    set: Option<StatefulSet>,
}

/// All claims.
#[derive(Debug, Default)]
pub(super) struct IpamClaims {
    /// Whether the API server knows the kind.
    are_possible: bool,
    known: BTreeMap<NamespacedName, SeenClaim>,
    /// The claims for a virtual network, by its name without the namespace.
    by_network: BTreeMap<String, BTreeSet<NamespacedName>>,
    holders: BTreeMap<NamespacedName, Holder>,
    /// What each pod uses, by its UID.
    by_pod: HashMap<String, BTreeSet<NamespacedName>>,
    /// Claims whose addresses cannot be kept, with the reason.
    failed: BTreeMap<NamespacedName, String>,
    /// Claims whose objects may have to be written.
    touched: BTreeSet<NamespacedName>,
    /// Claims that need not be made any more.
    dropped: BTreeSet<NamespacedName>,
}

impl IpamClaims {
    fn set(&mut self, name: &NamespacedName, seen: Option<SeenClaim>) {
        if let Some(SeenClaim { claim: Ok(Claim { network, .. }), .. }) = self.known.remove(name)
            && let Some(names) = self.by_network.get_mut(&network.name)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_network.remove(&network.name);
            }
        }
        let Some(seen) = seen else { return };
        if let Ok(claim) = &seen.claim {
            self.by_network.entry(claim.network.name.clone()).or_default().insert(name.clone());
        }
        self.known.insert(name.clone(), seen);
    }

    /// The name, without the namespace, of the virtual network that a claim is for.
    fn network_of(&self, name: &NamespacedName) -> Option<String> {
        Some(self.known.get(name)?.claim.as_ref().ok()?.network.name.clone())
    }
}

impl State {
    /// Handles a report about IPAMClaims; `None` if the API server does not know the kind.
    pub fn ipam_claims(&mut self, change: Option<Watched<SeenClaim, NamespacedName>>) -> Effects {
        let mut effects = Effects::default();
        let were_possible = std::mem::replace(&mut self.ipam_claims.are_possible, change.is_some());
        match change.unwrap_or_else(|| Watched::Reset(Vec::new())) {
            Watched::Apply(seen) => self.apply_claim(seen, &mut effects),
            Watched::Delete(name) => self.delete_claim(&name, &mut effects),
            Watched::Reset(all) => {
                let there: BTreeSet<_> = all.iter().map(|seen| seen.name.clone()).collect();
                let known = self.ipam_claims.known.keys();
                let gone: Vec<_> = known.filter(|name| !there.contains(*name)).cloned().collect();
                for name in gone {
                    self.delete_claim(&name, &mut effects);
                }
                for seen in all {
                    self.apply_claim(seen, &mut effects);
                }
            }
        }
        if were_possible != self.ipam_claims.are_possible {
            for pod in self.waiting.all() {
                if let Some(seen) = self.waiting.get(&pod).cloned() {
                    self.apply_pod(seen, &mut effects);
                }
            }
        }
        effects
    }

    fn apply_claim(&mut self, seen: SeenClaim, effects: &mut Effects) {
        let name = seen.name.clone();
        let old = self.ipam_claims.known.get(&name);
        if old.is_some_and(|old| old.uid != seen.uid) {
            // Deleted and created again, and the watch reported only the last state.
            self.delete_claim(&name, effects);
        }
        let old = self.ipam_claims.known.get(&name);
        // What was written here, or says nothing new, helps no pod that waits.
        let says_the_same = |old: &SeenClaim| match (&old.claim, &seen.claim) {
            (Ok(old), Ok(new)) => (&old.network, &old.requests) == (&new.network, &new.requests),
            (old, new) => old == new,
        };
        let is_news = !old.is_some_and(says_the_same) || self.ipam_claims.failed.contains_key(&name);
        self.ipam_claims.set(&name, Some(seen));
        self.ipam_claims.touched.insert(name.clone());
        self.keep_for_claim(&name, effects);
        if is_news
            && !self.ipam_claims.holders.contains_key(&name)
            && let Some(network) = self.ipam_claims.network_of(&name)
        {
            self.retry_pods_of_claim(&name, &network, effects);
        }
    }

    fn delete_claim(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.ipam_claims.set(name, None);
        self.ipam_claims.failed.remove(name);
        self.ipam_claims.touched.remove(name);
        if let Some(network) = self.network_ipam.let_go(name, self.now) {
            self.addresses_are_free(BTreeSet::from([network]), effects);
        }
    }

    /// Keeps what a claim's status says, if nothing is kept for it and somebody may have it there.
    fn keep_for_claim(&mut self, name: &NamespacedName, effects: &mut Effects) {
        let Some(seen) = self.ipam_claims.known.get(name) else { return };
        let object = ObjectRef { uid: seen.uid.clone(), ..ObjectRef::named(KIND, name) };
        let kept = match &seen.claim {
            Err(error) => Err((NoticeKind::Malformed, error.clone())),
            Ok(claim) if claim.ips.is_empty() || self.network_ipam.kept(name).is_some() => Ok(()),
            Ok(claim) => match self.find(&name.namespace, &claim.network) {
                // Pods that ask for it are told so.
                Err(_unknown) => Ok(()),
                Ok(network) => match self.network_ipam.keep(&network, name, &claim.ips, self.now) {
                    Ok(()) => {
                        self.networks.touched.insert(network);
                        Ok(())
                    }
                    Err(GrantError::NotReady) => Ok(()),
                    Err(error) => {
                        Err((NoticeKind::Network, format!("status.ips: virtual network {network}: {error}")))
                    }
                },
            },
        };
        let (kind, error) = match kept {
            Ok(()) => return drop(self.ipam_claims.failed.remove(name)),
            Err(failure) => failure,
        };
        if self.ipam_claims.failed.insert(name.clone(), error.clone()).as_ref() != Some(&error) {
            let message = format!("IPAMClaim {name}: {error}; pods that name the claim wait");
            effects.notices.push(Notice { kind, object: Some(object), message });
        }
    }

    /// A claim says something new: pods that use it may have waited for that, the oldest first.
    fn retry_pods_of_claim(&mut self, name: &NamespacedName, network: &str, effects: &mut Effects) {
        for pod in self.waiting.of_network(network, self.definitions.naming(network)) {
            let seen = self.waiting.get(&pod).filter(|seen| uses(seen, name)).cloned();
            if let Some(seen) = seen {
                self.apply_pod(seen, effects);
            }
        }
    }

    /// A virtual network is there: its claims keep what their objects say.
    pub(super) fn keep_for_claims_of(&mut self, network: &NamespacedName, effects: &mut Effects) {
        let names = self.ipam_claims.by_network.get(&network.name).into_iter().flatten();
        for name in names.cloned().collect::<Vec<_>>() {
            self.keep_for_claim(&name, effects);
        }
    }

    /// Addresses of these networks are free: claims may have waited for them.
    pub(super) fn retry_claims(&mut self, networks: &BTreeSet<NamespacedName>, effects: &mut Effects) {
        let failed: Vec<_> = self.ipam_claims.failed.keys().cloned().collect();
        for name in failed {
            let network = self.ipam_claims.network_of(&name);
            if networks.iter().any(|one| Some(&one.name) == network.as_ref()) {
                self.keep_for_claim(&name, effects);
            }
        }
    }
}

//! Which claim an interface of a pod uses, and from when until when.

use api::NamespacedName;
use api::ipam_claim::name_of;
use api::pod_attachments::{Attachment, Selection, StaticIp};

use super::super::asked::Refused;
use super::super::{NoticeKind, State};
use super::Holder;
use crate::index::convert::{SeenPod, StatefulSet};
use crate::index::{Attached, Network};

/// The claim of an interface.
#[derive(Debug, Clone)]
pub(in super::super) struct Used {
    pub(in super::super) name: NamespacedName,
    /// What the pod and its claim ask for.
    pub(in super::super) ips: Vec<StaticIp>,
    /// Where the claim is one that is made here.
    set: Option<StatefulSet>,
}

/// Whether a pod uses a claim, by its own words or as a pod of a StatefulSet.
pub(super) fn uses(seen: &SeenPod, claim: &NamespacedName) -> bool {
    let selections = || seen.selections.as_ref().ok().into_iter().flatten();
    let own = seen.request.as_ref().ok().into_iter().flat_map(|request| &request.attachments);
    let interfaces = own.map(|one| &one.interface).chain(selections().map(|one| &one.interface));
    let is_made_for = |interface: &String| name_of(&seen.pod.name.name, interface) == claim.name;
    let names = |one: &Selection| one.claim().is_ok_and(|named| named == Some(claim.name.as_str()));
    seen.pod.name.namespace == claim.namespace
        && (selections().any(names)
            || (seen.stateful_set.is_some() && interfaces.into_iter().any(is_made_for)))
}

impl State {
    /// The claim that an interface of a new pod uses; none if its addresses end with the pod.
    pub(in super::super) fn claim_for(
        &self,
        seen: &SeenPod,
        wanted: &Attachment,
        network: &Network,
    ) -> Result<Option<Used>, Refused> {
        let refused = |message: String| Refused::from((NoticeKind::Network, message));
        let space = &seen.pod.name.namespace;
        let (name, set) = match (&wanted.claim, &seen.stateful_set) {
            (Some(claim), _) => (NamespacedName::new(space, claim), None),
            (None, Some(set)) if network.persistent => {
                let name = name_of(&seen.pod.name.name, &wanted.interface);
                (NamespacedName::new(space, name), Some(set.clone()))
            }
            _ => return Ok(None),
        };
        let claims = &self.ipam_claims;
        if !claims.are_possible {
            return Err(refused(format!(
                "IPAMClaim {name} is to keep its addresses, and the API server does not know IPAMClaims; deploy/ipam-claim.yaml \
                 defines them"
            )));
        }
        if let Some(holder) = claims.holders.get(&name) {
            let Holder { pod, uid, interface, .. } = holder;
            let is_other = *uid != seen.pod.uid;
            if is_other && self.uids.get(pod) != Some(uid) {
                return Err(Refused::Soon);
            }
            if is_other || *interface != wanted.interface {
                return Err(refused(format!(
                    "IPAMClaim {name} is in use by interface {interface} of pod {pod}; a claim is for one interface at a time"
                )));
            }
        }
        let mut ips = wanted.ips.clone();
        let Some(known) = claims.known.get(&name) else {
            return match set {
                Some(_) => Ok(Some(Used { name, ips, set })),
                None => Err(refused(format!("there is no IPAMClaim {name}"))),
            };
        };
        let claim = known.claim.as_ref().map_err(|error| refused(format!("IPAMClaim {name}: {error}")))?;
        if let Some(error) = claims.failed.get(&name) {
            return Err(refused(format!("IPAMClaim {name}: {error}")));
        }
        let kept = self.network_ipam.kept(&name);
        let of = match &kept {
            Some((of, _)) => (*of).clone(),
            None => self
                .find(space, &claim.network)
                .map_err(|error| refused(format!("IPAMClaim {name}: spec.network: {error}")))?,
        };
        if of != network.name {
            return Err(refused(format!(
                "IPAMClaim {name} is for virtual network {of}, and not for {}; another claim is needed, or none of this name",
                network.name
            )));
        }
        // What it keeps goes before what it asked for once.
        for net in claim.requests.iter().filter(|_| kept.is_none()) {
            let asked = ips.iter().find(|asked| asked.ip.is_ipv4() == net.addr().is_ipv4());
            match asked {
                Some(asked) if asked.ip != net.addr() => {
                    return Err(refused(format!(
                        "IPAMClaim {name} asks for address {}, and the pod for {}; one of them must be left out",
                        net.addr(),
                        asked.ip
                    )));
                }
                Some(_) => {}
                None => ips.push(StaticIp { ip: net.addr(), prefix_len: Some(net.prefix_len()) }),
            }
        }
        Ok(Some(Used { name, ips, set }))
    }

    /// The claim that an interface of a pod uses which is made already.
    pub(in super::super) fn claim_of(&self, seen: &SeenPod, attached: &Attached) -> Option<Used> {
        let selections = seen.selections.as_ref().ok().into_iter().flatten();
        let named = selections
            .filter(|selection| selection.interface == attached.interface)
            .find_map(|selection| selection.claim().ok().flatten());
        let space = &seen.pod.name.namespace;
        if let Some(name) = named {
            return Some(Used { name: NamespacedName::new(space, name), ips: Vec::new(), set: None });
        }
        let network = self.index.networks.ready.get(&attached.network)?;
        let set =
            seen.stateful_set.clone().filter(|_| network.persistent && self.ipam_claims.are_possible)?;
        let name = NamespacedName::new(space, name_of(&seen.pod.name.name, &attached.interface));
        Some(Used { name, ips: Vec::new(), set: Some(set) })
    }

    /// A pod has its addresses by a claim. Another pod that uses it already goes on with it.
    pub(in super::super) fn hold(&mut self, used: Used, seen: &SeenPod, interface: &str) {
        let claims = &mut self.ipam_claims;
        let uid = seen.pod.uid.clone();
        if claims.holders.get(&used.name).is_some_and(|holder| holder.uid != uid) {
            return;
        }
        claims.by_pod.entry(uid.clone()).or_default().insert(used.name.clone());
        claims.touched.insert(used.name.clone());
        claims.dropped.remove(&used.name);
        let holder =
            Holder { pod: seen.pod.name.clone(), uid, interface: interface.to_owned(), set: used.set };
        claims.holders.insert(used.name, holder);
    }

    /// A pod uses no claim any more. A claim without an object keeps nothing for anybody.
    pub(in super::super) fn let_go_of_claims(&mut self, uid: &str) {
        for name in self.ipam_claims.by_pod.remove(uid).unwrap_or_default() {
            if self.ipam_claims.holders.get(&name).is_some_and(|holder| holder.uid == uid) {
                self.ipam_claims.holders.remove(&name);
            }
            self.forget_unless_known(&name);
        }
    }

    /// Keeps nothing for a claim that nobody has made.
    pub(in super::super) fn forget_unless_known(&mut self, name: &NamespacedName) {
        let claims = &mut self.ipam_claims;
        if !claims.known.contains_key(name) && !claims.holders.contains_key(name) {
            claims.touched.remove(name);
            claims.dropped.insert(name.clone());
            self.network_ipam.let_go(name, self.now);
        }
    }
}

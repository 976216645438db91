//! What is to be written into the objects of claims.

use api::NamespacedName;
use ipnet::IpNet;

use super::super::{ObjectRef, State};
use super::{Holder, KIND};
use crate::index::convert::StatefulSet;

/// What the object of a claim should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimReport {
    /// Without a UID where the claim is to be made.
    pub object: ObjectRef,
    /// None if the claim is not to be made any more.
    pub status: Option<ClaimStatus>,
    /// Where the claim is to be made if it is not there: its `spec`, and the set that it belongs to.
    pub new: Option<NewClaim>,
}

/// `status` of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimStatus {
    /// The addresses that it keeps, with the prefix lengths of the network's ranges.
    pub ips: Vec<IpNet>,
    /// The pod that has them, or had them last, without its namespace.
    pub pod: String,
}

/// A claim that is made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewClaim {
    /// The virtual network, as NAMESPACE/NAME.
    pub network: String,
    /// The interface inside the pod.
    pub interface: String,
    /// With it the claim goes.
    pub set: StatefulSet,
}

impl State {
    /// What is to be written into the objects of claims that something happened to since the last call.
    pub fn claim_reports(&mut self) -> Vec<ClaimReport> {
        let dropped = std::mem::take(&mut self.ipam_claims.dropped).into_iter();
        let touched = std::mem::take(&mut self.ipam_claims.touched);
        let reports = touched.iter().filter_map(|name| self.claim_report(name));
        let no_more = |name| ClaimReport { object: ObjectRef::named(KIND, &name), status: None, new: None };
        reports.chain(dropped.map(no_more)).collect()
    }

    /// None if the object holds it already, or nothing is kept for the claim.
    fn claim_report(&self, name: &NamespacedName) -> Option<ClaimReport> {
        let (network, ips) = self.network_ipam.kept(name)?;
        let holder = self.ipam_claims.holders.get(name);
        let named = ObjectRef::named(KIND, name);
        match self.ipam_claims.known.get(name) {
            Some(seen) => {
                let claim = seen.claim.as_ref().ok()?;
                let pod = holder.map_or(&claim.pod, |holder| &holder.pod.name);
                let is_written = claim.pod == *pod && claim.ips == ips;
                let status =
                    (!is_written && !pod.is_empty()).then(|| ClaimStatus { ips, pod: pod.clone() })?;
                let object = ObjectRef { uid: seen.uid.clone(), ..named };
                Some(ClaimReport { object, status: Some(status), new: None })
            }
            None => {
                let Holder { pod, interface, set, .. } = holder?;
                let new = NewClaim {
                    network: network.to_string(),
                    interface: interface.clone(),
                    set: set.clone()?,
                };
                let status = ClaimStatus { ips, pod: pod.name.clone() };
                Some(ClaimReport { object: named, status: Some(status), new: Some(new) })
            }
        }
    }
}

//! NetworkAttachmentDefinitions: what a pod's annotation of the de-facto standard asks of us. Definitions of other plugins are for those,
//! or for Multus; where the API server does not know the kind, the annotation is nobody's.

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use api::network_attachment::{Definition, Dns, NetworkStatus, network_status};
use api::pod_attachments::{Attachment, MAX_INTERFACES, PodAttachments, REQUEST, SELECTIONS};

use super::waiting::definition_of;
use super::{Effects, NoticeKind, State, Watched};
use crate::alloc::Allocation;
use crate::index::Attached;
use crate::index::convert::SeenPod;
use crate::index::network::SeenDefinition;

/// Name of the cluster's network in a pod's status.
const CLUSTER_NETWORK: &str = "slipstream";
/// The interface on it. A runtime may call it otherwise; all that are known call it so.
const FIRST_INTERFACE: &str = "eth0";

/// All definitions.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Whether the API server knows the kind.
    are_possible: bool,
    all: BTreeMap<NamespacedName, Definition>,
    /// The definitions that name a virtual network, by its name without the namespace.
    by_network: BTreeMap<String, BTreeSet<NamespacedName>>,
}

impl Definitions {
    /// The definition of this name.
    pub(super) fn get(&self, name: &NamespacedName) -> Option<&Definition> {
        self.all.get(name)
    }

    /// The definitions that name a virtual network of this name.
    pub(super) fn naming(&self, network: &str) -> impl Iterator<Item = &NamespacedName> {
        self.by_network.get(network).into_iter().flatten()
    }

    fn set(&mut self, name: &NamespacedName, definition: Option<Definition>) {
        if let Some(Definition::Network(old)) = self.all.remove(name)
            && let Some(naming) = self.by_network.get_mut(&old.name)
        {
            naming.remove(name);
            if naming.is_empty() {
                self.by_network.remove(&old.name);
            }
        }
        let Some(definition) = definition else { return };
        if let Definition::Network(network) = &definition {
            self.by_network.entry(network.name.clone()).or_default().insert(name.clone());
        }
        self.all.insert(name.clone(), definition);
    }
}

/// The interfaces that a pod asks for by both annotations, each with the key of its own.
pub(super) fn all_of(
    request: &PodAttachments,
    selected: Vec<Attachment>,
) -> Result<Vec<(&'static str, Attachment)>, String> {
    let own = request.attachments.iter().cloned().map(|attachment| (REQUEST, attachment));
    let all: Vec<_> = own.chain(selected.into_iter().map(|attachment| (SELECTIONS, attachment))).collect();
    if all.len() > MAX_INTERFACES {
        return Err(format!(
            "annotations {REQUEST} and {SELECTIONS}: {} interfaces; {MAX_INTERFACES} are possible",
            all.len()
        ));
    }
    let mut names = BTreeSet::new();
    if let Some((key, twice)) = all.iter().find(|(_, attachment)| !names.insert(&attachment.interface)) {
        return Err(format!(
            "annotation {key}: interface {} is asked for twice; each needs a name of its own",
            twice.interface
        ));
    }
    let mut defaults = all.iter().filter(|(_, attachment)| attachment.default_route);
    if let (Some((_, first)), Some((key, second))) = (defaults.next(), defaults.next()) {
        return Err(format!(
            "annotation {key}: the default route is asked for by {} and {}; a pod has one",
            first.interface, second.interface
        ));
    }
    Ok(all)
}

impl State {
    /// Handles a report about NetworkAttachmentDefinitions; `None` if the API server does not know the kind.
    pub fn definitions(&mut self, change: Option<Watched<SeenDefinition, NamespacedName>>) -> Effects {
        let mut effects = Effects::default();
        let were_possible = std::mem::replace(&mut self.definitions.are_possible, change.is_some());
        let mut changed = BTreeSet::new();
        match change.unwrap_or_else(|| Watched::Reset(Vec::new())) {
            Watched::Apply(seen) => {
                if self.definitions.all.get(&seen.name) != Some(&seen.definition) {
                    self.definitions.set(&seen.name, Some(seen.definition));
                    changed.insert(seen.name);
                }
            }
            Watched::Delete(name) => {
                self.definitions.set(&name, None);
                changed.insert(name);
            }
            Watched::Reset(all) => {
                changed.extend(self.definitions.all.keys().cloned());
                for name in &changed {
                    self.definitions.set(name, None);
                }
                for seen in all {
                    self.definitions.set(&seen.name, Some(seen.definition));
                    changed.insert(seen.name);
                }
            }
        }
        // Without the kind nobody's annotation holds a pod back, nor one that cannot be read.
        let pods = if were_possible && !self.definitions.are_possible {
            self.waiting.all()
        } else {
            self.waiting.of_definitions(&changed)
        };
        for pod in pods {
            if let Some(seen) = self.waiting.get(&pod).cloned() {
                self.apply_pod(seen, &mut effects);
            }
        }
        self.policies_may_be_about_others(&mut effects);
        effects
    }

    /// The interfaces on virtual networks that a pod asks for by definitions.
    pub(super) fn selected(&self, seen: &SeenPod) -> Result<Vec<Attachment>, (NoticeKind, String)> {
        if !self.definitions.are_possible {
            return Ok(Vec::new());
        }
        let malformed = |error: &dyn std::fmt::Display| (NoticeKind::Malformed, error.to_string());
        let selections = seen.selections.as_ref().map_err(|error| malformed(error))?;
        let mut found = Vec::new();
        for selection in selections {
            let name = definition_of(seen, selection);
            match self.definitions.all.get(&name) {
                Some(Definition::Foreign) => {}
                Some(Definition::Network(network)) => {
                    found.push(selection.attachment(network.clone()).map_err(|error| malformed(&error))?);
                }
                Some(Definition::Unusable(why)) => {
                    return Err((
                        NoticeKind::Network,
                        format!("annotation {SELECTIONS}: NetworkAttachmentDefinition {name}: {why}"),
                    ));
                }
                None => {
                    return Err((
                        NoticeKind::Network,
                        format!("annotation {SELECTIONS}: there is no NetworkAttachmentDefinition {name}"),
                    ));
                }
            }
        }
        Ok(found)
    }

    /// What the pod got, for readers of the de-facto standard; none for a pod that has nothing by a definition.
    pub(super) fn network_status(
        &self,
        seen: &SeenPod,
        allocation: &Allocation,
        attachments: &[Attached],
    ) -> Option<String> {
        let selections = seen.selections.as_ref().ok()?;
        let ours = |interface: &str| {
            let selection = selections.iter().find(|selection| selection.interface == interface)?;
            let name = definition_of(seen, selection);
            matches!(self.definitions.all.get(&name), Some(Definition::Network(_))).then(|| name.to_string())
        };
        if !attachments.iter().any(|attached| ours(&attached.interface).is_some()) {
            return None;
        }
        let first = NetworkStatus {
            name: CLUSTER_NETWORK.to_owned(),
            interface: FIRST_INTERFACE.to_owned(),
            ips: allocation.addresses.iter().map(ipnet::IpNet::addr).collect(),
            mac: allocation.mac.to_string(),
            default: true,
            default_route: Vec::new(),
            dns: Dns::default(),
        };
        let others = attachments.iter().map(|attached| NetworkStatus {
            name: ours(&attached.interface).unwrap_or_else(|| attached.network.to_string()),
            interface: attached.interface.clone(),
            ips: attached.addresses.iter().map(ipnet::IpNet::addr).collect(),
            mac: attached.mac.to_string(),
            default: false,
            default_route: attached.default_gateways.clone(),
            dns: Dns::default(),
        });
        Some(network_status(&std::iter::once(first).chain(others).collect::<Vec<_>>()))
    }
}

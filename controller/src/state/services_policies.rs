//! Services, endpoint slices and network policies: stored in the index as they arrive.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched, notices};
use crate::index::policy::Policy;
use crate::index::{Dirty, Index};
use crate::unit::Unit;
use api::NamespacedName;
use api::problem::Problem;
use api::service::{EndpointSlice, Service};

/// How a kind is stored in the index.
struct Kind<T> {
    name: fn(&T) -> &NamespacedName,
    known: fn(&Index) -> Vec<NamespacedName>,
    apply: fn(&mut Index, T) -> Dirty,
    delete: fn(&mut Index, &NamespacedName) -> Dirty,
}

impl State {
    /// Handles a report about services.
    pub fn services(&mut self, change: Watched<(Service, Vec<Problem>), NamespacedName>) -> Effects {
        let mut effects = self.kept(
            change,
            &Kind {
                name: |service| &service.name,
                known: |index| index.services.names().cloned().collect(),
                apply: Index::apply_service,
                delete: Index::delete_service,
            },
        );
        self.tell_addresses(&mut effects);
        effects
    }

    /// Reports to the services that became dirty which of their addresses are not served, once.
    pub(super) fn tell_addresses(&mut self, effects: &mut Effects) {
        for unit in &effects.dirty {
            let Unit::Service(name) = unit else { continue };
            let refused = self.index.services.refused(name).into_iter();
            let mut messages: BTreeSet<String> =
                refused.map(|(ip, why)| format!("external address {ip} is not served: {why}")).collect();
            let cluster_ips = self.index.services.get(name).map(|service| service.cluster_ips.clone());
            let outside = |ip: &IpAddr| !self.config.service_cidrs.iter().any(|net| net.contains(ip));
            messages.extend(cluster_ips.into_iter().flatten().filter(outside).map(|ip| {
                let ranges: Vec<_> = self.config.service_cidrs.iter().map(ToString::to_string).collect();
                format!(
                    "spec.clusterIPs: {ip} is in no service range ({}), so that nodes do not reach it; --service-cidrs of \
                     controller and node agents must be the range of the API server",
                    ranges.join(", ")
                )
            }));
            let told = self.told_addresses.remove(name).unwrap_or_default();
            effects.notices.extend(messages.difference(&told).map(|message| Notice {
                kind: NoticeKind::Address,
                object: Some(ObjectRef::named("Service", name)),
                message: format!("service {name}: {message}"),
            }));
            if !messages.is_empty() {
                self.told_addresses.insert(name.clone(), messages);
            }
        }
    }

    /// Handles a report about endpoint slices.
    pub fn endpoint_slices(
        &mut self,
        change: Watched<(EndpointSlice, Vec<Problem>), NamespacedName>,
    ) -> Effects {
        self.kept(
            change,
            &Kind {
                name: |slice| &slice.name,
                known: |index| index.services.slice_names().cloned().collect(),
                apply: Index::apply_endpoint_slice,
                delete: Index::delete_endpoint_slice,
            },
        )
    }

    /// Handles a report about network policies.
    pub fn policies(&mut self, change: Watched<(Policy, Vec<Problem>), NamespacedName>) -> Effects {
        self.kept(
            change,
            &Kind {
                name: |policy| &policy.name,
                known: |index| index.policies.names().cloned().collect(),
                apply: Index::apply_policy,
                delete: Index::delete_policy,
            },
        )
    }

    fn kept<T>(&mut self, change: Watched<(T, Vec<Problem>), NamespacedName>, kind: &Kind<T>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply((object, problems)) => {
                effects.notices.extend(notices(&problems, None));
                effects.dirty.extend((kind.apply)(&mut self.index, object));
            }
            Watched::Delete(name) => effects.dirty.extend((kind.delete)(&mut self.index, &name)),
            Watched::Reset(all) => {
                let there: BTreeSet<NamespacedName> =
                    all.iter().map(|(object, _)| (kind.name)(object).clone()).collect();
                for name in (kind.known)(&self.index).into_iter().filter(|name| !there.contains(name)) {
                    effects.dirty.extend((kind.delete)(&mut self.index, &name));
                }
                for (object, problems) in all {
                    effects.notices.extend(notices(&problems, None));
                    effects.dirty.extend((kind.apply)(&mut self.index, object));
                }
            }
        }
        effects
    }
}

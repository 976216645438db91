//! Services, endpoint slices and network policies: kept in the index as they come.

use std::collections::BTreeSet;

use super::{Effects, State, Watched, notices};
use crate::index::convert::Problem;
use crate::index::policy::Policy;
use crate::index::service::{EndpointSlice, Service};
use crate::index::{Dirty, Index};
use crate::plan::NamespacedName;

/// How a kind is kept in the index.
struct Kind<T> {
    name: fn(&T) -> &NamespacedName,
    known: fn(&Index) -> Vec<NamespacedName>,
    apply: fn(&mut Index, T) -> Dirty,
    delete: fn(&mut Index, &NamespacedName) -> Dirty,
}

impl State {
    /// Takes a report about services.
    pub fn services(&mut self, change: Watched<(Service, Vec<Problem>), NamespacedName>) -> Effects {
        self.kept(
            change,
            &Kind {
                name: |service| &service.name,
                known: |index| index.services.names().cloned().collect(),
                apply: Index::apply_service,
                delete: Index::delete_service,
            },
        )
    }

    /// Takes a report about endpoint slices.
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

    /// Takes a report about network policies.
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

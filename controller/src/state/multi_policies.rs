//! Policies of virtual networks (MultiNetworkPolicy): which networks each is about. Those that it names may come later; networks of other
//! plugins are for those.

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use api::multi_policy::KIND;
use api::network_attachment::Definition;

use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched};
use crate::index::policy::SeenMultiPolicy;

/// All policies of virtual networks.
#[derive(Debug, Default)]
pub(super) struct Known {
    all: BTreeMap<NamespacedName, SeenMultiPolicy>,
}

impl State {
    /// Handles a report about MultiNetworkPolicies.
    pub fn multi_policies(&mut self, change: Watched<SeenMultiPolicy, NamespacedName>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(seen) => self.apply_multi_policy(seen, &mut effects),
            Watched::Delete(name) => self.delete_multi_policy(&name, &mut effects),
            Watched::Reset(all) => {
                let there: BTreeSet<_> = all.iter().map(|seen| seen.policy.name.clone()).collect();
                let known = self.multi_policies.all.keys();
                let gone: Vec<_> = known.filter(|name| !there.contains(*name)).cloned().collect();
                for name in gone {
                    self.delete_multi_policy(&name, &mut effects);
                }
                for seen in all {
                    self.apply_multi_policy(seen, &mut effects);
                }
            }
        }
        effects
    }

    fn apply_multi_policy(&mut self, seen: SeenMultiPolicy, effects: &mut Effects) {
        let name = seen.policy.name.clone();
        if self.multi_policies.all.get(&name) == Some(&seen) {
            return;
        }
        let messages = seen.problems.iter().map(|problem| problem.message.clone());
        effects.notices.extend(messages.chain(seen.networks.as_ref().err().cloned()).map(|message| Notice {
            kind: NoticeKind::Malformed,
            object: Some(ObjectRef { uid: seen.uid.clone(), ..ObjectRef::named(KIND, &name) }),
            message: format!("multi-network policy {name}: {message}"),
        }));
        let networks = self.networks_of_policy(&seen);
        effects.dirty.extend(self.index.apply_multi_policy(&seen.policy, networks));
        self.multi_policies.all.insert(name, seen);
    }

    fn delete_multi_policy(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.multi_policies.all.remove(name);
        effects.dirty.extend(self.index.delete_multi_policy(name));
    }

    /// The virtual networks that a policy is about, of those that are known.
    fn networks_of_policy(&self, seen: &SeenMultiPolicy) -> BTreeSet<NamespacedName> {
        let space = &seen.policy.name.namespace;
        let named = seen.networks.as_ref().ok().into_iter().flatten();
        let found = named.filter_map(|named| {
            let definition = NamespacedName::new(named.namespace.as_ref().unwrap_or(space), &named.name);
            match self.definitions.get(&definition) {
                Some(Definition::Network(network)) => self.find(&definition.namespace, network).ok(),
                Some(Definition::Foreign | Definition::Unusable(_)) => None,
                // Pods may ask for a virtual network without a definition.
                None => self.find(space, named).ok(),
            }
        });
        found.collect()
    }

    /// Definitions or networks changed: policies may be about others than before.
    pub(super) fn policies_may_be_about_others(&mut self, effects: &mut Effects) {
        for seen in self.multi_policies.all.values() {
            let networks = self.networks_of_policy(seen);
            if self.index.multi_policies.networks_of(&seen.policy.name) != Some(&networks) {
                effects.dirty.extend(self.index.apply_multi_policy(&seen.policy, networks));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests_networks::{blue, for_all, messages, pod_on, state};
    use super::*;
    use crate::index::network;
    use crate::plan::{Item, plan};
    use crate::unit::Unit;

    fn policy(name: &str, networks: Option<&str>, spec: &Value) -> SeenMultiPolicy {
        let mut object = json!({"metadata": {"namespace": "x", "name": name, "uid": name}, "spec": spec});
        if let Some(networks) = networks {
            object["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/policy-for": networks});
        }
        SeenMultiPolicy::from_object(&serde_json::from_value(object).unwrap())
    }

    fn all_from(app: &str) -> Value {
        json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]})
    }

    fn about(state: &State, name: &str) -> Vec<String> {
        let networks = state.index.multi_policies.networks_of(&NamespacedName::new("x", name));
        networks.into_iter().flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_is_about_what_it_names_by_definition_or_as_a_network_whenever_that_comes() {
        let mut state = state();
        let seen = policy("p", Some("blue, defined, y/red, foreign, nobody"), &all_from("a"));
        assert!(messages(&state.multi_policies(Watched::Apply(seen))).is_empty());
        assert!(about(&state, "p").is_empty());
        let effects = state.virtual_networks(Watched::Reset(vec![
            blue("172.16.24.0/24"),
            for_all("y", "red", 1, "172.16.25.0/24"),
            for_all("z", "far", 2, "172.16.26.0/24"),
        ]));
        assert_eq!(about(&state, "p"), ["x/blue", "y/red"]);
        let policy_unit = |network: (&str, &str)| {
            Unit::MultiPolicy(NamespacedName::new(network.0, network.1), NamespacedName::new("x", "p"))
        };
        assert!(effects.dirty.contains(&policy_unit(("x", "blue"))));
        let definition = |name: &str, config: Value| {
            let object =
                json!({"metadata": {"name": name, "namespace": "x"}, "spec": {"config": config.to_string()}});
            network::read_definition(&serde_json::from_value(object).unwrap())
        };
        let effects = state.definitions(Some(Watched::Reset(vec![
            definition("defined", json!({"type": "slipstream-cni", "network": "z/far"})),
            definition("foreign", json!({"type": "macvlan"})),
        ])));
        assert_eq!(about(&state, "p"), ["x/blue", "y/red", "z/far"]);
        assert!(
            effects.dirty.contains(&policy_unit(("z", "far")))
                && !effects.dirty.contains(&policy_unit(("x", "blue")))
        );
        let effects = state.virtual_networks(Watched::Delete(NamespacedName::new("x", "blue")));
        assert_eq!(about(&state, "p"), ["y/red", "z/far"]);
        assert!(effects.dirty.contains(&policy_unit(("x", "blue"))));
        assert!(state.multi_policies(Watched::Reset(Vec::new())).dirty.contains(&policy_unit(("y", "red"))));
        assert!(about(&state, "p").is_empty());
    }

    #[test]
    fn a_policy_follows_when_a_node_takes_the_networks_name_and_leaves_it() {
        let mut state = state();
        // Of two networks with one name the older one is there.
        state.virtual_networks(Watched::Reset(vec![
            for_all("y", "red", 2, "172.16.25.0/24"),
            for_all("z", "red", 1, "172.16.26.0/24"),
        ]));
        state.multi_policies(Watched::Apply(policy("p", Some("red"), &all_from("a"))));
        assert_eq!(about(&state, "p"), ["z/red"]);
        let object = json!({ "metadata": { "name": "red", "uid": "red" } });
        let node = crate::index::convert::node(serde_json::from_value(object).unwrap()).unwrap();
        state.nodes(Watched::Apply(node));
        assert_eq!(about(&state, "p"), ["y/red"], "neither is there");
        let effects = state.nodes(Watched::Delete("red".to_owned()));
        assert_eq!(about(&state, "p"), ["z/red"]);
        let unit = Unit::MultiPolicy(NamespacedName::new("z", "red"), NamespacedName::new("x", "p"));
        assert!(effects.dirty.contains(&unit), "at the same time as the network: {:?}", effects.dirty);
    }

    #[test]
    fn what_cannot_be_read_closes_and_is_told_once() {
        let mut state = state();
        state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
        let bad = || policy("p", Some("blue"), &json!({"podSelector": 7}));
        let effects = state.multi_policies(Watched::Apply(bad()));
        assert!(
            messages(&effects)[0].contains("multi-network policy x/p: spec.podSelector: "),
            "{:?}",
            messages(&effects)
        );
        let on = state.index.multi_policies.on(&NamespacedName::new("x", "blue")).unwrap();
        let closed = on.store.get(&NamespacedName::new("x", "p")).unwrap();
        assert_eq!((closed.ingress.as_deref(), closed.egress.as_deref()), (Some(&[][..]), Some(&[][..])));
        assert!(messages(&state.multi_policies(Watched::Apply(bad()))).is_empty());
        let effects = state.multi_policies(Watched::Apply(policy("q", None, &all_from("a"))));
        assert!(messages(&effects)[0].contains("policy-for is missing"), "{:?}", messages(&effects));
        assert!(about(&state, "q").is_empty());
    }

    #[test]
    fn rows_are_of_the_network_its_ports_and_its_addresses_alone() {
        let mut state = state();
        state.virtual_networks(Watched::Apply(blue("172.16.24.0/24")));
        let mut pod = pod_on("n1", "a", json!({"ovnNetwork": r#"[{"name": "blue", "interface": "net1"}]"#}));
        pod.pod.labels.insert("app".to_owned(), "a".to_owned());
        state.pods(Watched::Apply(pod));
        state.multi_policies(Watched::Apply(policy("p", Some("blue"), &all_from("a"))));
        let planned = |unit: &Unit| plan(&state.index, &state.config, unit);
        let text = |items: &[Item]| format!("{items:?}");
        let blue = NamespacedName::new("x", "blue");
        let items = planned(&Unit::MultiPolicy(blue.clone(), NamespacedName::new("x", "p")));
        let tiers = items.iter().filter_map(|item| match item {
            Item::Row(row) => row.columns.get("tier"),
            _ => None,
        });
        assert_eq!(tiers.collect::<Vec<_>>(), [&ovsdb_client::Datum::from(0)], "the only tier on its switch");
        let rows = text(&items);
        assert!(rows.contains("default-network-controller:MultiNetworkPolicy:x/blue:x:p"), "{rows}");
        assert!(rows.contains("MultiPodSelector:x/blue:x_LS{ML:{app: a,},}:v4"), "{rows}");
        let deny = text(&planned(&Unit::MultiPolicyNamespace(blue, "x".to_owned())));
        assert!(deny.contains("MultiNetpolNamespace:x/blue:x:Ingress"), "{deny}");
        let pod = text(&planned(&Unit::Pod(NamespacedName::new("x", "a"))));
        assert!(
            pod.contains("MultiPodSelector:x/blue:x_LS{ML:{app: a,},}:v4") && pod.contains("172.16.24.2"),
            "{pod}"
        );
        let groups = pod.matches("Port_Group").count() + pod.matches("PortGroup").count();
        assert!(groups >= 2, "in the group of the policy and in that of the namespace: {pod}");
        assert!(
            !pod.contains("controller:NetworkPolicy") && !pod.contains("controller:PodSelector"),
            "{pod}"
        );
    }
}

//! Pods without an address, oldest first, found by name and by node: the cost of a pod's end or a node's heartbeat must not grow
//! with the number of waiting pods.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use crate::index::convert::SeenPod;
use api::NamespacedName;
use api::pod_attachments::Selection;

/// The order in which pods get an address: creation time, then name.
type Turn = (i64, NamespacedName);

/// Pods that wait for an address.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pods: BTreeMap<Turn, SeenPod>,
    /// Creation time by name.
    created: HashMap<NamespacedName, i64>,
    by_node: HashMap<String, BTreeSet<Turn>>,
    /// By the names of the virtual networks that a pod asks for, without their namespaces.
    by_network: HashMap<String, BTreeSet<Turn>>,
    /// By the names of the NetworkAttachmentDefinitions that a pod names, with the pod's namespace where it says none.
    by_definition: HashMap<NamespacedName, BTreeSet<Turn>>,
    /// What has been reported of a pod.
    told: HashMap<NamespacedName, String>,
}

/// Names of the virtual networks that a pod asks for.
fn networks(seen: &SeenPod) -> impl Iterator<Item = &String> {
    let wanted = seen.request.as_ref().ok().into_iter().flat_map(|request| &request.attachments);
    wanted.map(|attachment| &attachment.network.name)
}

/// Names of the definitions that a pod names.
fn definitions(seen: &SeenPod) -> impl Iterator<Item = NamespacedName> {
    let selections = seen.selections.as_ref().ok().into_iter().flatten();
    selections.map(|selection| definition_of(seen, selection))
}

/// The definition that an element means.
pub(super) fn definition_of(seen: &SeenPod, selection: &Selection) -> NamespacedName {
    let namespace = selection.definition.namespace.as_ref().unwrap_or(&seen.pod.name.namespace);
    NamespacedName::new(namespace, &selection.definition.name)
}

/// Takes a pod out of the set of `key`.
fn take_out<K: Eq + Hash + Borrow<Q>, Q: Eq + Hash + ?Sized>(
    sets: &mut HashMap<K, BTreeSet<Turn>>,
    key: &Q,
    turn: &Turn,
) {
    if let Some(turns) = sets.get_mut(key) {
        turns.remove(turn);
        if turns.is_empty() {
            sets.remove(key);
        }
    }
}

impl Waiting {
    /// Adds a pod, or updates it. There is at most one pod for each name.
    pub(super) fn insert(&mut self, seen: SeenPod) {
        let told = self.told.remove(&seen.pod.name);
        self.remove(&seen.pod.name);
        self.told.extend(told.map(|told| (seen.pod.name.clone(), told)));
        let turn = (seen.created, seen.pod.name.clone());
        self.created.insert(turn.1.clone(), turn.0);
        self.by_node.entry(seen.pod.node.clone()).or_default().insert(turn.clone());
        for network in networks(&seen) {
            self.by_network.entry(network.clone()).or_default().insert(turn.clone());
        }
        for definition in definitions(&seen) {
            self.by_definition.entry(definition).or_default().insert(turn.clone());
        }
        self.pods.insert(turn, seen);
    }

    /// Takes a pod out.
    pub(super) fn remove(&mut self, name: &NamespacedName) -> Option<SeenPod> {
        self.told.remove(name);
        let created = self.created.remove(name)?;
        let turn = (created, name.clone());
        let seen = self.pods.remove(&turn)?;
        take_out(&mut self.by_node, &seen.pod.node, &turn);
        for network in networks(&seen) {
            take_out(&mut self.by_network, network, &turn);
        }
        for definition in definitions(&seen) {
            take_out(&mut self.by_definition, &definition, &turn);
        }
        Some(seen)
    }

    /// The pod of this name.
    pub(super) fn get(&self, name: &NamespacedName) -> Option<&SeenPod> {
        self.pods.get(&(*self.created.get(name)?, name.clone()))
    }

    /// The pods of a node, oldest first.
    pub(super) fn of_node(&self, node: &str) -> Vec<NamespacedName> {
        self.by_node.get(node).into_iter().flatten().map(|(_, name)| name.clone()).collect()
    }

    /// The pods that ask for a virtual network of this name, or name one of these definitions, oldest first.
    pub(super) fn of_network<'a>(
        &self,
        name: &str,
        definitions: impl IntoIterator<Item = &'a NamespacedName>,
    ) -> Vec<NamespacedName> {
        let mut turns: BTreeSet<&Turn> = self.by_network.get(name).into_iter().flatten().collect();
        turns.extend(self.turns_of(definitions));
        turns.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// The pods that name one of these definitions, oldest first.
    pub(super) fn of_definitions<'a>(
        &self,
        definitions: impl IntoIterator<Item = &'a NamespacedName>,
    ) -> Vec<NamespacedName> {
        let turns: BTreeSet<&Turn> = self.turns_of(definitions).collect();
        turns.into_iter().map(|(_, name)| name.clone()).collect()
    }

    fn turns_of<'a>(
        &self,
        definitions: impl IntoIterator<Item = &'a NamespacedName>,
    ) -> impl Iterator<Item = &Turn> {
        definitions.into_iter().filter_map(|name| self.by_definition.get(name)).flatten()
    }

    /// All pods, oldest first.
    pub(super) fn all(&self) -> Vec<NamespacedName> {
        self.pods.keys().map(|(_, name)| name.clone()).collect()
    }

    /// Records what is reported of a waiting pod; true when it is something else than the last time.
    pub(super) fn tell(&mut self, name: &NamespacedName, message: &str) -> bool {
        self.told.insert(name.clone(), message.to_owned()).as_deref() != Some(message)
    }

    /// Number of waiting pods.
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::convert;

    fn pod(name: &str, created: i64, node: &str) -> SeenPod {
        let object = serde_json::json!({
            "metadata": { "name": name, "namespace": "x", "uid": format!("{name}-{created}") },
            "spec": { "nodeName": node, "containers": [] },
        });
        let seen = convert::pod(serde_json::from_value(object).unwrap()).unwrap();
        SeenPod { created, ..seen }
    }

    fn names(waiting: &Waiting, node: &str) -> Vec<String> {
        waiting.of_node(node).into_iter().map(|name| name.name).collect()
    }

    #[test]
    fn pods_of_a_node_come_oldest_first_and_are_forgotten_by_name() {
        let mut waiting = Waiting::default();
        for (name, created, node) in [("b", 2, "n1"), ("c", 1, "n1"), ("a", 2, "n1"), ("d", 0, "n2")] {
            waiting.insert(pod(name, created, node));
        }
        assert_eq!(names(&waiting, "n1"), ["c", "a", "b"]);
        assert!(waiting.remove(&NamespacedName::new("x", "a")).is_some());
        assert!(waiting.remove(&NamespacedName::new("x", "a")).is_none());
        assert_eq!(
            (names(&waiting, "n1"), names(&waiting, "n2")),
            (vec!["c".into(), "b".into()], vec!["d".into()])
        );
        assert_eq!(waiting.len(), 3);
    }

    #[test]
    fn pods_are_found_by_the_networks_that_they_ask_for_and_told_something_new_only() {
        let mut waiting = Waiting::default();
        let object = serde_json::json!({
            "metadata": { "name": "a", "namespace": "x", "uid": "u",
                "annotations": {"ovnNetwork": r#"[{"name":"blue","interface":"net1"},{"name":"y/red","interface":"net2"}]"#} },
            "spec": { "nodeName": "n1", "containers": [] },
        });
        let seen = convert::pod(serde_json::from_value(object).unwrap()).unwrap();
        let name = seen.pod.name.clone();
        waiting.insert(seen.clone());
        assert_eq!((waiting.of_network("blue", []).len(), waiting.of_network("red", []).len()), (1, 1));
        assert!(waiting.tell(&name, "one") && !waiting.tell(&name, "one"));
        waiting.insert(seen);
        assert!(!waiting.tell(&name, "one") && waiting.tell(&name, "two"));
        waiting.remove(&name);
        assert!(waiting.by_network.is_empty() && waiting.told.is_empty());
    }

    #[test]
    fn pods_that_name_a_definition_and_those_that_ask_for_its_network_come_oldest_first_and_once() {
        let mut waiting = Waiting::default();
        let mut add = |name: &str, created: i64, annotations: serde_json::Value| {
            let object = serde_json::json!({
                "metadata": { "name": name, "namespace": "x", "uid": name, "annotations": annotations },
                "spec": { "nodeName": "n1", "containers": [] },
            });
            let seen = convert::pod(serde_json::from_value(object).unwrap()).unwrap();
            waiting.insert(SeenPod { created, ..seen });
        };
        let own = r#"[{"name":"blue","interface":"net7"}]"#;
        add("z", 1, serde_json::json!({ "k8s.v1.cni.cncf.io/networks": "first" }));
        add("y", 2, serde_json::json!({ "ovnNetwork": own }));
        add("b", 3, serde_json::json!({ "k8s.v1.cni.cncf.io/networks": "second, x/first" }));
        add("a", 4, serde_json::json!({ "ovnNetwork": own, "k8s.v1.cni.cncf.io/networks": "second" }));
        let definitions = ["first", "second"].map(|name| NamespacedName::new("x", name));
        let told = |names: Vec<NamespacedName>| names.into_iter().map(|name| name.name).collect::<String>();
        assert_eq!(told(waiting.of_network("blue", &definitions)), "zyba");
        assert_eq!(told(waiting.of_definitions(&definitions)), "zba");
        assert_eq!(told(waiting.all()), "zyba");
        for name in ["a", "b", "y", "z"] {
            waiting.remove(&NamespacedName::new("x", name));
        }
        assert!(waiting.by_definition.is_empty() && waiting.by_network.is_empty());
    }

    #[test]
    fn a_pod_made_again_elsewhere_waits_once() {
        let mut waiting = Waiting::default();
        waiting.insert(pod("a", 1, "n1"));
        waiting.insert(pod("a", 5, "n2"));
        assert_eq!((waiting.len(), names(&waiting, "n1").len(), names(&waiting, "n2").len()), (1, 0, 1));
        assert_eq!(waiting.get(&NamespacedName::new("x", "a")).map(|seen| seen.created), Some(5));
        waiting.remove(&NamespacedName::new("x", "a"));
        assert!(waiting.pods.is_empty() && waiting.created.is_empty() && waiting.by_node.is_empty());
    }
}

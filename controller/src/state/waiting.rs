//! Pods without an address, oldest first, found by name and by node: the cost of a pod's end or a node's heartbeat must not grow
//! with the number of waiting pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::index::convert::SeenPod;
use api::NamespacedName;

/// The order in which pods get an address: creation time, then name.
type Turn = (i64, NamespacedName);

/// Pods that wait for an address.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pods: BTreeMap<Turn, SeenPod>,
    /// Creation time by name.
    created: HashMap<NamespacedName, i64>,
    by_node: HashMap<String, BTreeSet<Turn>>,
}

impl Waiting {
    /// Adds a pod, or updates it. There is at most one pod for each name.
    pub(super) fn insert(&mut self, seen: SeenPod) {
        self.remove(&seen.pod.name);
        let turn = (seen.created, seen.pod.name.clone());
        self.created.insert(turn.1.clone(), turn.0);
        self.by_node.entry(seen.pod.node.clone()).or_default().insert(turn.clone());
        self.pods.insert(turn, seen);
    }

    /// Takes a pod out.
    pub(super) fn remove(&mut self, name: &NamespacedName) -> Option<SeenPod> {
        let created = self.created.remove(name)?;
        let turn = (created, name.clone());
        let seen = self.pods.remove(&turn)?;
        if let Some(turns) = self.by_node.get_mut(&seen.pod.node) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.by_node.remove(&seen.pod.node);
            }
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

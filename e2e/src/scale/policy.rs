//! Network policies as these tests make them: one direction, at most one peer, so that it is plain what must come of them.

use std::collections::BTreeMap;

use api::ovn_name;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

/// Labels of an object, or those that a selector asks for.
pub(super) type Labels = BTreeMap<String, String>;

/// Labels from pairs.
pub(super) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether a selector with these labels takes an object with those.
pub(super) fn takes(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub(super) const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// As policies and the names of port groups have it.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }
}

/// Whom a policy lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Pods of the policy's namespace with these labels.
    Pods(Labels),
    /// Pods of namespaces with these labels.
    Namespaces(Labels),
    /// Addresses.
    Block(String),
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Labels of the pods that it isolates; none means all.
    pub(super) selects: Labels,
    pub(super) direction: Direction,
    /// The peer that may connect; `None` allows no peer.
    pub(super) allows: Option<Peer>,
}

impl Policy {
    /// A policy that allows no peer to connect.
    pub(super) fn closing(namespace: &str, name: &str, selects: Labels) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { namespace, name, selects, direction: Direction::Ingress, allows: None }
    }

    /// The name of its port group.
    pub(super) fn group(&self) -> String {
        ovn_name::hashed(&ovn_name::owner_id("NetworkPolicy", &[&self.namespace, &self.name]))
    }

    /// The object.
    pub(super) fn object(&self) -> anyhow::Result<NetworkPolicy> {
        Ok(serde_json::from_value(self.json())?)
    }

    /// The object as JSON, for kubectl.
    pub(super) fn json(&self) -> Value {
        let (rules, peers) = match self.direction {
            Direction::Ingress => ("ingress", "from"),
            Direction::Egress => ("egress", "to"),
        };
        let peer = self.allows.as_ref().map(|peer| match peer {
            Peer::Pods(labels) => json!({"podSelector": {"matchLabels": labels}}),
            Peer::Namespaces(labels) => json!({"namespaceSelector": {"matchLabels": labels}}),
            Peer::Block(cidr) => json!({"ipBlock": {"cidr": cidr}}),
        });
        let list: Vec<Value> = peer.into_iter().map(|peer| json!({peers: [peer]})).collect();
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "podSelector": {"matchLabels": self.selects},
                "policyTypes": [self.direction.text()],
                rules: list,
            },
        })
    }
}

/// The name of the port group whose pods are closed in a direction.
pub(super) fn deny_group(namespace: &str, direction: Direction) -> String {
    ovn_name::hashed(&ovn_name::owner_id("NetpolNamespace", &[namespace, direction.text()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_port_groups_are_those_of_the_reference() {
        assert_eq!(deny_group("blue", Direction::Egress), "a1339415074182081584");
    }

    #[test]
    fn a_policy_that_closes_has_its_direction_and_no_rule() {
        let policy = Policy::closing("a", "deny", Labels::new());
        assert_eq!(
            policy.json()["spec"],
            json!({"podSelector": {"matchLabels": {}}, "policyTypes": ["Ingress"], "ingress": []})
        );
        let open = Policy {
            direction: Direction::Egress,
            allows: Some(Peer::Block("192.0.2.0/24".to_owned())),
            ..policy
        };
        assert_eq!(open.json()["spec"]["egress"], json!([{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]));
    }

    #[test]
    fn an_empty_selector_takes_everything() {
        let pod = labels([("a", "1"), ("b", "2")]);
        assert!(takes(&Labels::new(), &pod) && takes(&labels([("a", "1")]), &pod));
        assert!(!takes(&labels([("a", "2")]), &pod) && !takes(&labels([("c", "1")]), &pod));
    }
}

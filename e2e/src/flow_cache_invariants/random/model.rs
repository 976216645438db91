//! The oracle: what is in the cluster, and what of it may talk to what. Pure; it knows NetworkPolicy and OVN's ACLs by
//! their rules and nothing about how they are carried out.

use std::collections::{BTreeMap, BTreeSet};

use super::services::Service;

/// Values of the label that policies select by.
pub(super) const ROLES: u8 = 4;

/// The value that none of them selects. A pod keeps it.
pub(super) const OPEN: Role = ROLES;

/// A role.
pub(super) type Role = u8;

/// One pod. Pods are numbered by their place in the list, and stay in it while they are being replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    /// Number of its node, from 0.
    pub(super) node: usize,
    /// None for a pod that no policy selects or knows: the one that moves.
    pub(super) role: Option<Role>,
}

/// What a flow speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

/// A flow from one pod to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) protocol: Protocol,
}

/// Which side a rule is enforced on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

/// A NetworkPolicy with one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) direction: Direction,
    /// The pods that it isolates.
    pub(super) target: Role,
    /// The pods that its rule lets through.
    pub(super) peers: BTreeSet<Role>,
    /// And what they may speak.
    pub(super) protocols: BTreeSet<Protocol>,
    /// Tells this version of the policy from every other in the database.
    pub(super) nonce: u16,
}

/// An ACL that another client wrote into the northbound database, above all policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl {
    pub(super) direction: Direction,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) protocol: Protocol,
    pub(super) allow: bool,
    /// No two ACLs have the same.
    pub(super) priority: u16,
}

/// Everything that decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) pods: Vec<Pod>,
    pub(super) policies: BTreeMap<u16, Policy>,
    pub(super) acls: BTreeMap<u16, Acl>,
    pub(super) services: Vec<Service>,
}

impl Model {
    /// Whether a flow may pass: both of its sides must let it.
    pub(super) fn allows(&self, flow: &Flow) -> bool {
        self.side_allows(flow, Direction::Egress) && self.side_allows(flow, Direction::Ingress)
    }

    fn side_allows(&self, flow: &Flow, direction: Direction) -> bool {
        let matching = self.acls.values().filter(|acl| {
            acl.direction == direction
                && (acl.from, acl.to, acl.protocol) == (flow.from, flow.to, flow.protocol)
        });
        if let Some(acl) = matching.max_by_key(|acl| acl.priority) {
            return acl.allow;
        }
        let (own, peer) = match direction {
            Direction::Ingress => (flow.to, flow.from),
            Direction::Egress => (flow.from, flow.to),
        };
        self.policies_allow(own, Some(peer), flow.protocol, direction)
    }

    /// Whether policies let a pod talk to a peer: another pod, or none that they know.
    pub(super) fn policies_allow(
        &self,
        own: usize,
        peer: Option<usize>,
        protocol: Protocol,
        direction: Direction,
    ) -> bool {
        let role = |pod: usize| self.pods.get(pod).and_then(|pod| pod.role);
        let Some(own) = role(own) else { return true };
        let mut selecting =
            self.policies.values().filter(|p| p.direction == direction && p.target == own).peekable();
        // A pod that no policy selects is open.
        selecting.peek().is_none()
            || selecting.any(|policy| {
                peer.and_then(role).is_some_and(|peer| policy.peers.contains(&peer))
                    && policy.protocols.contains(&protocol)
            })
    }

    /// The pods of a role.
    pub(super) fn of_role(&self, role: Role) -> BTreeSet<usize> {
        (0..self.pods.len()).filter(|&pod| self.pods[pod].role == Some(role)).collect()
    }

    /// The pods that some policy isolates in a direction.
    pub(super) fn isolated(&self, direction: Direction) -> BTreeSet<usize> {
        let policies = self.policies.values().filter(|p| p.direction == direction);
        policies.flat_map(|policy| self.of_role(policy.target)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Flow = Flow { from: 0, to: 1, protocol: Protocol::Tcp };
    const UDP: Flow = Flow { from: 0, to: 1, protocol: Protocol::Udp };

    fn model() -> Model {
        let pod = |role| Pod { name: "p".into(), node: 0, role };
        Model { pods: vec![pod(Some(0)), pod(Some(1)), pod(Some(2)), pod(None)], ..Model::default() }
    }

    fn policy(direction: Direction, target: Role, peers: &[Role], protocols: &[Protocol]) -> Policy {
        let (peers, protocols) = (peers.iter().copied().collect(), protocols.iter().copied().collect());
        Policy { direction, target, peers, protocols, nonce: 0 }
    }

    #[test]
    fn without_policies_everything_passes() {
        assert!(model().allows(&TCP));
    }

    #[test]
    fn an_isolated_pod_takes_only_what_a_rule_names() {
        let mut model = model();
        model.policies.insert(0, policy(Direction::Ingress, 1, &[0], &[Protocol::Tcp]));
        assert!(model.allows(&TCP));
        assert!(!model.allows(&UDP));
        assert!(!model.allows(&Flow { from: 2, ..TCP }), "another role");
        assert!(!model.allows(&Flow { from: 3, ..TCP }), "a pod that no policy knows");
        assert!(model.allows(&Flow { from: 1, to: 0, ..TCP }), "the other direction is another pod's");
        model.policies.insert(1, policy(Direction::Ingress, 1, &[2], &[Protocol::Udp]));
        assert!(model.allows(&Flow { from: 2, ..UDP }), "policies add up");
        assert!(!model.allows(&Flow { from: 2, ..TCP }), "but their parts do not mix");
    }

    #[test]
    fn both_sides_must_let_a_flow_pass() {
        let mut model = model();
        model.policies.insert(0, policy(Direction::Egress, 0, &[2], &[Protocol::Tcp]));
        assert!(!model.allows(&TCP));
        assert!(model.allows(&Flow { to: 2, ..TCP }));
        model.policies.insert(1, policy(Direction::Ingress, 2, &[1], &[Protocol::Tcp]));
        assert!(!model.allows(&Flow { to: 2, ..TCP }));
    }

    #[test]
    fn an_acl_of_the_lower_tier_decides_before_policies_and_the_highest_priority_first() {
        let mut model = model();
        let acl = |allow, priority| Acl {
            direction: Direction::Ingress,
            from: 0,
            to: 1,
            protocol: Protocol::Tcp,
            allow,
            priority,
        };
        model.acls.insert(0, acl(false, 10));
        assert!(!model.allows(&TCP));
        assert!(model.allows(&UDP), "of the other protocol");
        model.policies.insert(0, policy(Direction::Ingress, 1, &[], &[]));
        model.acls.insert(1, acl(true, 20));
        assert!(model.allows(&TCP), "above the policy and the other ACL");
        model.policies.insert(1, policy(Direction::Egress, 0, &[], &[]));
        assert!(!model.allows(&TCP), "the other side has a say too");
    }

    #[test]
    fn roles_and_isolation_follow_the_labels() {
        let mut model = model();
        model.policies.insert(0, policy(Direction::Ingress, 1, &[0], &[]));
        assert_eq!(model.isolated(Direction::Ingress), BTreeSet::from([1]));
        assert!(model.isolated(Direction::Egress).is_empty());
        model.pods[1].role = Some(2);
        assert!(model.isolated(Direction::Ingress).is_empty());
        assert_eq!(model.of_role(2), BTreeSet::from([1, 2]));
    }
}

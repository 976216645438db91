//! What only one node may have: its chassis id, by which OVN places ports, and the addresses of its gateway. If two nodes claim the
//! same, the first one has it; a copy of a machine, or a node with false annotations, changes nothing for the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// One thing that a node claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    /// OVS's `system-id`.
    Chassis(String),
    /// An address of the gateway.
    Gateway(IpAddr),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chassis(id) => {
                write!(f, "annotation {}: chassis id {id}", api::annotation::NODE_CHASSIS_ID)
            }
            Self::Gateway(ip) => write!(f, "annotation {}: address {ip}", api::annotation::L3_GATEWAY_CONFIG),
        }
    }
}

/// The owner of each claim.
#[derive(Debug, Default)]
pub(super) struct NodeClaims {
    owners: BTreeMap<Claim, String>,
    held: BTreeMap<String, BTreeSet<Claim>>,
    /// Conflicts that have been reported: loser and claim.
    told: BTreeSet<(String, Claim)>,
}

impl NodeClaims {
    /// Replaces the claims of a node. Returns the claims that others have, with their owners, and whether something that the node
    /// had is free now.
    pub(super) fn set(&mut self, node: &str, claims: BTreeSet<Claim>) -> (Vec<(Claim, String)>, bool) {
        let freed = self.let_go(node, &claims);
        let mut lost = Vec::new();
        let mut held = BTreeSet::new();
        for claim in claims {
            match self.owners.get(&claim) {
                Some(owner) if owner != node => lost.push((claim, owner.clone())),
                _ => {
                    self.owners.insert(claim.clone(), node.to_owned());
                    held.insert(claim);
                }
            }
        }
        self.told.retain(|(loser, claim)| loser != node || lost.iter().any(|(other, _)| other == claim));
        self.held.insert(node.to_owned(), held);
        (lost, freed)
    }

    /// Removes a node. Returns whether something is free now.
    pub(super) fn remove(&mut self, node: &str) -> bool {
        let freed = self.let_go(node, &BTreeSet::new());
        self.held.remove(node);
        self.told.retain(|(loser, _)| loser != node);
        freed
    }

    fn let_go(&mut self, node: &str, keep: &BTreeSet<Claim>) -> bool {
        let held = self.held.remove(node).unwrap_or_default();
        let gone: Vec<Claim> = held.difference(keep).cloned().collect();
        for claim in &gone {
            self.owners.remove(claim);
        }
        !gone.is_empty()
    }

    /// Records that a conflict is reported; true the first time.
    pub(super) fn tell(&mut self, loser: &str, claim: &Claim) -> bool {
        self.told.insert((loser.to_owned(), claim.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(ids: &[&str]) -> BTreeSet<Claim> {
        ids.iter().map(|id| Claim::Chassis((*id).to_owned())).collect()
    }

    #[test]
    fn the_first_has_it_until_it_goes() {
        let mut all = NodeClaims::default();
        assert_eq!(all.set("n1", claims(&["a"])), (vec![], false));
        let (lost, _) = all.set("n2", claims(&["a", "b"]));
        assert_eq!(lost, [(Claim::Chassis("a".to_owned()), "n1".to_owned())]);
        assert!(all.tell("n2", &lost[0].0) && !all.tell("n2", &lost[0].0));
        assert_eq!(all.set("n1", claims(&["a"])), (vec![], false), "nothing changed");
        assert!(all.set("n1", claims(&["c"])).1, "a is free");
        assert_eq!(all.set("n2", claims(&["a", "b"])), (vec![], false));
        assert!(all.remove("n2") && !all.remove("n2"));
    }
}

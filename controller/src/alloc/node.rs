//! Subnets and ids of nodes. A node keeps what it has in the database, else what its annotations say, as long as that is
//! valid and no other node's. New ones are allocated round robin. A released one is not allocated again for a while: routes
//! and flows of other nodes may still point to it, and the node may come back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use api::annotation::{AnnotationError, NODE_ID, NODE_SUBNETS};
use ipnet::IpNet;

use super::range::REST;
use api::cluster_network::ClusterSubnet;

use crate::config::{Config, same_family};
use crate::index::convert::SeenNode;

/// The first number: 1 is the cluster router on the join switch.
const FIRST_ID: u32 = 2;
/// The last number.
const LAST_ID: u32 = 5000;

/// Why a node cannot have what it needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The annotation cannot be read.
    #[error("{0}")]
    Annotation(#[from] AnnotationError),
    /// A range in the annotation lies outside the cluster's.
    #[error(
        "annotation {NODE_SUBNETS}: {subnet} is in no cluster subnet ({cluster}); remove the annotation to get a free range"
    )]
    OutOfRange {
        /// The range found.
        subnet: IpNet,
        /// The configured ranges.
        cluster: String,
    },
    /// The annotation lacks a family, or has one twice.
    #[error(
        "annotation {NODE_SUBNETS}: one range for each of {wanted} is needed; remove the annotation to get free ranges"
    )]
    Families {
        /// Families of the cluster.
        wanted: String,
    },
    /// Another node has the range.
    #[error(
        "annotation {NODE_SUBNETS}: {subnet} overlaps {other_subnet} of node {other}; remove the annotation of one of them"
    )]
    SubnetTaken {
        /// The range found.
        subnet: IpNet,
        /// The other node's range.
        other_subnet: IpNet,
        /// The other node.
        other: String,
    },
    /// The number is not usable.
    #[error(
        "annotation {NODE_ID}: {id} is not in {FIRST_ID}–{last}; remove the annotation to get a free number"
    )]
    IdOutOfRange {
        /// The number found.
        id: u32,
        /// The last usable number.
        last: u32,
    },
    /// Another node has the number.
    #[error("annotation {NODE_ID}: {id} is the number of node {other}; remove the annotation of one of them")]
    IdTaken {
        /// The number found.
        id: u32,
        /// The other node.
        other: String,
    },
    /// No range is left.
    #[error(
        "no free range of length /{host_len} is left in cluster subnet {cidr}; add a cluster subnet or remove nodes"
    )]
    Exhausted {
        /// The last range tried.
        cidr: IpNet,
        /// Prefix length of a node's range.
        host_len: u8,
    },
    /// No number is left.
    #[error("all node numbers up to {last} are taken; enlarge the join subnet or remove nodes")]
    NoId {
        /// The last usable number.
        last: u32,
    },
}

impl NodeError {
    /// Whether it can resolve itself when another node is deleted.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self, Self::Exhausted { .. } | Self::NoId { .. })
    }
}

/// The number and ranges of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The node's number.
    pub id: u32,
    /// The node's ranges, one for each family.
    pub subnets: Vec<IpNet>,
}

/// Ranges and numbers in use.
#[derive(Debug)]
pub struct NodeAllocator {
    cluster: Vec<ClusterSubnet>,
    families: Vec<IpAddr>,
    last_id: u32,
    held: HashMap<String, Assignment>,
    ids: BTreeMap<u32, String>,
    /// By network address, so that an overlap shows between neighbours.
    ranges: BTreeMap<IpAddr, (IpNet, String)>,
    /// Released numbers and ranges, with the node that had them and the time of release; oldest first.
    resting: VecDeque<(String, Assignment, Instant)>,
    /// The last range given of each family.
    last_given: Vec<IpNet>,
    last_id_given: u32,
}

impl NodeAllocator {
    /// An allocator in which everything is free.
    pub fn new(config: &Config) -> Self {
        // The last address of an IPv4 join range is its broadcast address.
        let host_bits =
            config.join_subnets.iter().map(|net| u32::from(net.max_prefix_len() - net.prefix_len())).min();
        let room = 1u32.checked_shl(host_bits.unwrap_or(32)).unwrap_or(u32::MAX);
        Self {
            cluster: config.cluster_subnets.clone(),
            families: config.families(),
            last_id: LAST_ID.min(room.saturating_sub(2)),
            held: HashMap::new(),
            ids: BTreeMap::new(),
            ranges: BTreeMap::new(),
            resting: VecDeque::new(),
            last_given: Vec::new(),
            last_id_given: 0,
        }
    }

    /// Takes what the database holds for a node, before any annotation is read. What cannot be used is left out.
    ///
    /// # Errors
    /// The ranges or the number are not usable: outside the cluster's, of the wrong families, or of another node.
    pub fn found(&mut self, node: &str, subnets: Vec<IpNet>, id: u32) -> Result<(), NodeError> {
        let assignment = Assignment { subnets: self.check_subnets(subnets)?, id: self.check_id(id)? };
        self.hold(node, &assignment);
        Ok(())
    }

    fn hold(&mut self, node: &str, assignment: &Assignment) {
        for subnet in &assignment.subnets {
            self.ranges.insert(subnet.network(), (*subnet, node.to_owned()));
        }
        self.ids.insert(assignment.id, node.to_owned());
        self.held.insert(node.to_owned(), assignment.clone());
        self.resting.retain(|(_, rests, _)| {
            rests.id != assignment.id && rests.subnets.iter().all(|net| !assignment.subnets.contains(net))
        });
    }

    /// The number and ranges of the node; allocates what is missing. A node that has something keeps it, whatever its annotations
    /// say later.
    ///
    /// # Errors
    /// An annotation is not usable, or no range or number is free.
    pub fn assign(&mut self, node: &SeenNode, now: Instant) -> Result<Assignment, NodeError> {
        if let Some(held) = self.held.get(&node.name) {
            return Ok(held.clone());
        }
        self.resting.retain(|(_, _, since)| now.duration_since(*since) < REST);
        let own = self.resting.iter().find(|(name, _, _)| *name == node.name).map(|(_, own, _)| own.clone());
        let subnets = match (&node.subnets, &own) {
            (Some(found), _) => self.check_subnets(found.clone()?)?,
            (None, Some(own)) => own.subnets.clone(),
            (None, None) => self.free_subnets()?,
        };
        let id = match (&node.id, &own) {
            (Some(found), _) => self.check_id(found.clone()?)?,
            (None, Some(own)) => own.id,
            (None, None) => self.free_id()?,
        };
        let assignment = Assignment { id, subnets };
        self.hold(&node.name, &assignment);
        for subnet in &assignment.subnets {
            self.last_given.retain(|last| !same_family(last.addr(), subnet.addr()));
            self.last_given.push(*subnet);
        }
        self.last_id_given = id;
        Ok(assignment)
    }

    /// Frees the number and ranges of the node.
    pub fn release(&mut self, node: &str, now: Instant) {
        if let Some(held) = self.held.remove(node) {
            self.ids.remove(&held.id);
            for subnet in &held.subnets {
                self.ranges.remove(&subnet.network());
            }
            self.resting.push_back((node.to_owned(), held, now));
        }
    }

    fn check_subnets(&self, found: Vec<IpNet>) -> Result<Vec<IpNet>, NodeError> {
        let found: Vec<IpNet> = found.into_iter().map(|net| net.trunc()).collect();
        let one_each = self
            .families
            .iter()
            .all(|family| found.iter().filter(|net| same_family(net.addr(), *family)).count() == 1);
        for subnet in &found {
            if !self.cluster.iter().any(|cluster| cluster.cidr.contains(subnet)) {
                let cluster: Vec<_> = self.cluster.iter().map(ToString::to_string).collect();
                return Err(NodeError::OutOfRange { subnet: *subnet, cluster: cluster.join(", ") });
            }
            if let Some((other_subnet, other)) = self.overlapping(subnet) {
                let (other_subnet, other) = (*other_subnet, other.clone());
                return Err(NodeError::SubnetTaken { subnet: *subnet, other_subnet, other });
            }
        }
        if !one_each {
            let names = self.families.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" });
            return Err(NodeError::Families { wanted: names.collect::<Vec<_>>().join(" and ") });
        }
        Ok(found)
    }

    /// The range in use that shares addresses with `subnet`. Ranges in use do not overlap each other, so it can only be
    /// the one that starts at or before it, or the next one.
    fn overlapping(&self, subnet: &IpNet) -> Option<&(IpNet, String)> {
        let before = self.ranges.range(..=subnet.network()).next_back().map(|(_, range)| range);
        let after = self.ranges.range(subnet.network()..).next().map(|(_, range)| range);
        before
            .filter(|(net, _)| net.contains(&subnet.network()))
            .or_else(|| after.filter(|(net, _)| subnet.contains(&net.network())))
    }

    fn free_subnets(&self) -> Result<Vec<IpNet>, NodeError> {
        self.families.iter().map(|family| self.free_subnet(*family)).collect()
    }

    fn free_subnet(&self, family: IpAddr) -> Result<IpNet, NodeError> {
        let mut exhausted = None;
        let last = self.last_given.iter().find(|net| same_family(net.addr(), family)).map(IpNet::addr);
        for cluster in self.cluster.iter().filter(|cluster| same_family(cluster.cidr.addr(), family)) {
            let start = cluster.cidr.network();
            let next = last.and_then(|last| behind(&IpNet::new(last, cluster.host_len).ok()?));
            // Wraps around the range; if nothing else is left, takes what has rested longest.
            let found = next
                .and_then(|from| self.first_free(cluster, from, false))
                .or_else(|| self.first_free(cluster, start, false))
                .or_else(|| {
                    self.resting.iter().flat_map(|(_, rests, _)| &rests.subnets).copied().find(|net| {
                        cluster.cidr.contains(net)
                            && net.prefix_len() == cluster.host_len
                            && self.overlapping(net).is_none()
                    })
                })
                .or_else(|| self.first_free(cluster, start, true));
            match found {
                Some(net) => return Ok(net),
                None => {
                    exhausted = Some(NodeError::Exhausted { cidr: cluster.cidr, host_len: cluster.host_len })
                }
            }
        }
        // A family comes from a cluster subnet, so at least one was tried.
        Err(exhausted.unwrap_or(NodeError::NoId { last: self.last_id }))
    }

    /// The first free subnet of a range at or after an address; with `resting_too` also one that was released recently. It steps
    /// over the subnets in use, which are few: those of an IPv6 range are too many to enumerate.
    fn first_free(&self, cluster: &ClusterSubnet, from: IpAddr, resting_too: bool) -> Option<IpNet> {
        let mut at = from.max(cluster.cidr.network());
        while cluster.cidr.contains(&at) {
            let part = IpNet::new(at, cluster.host_len).ok()?.trunc();
            let in_use = self.overlapping(&part).map(|(net, _)| net);
            let resting = self.resting.iter().filter(|_| !resting_too);
            let mut resting = resting.flat_map(|(_, rests, _)| &rests.subnets);
            let Some(taken) = in_use.or_else(|| resting.find(|net| overlap(net, &part))) else {
                return Some(part);
            };
            // The range in use may be longer than a part, or shorter.
            at = behind(&part)?.max(behind(taken)?);
        }
        None
    }

    fn check_id(&self, id: u32) -> Result<u32, NodeError> {
        if !(FIRST_ID..=self.last_id).contains(&id) {
            return Err(NodeError::IdOutOfRange { id, last: self.last_id });
        }
        match self.ids.get(&id) {
            Some(other) => Err(NodeError::IdTaken { id, other: other.clone() }),
            None => Ok(id),
        }
    }

    fn free_id(&self) -> Result<u32, NodeError> {
        let free = |id: &u32| !self.ids.contains_key(id);
        let rests = |id: &u32| self.resting.iter().any(|(_, rests, _)| rests.id == *id);
        let round = (self.last_id_given.max(FIRST_ID - 1) + 1..=self.last_id).chain(FIRST_ID..=self.last_id);
        round
            .clone()
            .find(|id| free(id) && !rests(id))
            .or_else(|| round.clone().find(free))
            .ok_or(NodeError::NoId { last: self.last_id })
    }
}

/// The first address after a range, if there is one.
fn behind(net: &IpNet) -> Option<IpAddr> {
    Some(match net.broadcast() {
        IpAddr::V4(last) => Ipv4Addr::from(u32::from(last).checked_add(1)?).into(),
        IpAddr::V6(last) => Ipv6Addr::from(u128::from(last).checked_add(1)?).into(),
    })
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Features;
    use crate::index::convert;

    fn allocator(cluster: &str) -> NodeAllocator {
        NodeAllocator::new(&Config {
            cluster_subnets: vec![cluster.parse().unwrap()],
            service_cidrs: vec![],
            join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
            masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
            mtu: 1400,
            host_network_namespace: None,
            default_network: true,
            features: Features::ALL,
        })
    }

    fn node(name: &str, subnet: Option<&str>, id: Option<&str>) -> SeenNode {
        let mut annotations = serde_json::Map::new();
        if let Some(subnet) = subnet {
            annotations.insert(NODE_SUBNETS.to_owned(), format!("{{\"default\":[\"{subnet}\"]}}").into());
        }
        if let Some(id) = id {
            annotations.insert(NODE_ID.to_owned(), id.into());
        }
        let object = serde_json::json!({ "metadata": { "name": name, "annotations": annotations } });
        convert::node(serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn nodes_get_ranges_in_order_and_numbers_from_two() {
        let mut nodes = allocator("10.244.0.0/16/24");
        let a = nodes.assign(&node("n1", None, None), Instant::now()).unwrap();
        let b = nodes.assign(&node("n2", None, None), Instant::now()).unwrap();
        assert_eq!((a.id, a.subnets[0].to_string().as_str()), (2, "10.244.0.0/24"));
        assert_eq!((b.id, b.subnets[0].to_string().as_str()), (3, "10.244.1.0/24"));
    }

    #[test]
    fn annotations_win_and_are_skipped_for_others() {
        let mut nodes = allocator("10.244.0.0/16/24");
        let a = nodes.assign(&node("n1", Some("10.244.0.0/23"), Some("2")), Instant::now()).unwrap();
        assert_eq!(a.subnets[0].prefix_len(), 23);
        let b = nodes.assign(&node("n2", None, None), Instant::now()).unwrap();
        assert_eq!((b.id, b.subnets[0].to_string().as_str()), (3, "10.244.2.0/24"));
    }

    #[test]
    fn conflicts_and_nonsense_name_the_annotation_and_the_other_node() {
        let mut nodes = allocator("10.244.0.0/16/24");
        nodes.assign(&node("n1", None, None), Instant::now()).unwrap();
        for (wrong, hint) in [
            (node("n2", Some("10.244.0.128/25"), None), "of node n1"),
            (node("n2", Some("10.9.0.0/24"), None), "no cluster subnet (10.244.0.0/16/24)"),
            (node("n2", None, Some("2")), "number of node n1"),
            (node("n2", None, Some("1")), "not in 2–5000"),
            (node("n2", Some("nonsense"), None), "node-subnets"),
        ] {
            let error = nodes.assign(&wrong, Instant::now()).unwrap_err();
            assert!(error.to_string().contains(hint) && !error.is_exhaustion(), "{error}");
        }
        // Failures left no state behind.
        assert_eq!(nodes.assign(&node("n2", None, None), Instant::now()).unwrap().id, 3);
    }

    #[test]
    fn exhaustion_heals_when_a_node_goes() {
        let mut nodes = allocator("10.244.0.0/23/24");
        nodes.assign(&node("n1", None, None), Instant::now()).unwrap();
        nodes.assign(&node("n2", None, None), Instant::now()).unwrap();
        assert!(nodes.assign(&node("n3", None, None), Instant::now()).unwrap_err().is_exhaustion());
        nodes.release("n1", Instant::now());
        let third = nodes.assign(&node("n3", None, None), Instant::now()).unwrap();
        assert_eq!((third.id, third.subnets[0].to_string().as_str()), (4, "10.244.0.0/24"));
    }

    #[test]
    fn a_range_of_more_parts_than_can_be_counted_gives_them_at_once_and_goes_round() {
        let mut nodes = allocator("fd00::/16/64");
        let mut given = |name: &str, has: Option<&str>| {
            nodes.assign(&node(name, has, None), Instant::now()).unwrap().subnets[0].to_string()
        };
        assert_eq!(given("n1", None), "fd00::/64");
        assert_eq!(given("n2", None), "fd00:0:0:1::/64");
        // A node has a quarter of it, and another node has the last part.
        assert_eq!(given("n3", Some("fd00:4000::/18")), "fd00:4000::/18");
        assert_eq!(given("n4", None), "fd00:8000::/64");
        assert_eq!(given("n5", Some("fd00:ffff:ffff:ffff::/64")), "fd00:ffff:ffff:ffff::/64");
        assert_eq!(given("n6", None), "fd00:0:0:2::/64");
    }

    #[test]
    fn what_a_node_gave_back_rests_unless_it_comes_back_itself() {
        let mut nodes = allocator("10.244.0.0/22/24");
        let start = Instant::now();
        nodes.assign(&node("n1", None, None), start).unwrap();
        nodes.assign(&node("n2", None, None), start).unwrap();
        nodes.release("n1", start);
        let other = nodes.assign(&node("n3", None, None), start).unwrap();
        assert_eq!((other.id, other.subnets[0].to_string().as_str()), (4, "10.244.2.0/24"));
        let back = nodes.assign(&node("n1", None, None), start).unwrap();
        assert_eq!((back.id, back.subnets[0].to_string().as_str()), (2, "10.244.0.0/24"));
        nodes.release("n1", start);
        assert_eq!(
            nodes.assign(&node("n4", None, None), start).unwrap().subnets[0].to_string(),
            "10.244.3.0/24"
        );
        // Nothing else is left.
        assert_eq!(
            nodes.assign(&node("n5", None, None), start).unwrap().subnets[0].to_string(),
            "10.244.0.0/24"
        );
    }

    #[test]
    fn what_the_database_shows_goes_before_annotations() {
        let mut nodes = allocator("10.244.0.0/16/24");
        nodes.found("n1", vec!["10.244.7.0/24".parse().unwrap()], 9).unwrap();
        let forged = node("n1", Some("10.244.8.0/24"), Some("10"));
        let has = nodes.assign(&forged, Instant::now()).unwrap();
        assert_eq!((has.id, has.subnets[0].to_string().as_str()), (9, "10.244.7.0/24"));
        assert!(nodes.assign(&node("n2", Some("10.244.7.0/24"), None), Instant::now()).is_err());
        assert!(nodes.found("n3", vec!["10.9.0.0/24".parse().unwrap()], 3).is_err());
    }
}

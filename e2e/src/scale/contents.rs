//! What the northbound database holds of pods, policies and services, in terms of names, and how it differs from the
//! tests' own book.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ovsdb_client::nb::{Acl, AddressSet, LoadBalancer, LogicalSwitchPort, PortGroup};
use ovsdb_client::{MonitorSpec, Snapshot, Uuid};

use super::world::World;

/// A port group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Names of its ports.
    pub(super) ports: BTreeSet<String>,
    /// Names of the address sets that its rules ask for.
    pub(super) sets: BTreeSet<String>,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Addresses of pods' ports, by name.
    pub(super) ports: BTreeMap<String, BTreeSet<String>>,
    pub(super) groups: BTreeMap<String, Group>,
    /// Addresses by the set's name.
    pub(super) sets: BTreeMap<String, BTreeSet<String>>,
    /// Backends of all load balancers of a service, by the service.
    pub(super) services: BTreeMap<String, BTreeSet<String>>,
}

/// What of the database is looked at.
pub(super) fn monitored() -> MonitorSpec {
    MonitorSpec::new()
        .table::<LogicalSwitchPort>(&["name", "addresses", "external_ids"])
        .table::<PortGroup>(&["name", "ports", "acls"])
        .table::<Acl>(&["action", "match"])
        .table::<AddressSet>(&["name", "addresses"])
        .table::<LoadBalancer>(&["external_ids", "vips"])
}

/// Whether a port is a pod's.
pub(super) fn is_pod(port: &LogicalSwitchPort) -> bool {
    port.external_ids.get("pod").is_some_and(|pod| pod == "true")
}

impl Contents {
    /// Reads a replica of [`monitored`].
    pub(super) fn read(snapshot: &Snapshot<'_>) -> Self {
        let mut contents = Self::default();
        let mut names: HashMap<Uuid, &str> = HashMap::new();
        for port in snapshot.table::<LogicalSwitchPort>().iter().filter(|port| is_pod(port)) {
            names.insert(port.uuid, &port.name);
            // A MAC and addresses.
            let words = port.addresses.iter().flat_map(|text| text.split_whitespace().skip(1));
            contents.ports.insert(port.name.clone(), words.map(str::to_owned).collect());
        }
        let acls = snapshot.table::<Acl>();
        for group in snapshot.table::<PortGroup>().iter() {
            let rules = group.acls.iter().filter_map(|acl| acls.get(acl));
            let sets = rules.flat_map(|acl| referenced(&acl.r#match)).collect();
            let ports = group.ports.iter().filter_map(|port| names.get(port)).map(|&name| name.to_owned());
            contents.groups.insert(group.name.clone(), Group { ports: ports.collect(), sets });
        }
        for set in snapshot.table::<AddressSet>().iter() {
            contents.sets.insert(set.name.clone(), (&set.addresses).into());
        }
        for balancer in snapshot.table::<LoadBalancer>().iter() {
            let ids = &balancer.external_ids;
            if ids.get("k8s.ovn.org/kind").is_some_and(|kind| kind == "Service")
                && let Some(owner) = ids.get("k8s.ovn.org/owner")
            {
                let backends = balancer.vips.values().flat_map(|targets| targets.split(','));
                let backends = backends.filter(|target| !target.is_empty()).map(str::to_owned);
                contents.services.entry(owner.clone()).or_default().extend(backends);
            }
        }
        contents
    }

    /// The first address of a pod's port.
    pub(super) fn address(&self, port: &str) -> Option<&str> {
        self.ports.get(port)?.first().map(String::as_str)
    }

    /// Where it is not what the book says.
    pub(super) fn differences(&self, world: &World) -> Vec<String> {
        let mut found = self.of_ports(world);
        found.extend(self.of_groups(world));
        found.extend(self.of_peers(world));
        found.extend(self.of_services(world));
        found
    }

    fn of_ports(&self, world: &World) -> Vec<String> {
        let mut found = Vec::new();
        for port in world.pods.keys() {
            match self.ports.get(port) {
                None => found.push(format!("pod {port}: no port")),
                Some(addresses) if addresses.is_empty() => found.push(format!("pod {port}: no address")),
                Some(_) => {}
            }
        }
        let left = self.ports.keys().filter(|port| !world.pods.contains_key(*port));
        found.extend(left.map(|port| format!("port {port}: there is no such pod")));
        found
    }

    fn of_groups(&self, world: &World) -> Vec<String> {
        let mut found = Vec::new();
        let nothing = Group::default();
        for (name, wanted) in world.members() {
            let group = self.groups.get(&name).unwrap_or_else(|| {
                found.push(format!("port group {name}: missing"));
                &nothing
            });
            let has: BTreeSet<&str> = group.ports.iter().map(String::as_str).collect();
            found.extend(wanted.difference(&has).map(|port| format!("port group {name}: without {port}")));
            found.extend(has.difference(&wanted).map(|port| format!("port group {name}: has {port}")));
        }
        found
    }

    /// The sets that the rules of a policy ask for must hold the addresses of its peers, no more and no fewer.
    fn of_peers(&self, world: &World) -> Vec<String> {
        let mut found = Vec::new();
        for policy in world.policies() {
            let Some(peers) = world.peers(policy) else { continue };
            let wanted: BTreeSet<&str> =
                peers.iter().filter_map(|port| self.ports.get(*port)).flatten().map(String::as_str).collect();
            let asked = self.groups.get(&policy.group()).into_iter().flat_map(|group| &group.sets);
            let has: BTreeSet<&str> =
                asked.filter_map(|set| self.sets.get(set)).flatten().map(String::as_str).collect();
            let which = format!("policy {}/{}", policy.namespace, policy.name);
            found.extend(wanted.difference(&has).map(|ip| format!("{which}: does not let {ip} through")));
            found.extend(has.difference(&wanted).map(|ip| format!("{which}: lets {ip} through")));
        }
        found
    }

    fn of_services(&self, world: &World) -> Vec<String> {
        let mut found = Vec::new();
        for service in &world.services {
            let wanted: BTreeSet<String> = service
                .backends
                .iter()
                .filter_map(|port| self.address(port))
                .map(|ip| format!("{ip}:8080"))
                .collect();
            match self.services.get(&service.owner()) {
                Some(has) if *has == wanted => {}
                has => found.push(format!("service {}: backends {has:?}, not {wanted:?}", service.owner())),
            }
        }
        found
    }
}

/// The address sets that a match names: `$` and letters and digits.
fn referenced(condition: &str) -> impl Iterator<Item = String> {
    condition.split('$').skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Labels, Peer, Policy, labels};
    use super::super::world::{Pod, Service};
    use super::*;

    fn pod(name: &str) -> Pod {
        let (namespace, name) = ("x".to_owned(), name.to_owned());
        Pod { namespace, node: "sim000".to_owned(), labels: labels([("app", &name)]), name }
    }

    fn world() -> World {
        let mut world = World::default();
        world.namespaces.insert("x".to_owned(), Labels::new());
        world.add_pod(pod("a"));
        world.add_pod(pod("b"));
        let closing = Policy::closing("x", "p", labels([("app", "a")]));
        world.add_policy(Policy { allows: Some(Peer::Pods(labels([("app", "b")]))), ..closing });
        let (namespace, name) = ("x".to_owned(), "s".to_owned());
        world.services.push(Service { namespace, name, local: false, backends: vec!["x_b".to_owned()] });
        world
    }

    /// What the database has to hold for that.
    fn right(world: &World) -> Contents {
        let one = |text: &str| BTreeSet::from([text.to_owned()]);
        let mut contents = Contents {
            ports: [("x_a".to_owned(), one("10.0.0.1")), ("x_b".to_owned(), one("10.0.0.2"))].into(),
            sets: [("a1".to_owned(), one("10.0.0.2"))].into(),
            services: [("x/s".to_owned(), one("10.0.0.2:8080"))].into(),
            ..Contents::default()
        };
        for (group, ports) in world.members() {
            let ports = ports.into_iter().map(str::to_owned).collect();
            contents.groups.insert(group, Group { ports, sets: BTreeSet::new() });
        }
        let group = world.policies().next().unwrap().group();
        contents.groups.get_mut(&group).unwrap().sets = one("a1");
        contents
    }

    #[test]
    fn what_is_right_has_no_differences() {
        let world = world();
        assert_eq!(right(&world).differences(&world), [""; 0]);
    }

    #[test]
    fn a_pod_outside_its_groups_is_a_difference_and_so_is_one_too_many() {
        let world = world();
        let mut contents = right(&world);
        for group in contents.groups.values_mut() {
            group.ports.clear();
        }
        assert_eq!(contents.differences(&world).len(), 2);
        for group in contents.groups.values_mut() {
            group.ports.insert("x_b".to_owned());
        }
        // Missing in two; too many in these and in the other direction's.
        assert_eq!(contents.differences(&world).len(), 5);
    }

    #[test]
    fn ports_and_peers_and_backends_are_compared() {
        let world = world();
        let mut contents = right(&world);
        contents.sets.clear();
        assert_eq!(contents.differences(&world), ["policy x/p: does not let 10.0.0.2 through"]);
        let mut contents = right(&world);
        contents.ports.insert("x_c".to_owned(), BTreeSet::new());
        assert_eq!(contents.differences(&world), ["port x_c: there is no such pod"]);
        let mut contents = right(&world);
        contents.services.clear();
        assert_eq!(contents.differences(&world).len(), 1);
        let mut contents = right(&world);
        contents.ports.remove("x_a");
        assert!(contents.differences(&world).contains(&"pod x_a: no port".to_owned()));
    }

    #[test]
    fn address_sets_are_found_in_a_match() {
        let found = referenced("(ip4.src == {$a12, $a13_b} || ip4) && outport == @a14").collect::<Vec<_>>();
        assert_eq!(found, ["a12", "a13_b"]);
    }
}

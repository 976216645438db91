//! What happens to the cluster: one change after another, drawn by chance. Pure.

use std::collections::BTreeSet;
use std::fmt;

use super::model::{Acl, Direction, Flow, Model, OPEN, Policy, Protocol, ROLES, Role};
use super::services::{AFFINE, Client, LOCAL, ServiceFlow};
use crate::random::Random;
use testbed::tools::load::PORTS;

/// Policies and ACLs that exist at a time, at most.
const MOST_POLICIES: usize = 6;
const MOST_ACLS: usize = 4;
/// Number of changes for which an agent stays down.
const AWAY: u32 = 3;
/// Once in so many changes on average something is restarted or a pod replaced: they take seconds.
const RARE: usize = 16;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    AddPolicy {
        id: u16,
        policy: Policy,
    },
    RewritePolicy {
        id: u16,
        policy: Policy,
    },
    RemovePolicy {
        id: u16,
    },
    Relabel {
        pod: usize,
        role: Role,
    },
    AddAcl {
        id: u16,
        acl: Acl,
    },
    RemoveAcl {
        id: u16,
    },
    /// Deleted and made again, with the same address as a rule, perhaps with another label.
    ReplacePod {
        pod: usize,
        role: Role,
    },
    /// The pod without an owner is deleted and made again with the same address on the other node.
    MovePod {
        pod: usize,
        node: usize,
    },
    /// ovn-controller is killed and started.
    RestartController {
        node: usize,
    },
    /// ovs-vswitchd is killed and started.
    RestartSwitch {
        node: usize,
    },
    /// The agent is killed and stays down.
    AgentDown {
        node: usize,
    },
    /// It is started again.
    AgentUp {
        node: usize,
    },
    /// A service gets other endpoints, perhaps none.
    SetBackends {
        service: usize,
        backends: BTreeSet<usize>,
    },
    /// Its endpoints get the other port.
    SetBackendPort {
        service: usize,
        port: usize,
    },
    /// Session affinity is switched.
    SetAffinity {
        service: usize,
        affinity: bool,
    },
    /// The external traffic policy is switched.
    SetLocal {
        service: usize,
        local: bool,
    },
    RemoveService {
        service: usize,
    },
    /// Made again with the same addresses.
    MakeService {
        service: usize,
        backends: BTreeSet<usize>,
    },
    /// Deleted and at once made again.
    ReplaceService {
        service: usize,
        backends: BTreeSet<usize>,
    },
}

/// The kinds in the order of the report.
pub(super) const KINDS: &[&str] = &[
    "policy added",
    "policy changed",
    "policy removed",
    "pod relabelled",
    "ACL added",
    "ACL removed",
    "pod replaced",
    "pod moved to the other node",
    "ovn-controller restarted",
    "vswitchd restarted",
    "agent killed",
    "agent started",
    "endpoints changed",
    "port of endpoints changed",
    "session affinity switched",
    "external traffic policy switched",
    "service deleted",
    "service made",
    "service deleted and made again",
];

impl Change {
    /// Its place in [`KINDS`].
    pub(super) fn kind(&self) -> usize {
        match self {
            Self::AddPolicy { .. } => 0,
            Self::RewritePolicy { .. } => 1,
            Self::RemovePolicy { .. } => 2,
            Self::Relabel { .. } => 3,
            Self::AddAcl { .. } => 4,
            Self::RemoveAcl { .. } => 5,
            Self::ReplacePod { .. } => 6,
            Self::MovePod { .. } => 7,
            Self::RestartController { .. } => 8,
            Self::RestartSwitch { .. } => 9,
            Self::AgentDown { .. } => 10,
            Self::AgentUp { .. } => 11,
            Self::SetBackends { .. } => 12,
            Self::SetBackendPort { .. } => 13,
            Self::SetAffinity { .. } => 14,
            Self::SetLocal { .. } => 15,
            Self::RemoveService { .. } => 16,
            Self::MakeService { .. } => 17,
            Self::ReplaceService { .. } => 18,
        }
    }

    /// The model after it.
    pub(super) fn apply(&self, model: &mut Model) {
        match self {
            Self::AddPolicy { id, policy } | Self::RewritePolicy { id, policy } => {
                model.policies.insert(*id, policy.clone());
            }
            Self::RemovePolicy { id } => {
                model.policies.remove(id);
            }
            Self::Relabel { pod, role } | Self::ReplacePod { pod, role } => {
                model.pods[*pod].role = Some(*role)
            }
            Self::AddAcl { id, acl } => {
                model.acls.insert(*id, acl.clone());
            }
            Self::RemoveAcl { id } => {
                model.acls.remove(id);
            }
            Self::MovePod { pod, node } => model.pods[*pod].node = *node,
            Self::SetBackends { service, backends } => {
                model.services[*service].backends.clone_from(backends);
            }
            Self::SetBackendPort { service, port } => model.services[*service].port = *port,
            Self::SetAffinity { service, affinity } => model.services[*service].affinity = *affinity,
            Self::SetLocal { service, local } => model.services[*service].local = *local,
            Self::RemoveService { service } => model.services[*service].live = false,
            Self::MakeService { service, backends } | Self::ReplaceService { service, backends } => {
                let service = &mut model.services[*service];
                service.live = true;
                service.backends.clone_from(backends);
            }
            Self::RestartController { .. }
            | Self::RestartSwitch { .. }
            | Self::AgentDown { .. }
            | Self::AgentUp { .. } => {}
        }
    }

    /// Whether a flow may stop and go while it happens, whatever the policies say.
    pub(super) fn disturbs(&self, flow: &Flow, model: &Model) -> bool {
        let ends = [flow.from, flow.to];
        match self {
            Self::ReplacePod { pod, .. } | Self::MovePod { pod, .. } => ends.contains(pod),
            Self::RestartController { node } | Self::RestartSwitch { node } => {
                ends.iter().any(|&end| model.pods[end].node == *node)
            }
            _ => false,
        }
    }

    /// Whether another pod's policies may deny a flow from now on than did before, so that two ovn-controllers carry it out.
    pub(super) fn moves_denials(&self) -> bool {
        matches!(self, Self::RewritePolicy { .. } | Self::Relabel { .. })
    }

    /// The service that it is about.
    pub(super) fn service(&self) -> Option<usize> {
        match self {
            Self::SetBackends { service, .. }
            | Self::SetBackendPort { service, .. }
            | Self::SetAffinity { service, .. }
            | Self::SetLocal { service, .. }
            | Self::RemoveService { service }
            | Self::MakeService { service, .. }
            | Self::ReplaceService { service, .. } => Some(*service),
            _ => None,
        }
    }

    /// Whether a flow to a service may stop and go while it happens, whatever the policies say.
    pub(super) fn disturbs_service(&self, flow: &ServiceFlow, model: &Model) -> bool {
        match self {
            Self::ReplacePod { pod, .. } => {
                flow.client == Client::Pod(*pod) || model.services[flow.service].backends.contains(pod)
            }
            Self::RestartController { node } | Self::RestartSwitch { node } => {
                model.goes_through(flow, *node)
            }
            // Who has a connection is told by the new kind of it only.
            Self::SetLocal { service, .. }
            | Self::RemoveService { service }
            | Self::MakeService { service, .. }
            | Self::ReplaceService { service, .. } => flow.service == *service,
            _ => false,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", KINDS[self.kind()])?;
        match self {
            Self::AddPolicy { id, policy } | Self::RewritePolicy { id, policy } => write!(
                f,
                " p{id}: {:?} of r{} from/to {:?} {:?}",
                policy.direction, policy.target, policy.peers, policy.protocols
            ),
            Self::RemovePolicy { id } => write!(f, " p{id}"),
            Self::Relabel { pod, role } | Self::ReplacePod { pod, role } => write!(f, " pod {pod} r{role}"),
            Self::AddAcl { id, acl } => write!(
                f,
                " {id}: {} {:?} {} to {} {:?}",
                if acl.allow { "allow" } else { "drop" },
                acl.direction,
                acl.from,
                acl.to,
                acl.protocol
            ),
            Self::RemoveAcl { id } => write!(f, " {id}"),
            Self::MovePod { node, .. }
            | Self::RestartController { node }
            | Self::RestartSwitch { node }
            | Self::AgentDown { node }
            | Self::AgentUp { node } => write!(f, " n{}", node + 1),
            Self::SetBackends { service, backends }
            | Self::MakeService { service, backends }
            | Self::ReplaceService { service, backends } => write!(f, " {service}: pods {backends:?}"),
            Self::SetBackendPort { service, port } => write!(f, " {service}: {}", PORTS[port % PORTS.len()]),
            Self::SetAffinity { service, affinity: on } | Self::SetLocal { service, local: on } => {
                write!(f, " {service}: {on}")
            }
            Self::RemoveService { service } => write!(f, " {service}"),
        }
    }
}

/// Draws changes.
#[derive(Debug)]
pub(super) struct Source {
    random: Random,
    flows: Vec<Flow>,
    nodes: usize,
    next: u16,
    /// The node whose agent is down, and for how many more changes.
    away: Option<(usize, u32)>,
    /// The rare ones, each in its turn, so that every run has all of them.
    turn: usize,
}

impl Source {
    /// Changes for pods with these flows between them.
    pub(super) fn new(random: Random, flows: &[Flow], nodes: usize) -> Self {
        Self { random, flows: flows.to_vec(), nodes, next: 0, away: None, turn: 0 }
    }

    /// The next change.
    pub(super) fn next(&mut self, model: &Model) -> Change {
        if let Some((node, left)) = self.away {
            if left == 0 {
                self.away = None;
                return Change::AgentUp { node };
            }
            self.away = Some((node, left - 1));
        } else if self.random.below(RARE) == 0 {
            return self.rare(model);
        }
        loop {
            if let Some(change) = self.common(model) {
                return change;
            }
        }
    }

    fn rare(&mut self, model: &Model) -> Change {
        let node = self.random.below(self.nodes);
        self.turn += 1;
        match self.turn % 7 {
            1 | 5 => {
                let managed: Vec<usize> =
                    (0..model.pods.len()).filter(|&pod| model.pods[pod].role.is_some()).collect();
                let pod = self.random.pick(&managed).copied().unwrap_or_default();
                let role = self.role();
                let stays = model.pods[pod].role.filter(|role| *role == OPEN);
                Change::ReplacePod { pod, role: stays.unwrap_or(role) }
            }
            2 | 6 => {
                self.away = Some((node, AWAY));
                Change::AgentDown { node }
            }
            3 => match model.pods.iter().position(|pod| pod.role.is_none()) {
                Some(pod) => Change::MovePod { pod, node: (model.pods[pod].node + 1) % self.nodes },
                None => Change::RestartController { node },
            },
            4 => Change::RestartController { node },
            _ => Change::RestartSwitch { node },
        }
    }

    fn common(&mut self, model: &Model) -> Option<Change> {
        let ids: Vec<u16> = model.policies.keys().copied().collect();
        let acls: Vec<u16> = model.acls.keys().copied().collect();
        match self.random.below(16) {
            10.. => self.service(model),
            0 | 1 if ids.len() < MOST_POLICIES => {
                Some(Change::AddPolicy { id: self.id(), policy: self.policy() })
            }
            2..=4 => {
                let id = *self.random.pick(&ids)?;
                Some(Change::RewritePolicy { id, policy: self.policy() })
            }
            5 => Some(Change::RemovePolicy { id: *self.random.pick(&ids)? }),
            6 | 7 => {
                let pod = self.random.below(model.pods.len());
                let role = self.role();
                model.pods[pod].role.filter(|&old| old != role && old != OPEN)?;
                Some(Change::Relabel { pod, role })
            }
            8 if acls.len() < MOST_ACLS => {
                let flow = *self.random.pick(&self.flows)?;
                let direction = self.direction();
                let priority = 1000 + self.id();
                let Flow { from, to, protocol } = flow;
                let acl = Acl { direction, from, to, protocol, allow: self.random.chance(40), priority };
                Some(Change::AddAcl { id: self.id(), acl })
            }
            9 => Some(Change::RemoveAcl { id: *self.random.pick(&acls)? }),
            _ => None,
        }
    }

    fn service(&mut self, model: &Model) -> Option<Change> {
        let service = self.random.below(model.services.len());
        let state = model.services.get(service)?;
        // The nodes' own part of a service is the agents'.
        let well = self.away.is_none();
        if !state.live {
            return well.then(|| Change::MakeService { service, backends: self.backends(model) });
        }
        match self.random.below(10) {
            0..=4 => {
                let backends = self.backends(model);
                (backends != state.backends).then_some(Change::SetBackends { service, backends })
            }
            5 => Some(Change::SetBackendPort { service, port: 1 - state.port }),
            6 if service == AFFINE => Some(Change::SetAffinity { service, affinity: !state.affinity }),
            7 if service == LOCAL && well => Some(Change::SetLocal { service, local: !state.local }),
            8 if well => Some(Change::RemoveService { service }),
            9 if well => Some(Change::ReplaceService { service, backends: self.backends(model) }),
            _ => None,
        }
    }

    /// None at times, one or two mostly.
    fn backends(&mut self, model: &Model) -> BTreeSet<usize> {
        let pods: Vec<usize> = (0..model.pods.len()).filter(|&pod| model.pods[pod].role.is_some()).collect();
        // Most services are open to all, so that their flows are to go on most of the time.
        let open: Vec<usize> =
            pods.iter().copied().filter(|&pod| model.pods[pod].role == Some(OPEN)).collect();
        let among = if self.random.chance(60) { open } else { pods };
        let count = [0, 1, 1, 1, 2, 2, 2, 3][self.random.below(8)];
        (0..count).filter_map(|_| self.random.pick(&among).copied()).collect()
    }

    /// A number that no policy and no ACL had before.
    fn id(&mut self) -> u16 {
        self.next += 1;
        self.next
    }

    fn role(&mut self) -> Role {
        u8::try_from(self.random.below(usize::from(ROLES))).unwrap_or_default()
    }

    fn direction(&mut self) -> Direction {
        if self.random.chance(60) { Direction::Ingress } else { Direction::Egress }
    }

    fn policy(&mut self) -> Policy {
        let peers: BTreeSet<Role> = (0..ROLES).filter(|_| self.random.chance(55)).collect();
        let protocols = match self.random.below(4) {
            0 => BTreeSet::from([Protocol::Tcp]),
            1 => BTreeSet::from([Protocol::Udp]),
            _ => BTreeSet::from([Protocol::Tcp, Protocol::Udp]),
        };
        Policy { direction: self.direction(), target: self.role(), peers, protocols, nonce: self.id() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Pod;
    use super::super::services::{SERVICES, Service};
    use super::*;

    fn run(seed: u64, count: usize) -> Vec<Change> {
        let pod = |node, role| Pod { name: String::new(), node, role };
        let mut model = Model {
            pods: vec![pod(0, Some(0)), pod(1, Some(1)), pod(0, Some(2)), pod(0, None)],
            services: vec![Service::default(); SERVICES],
            ..Model::default()
        };
        let flows = [Flow { from: 0, to: 1, protocol: Protocol::Tcp }];
        let mut source = Source::new(Random::new(seed), &flows, 2);
        (0..count)
            .map(|_| {
                let change = source.next(&model);
                change.apply(&mut model);
                assert!(model.policies.len() <= MOST_POLICIES && model.acls.len() <= MOST_ACLS);
                change
            })
            .collect()
    }

    #[test]
    fn a_seed_gives_the_same_changes_again() {
        assert_eq!(run(5, 200), run(5, 200));
        assert_ne!(run(5, 200), run(6, 200));
    }

    #[test]
    fn a_long_run_has_every_kind() {
        let kinds: BTreeSet<usize> = run(1, 2000).iter().map(Change::kind).collect();
        assert_eq!(kinds.len(), KINDS.len());
    }

    #[test]
    fn no_pod_is_made_while_an_agent_is_away() {
        for seed in 0..20 {
            let mut away = false;
            for change in run(seed, 500) {
                match change {
                    Change::AgentDown { .. } => away = true,
                    Change::AgentUp { .. } => away = false,
                    Change::ReplacePod { .. } | Change::MovePod { .. } => assert!(!away),
                    _ => {}
                }
            }
        }
    }
}

//! Reading NetworkPolicies. A part that cannot be used is left out and named, and never opens anything: the policy still
//! isolates, a rule keeps only the peers and ports that could be read, and none is not the same as all.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Direction, IpBlock, NamespaceScope, PeerSelector, Peers, Policy, PortRule, PortSpec, Rule};
use crate::index::Protocol;
use crate::index::selector::Selector;
use api::NamespacedName;
use api::multi_policy::MultiNetworkPolicy;
use api::pod_attachments::NetworkRef;
use api::problem::{Problem, Problems};

/// A policy of virtual networks as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenMultiPolicy {
    /// `metadata.uid`.
    pub uid: String,
    /// The policy, without what is wrong.
    pub policy: Policy,
    /// Fields that are wrong.
    pub problems: Vec<Problem>,
    /// The networks that it is about, as they are named, or what is wrong with the names.
    pub networks: Result<Vec<NetworkRef>, String>,
}

impl SeenMultiPolicy {
    /// Reads a MultiNetworkPolicy. One that cannot be read isolates all pods of its namespace on its networks.
    pub fn from_object(object: &MultiNetworkPolicy) -> Self {
        let name = NamespacedName::from(&object.metadata);
        let spec = serde_path_to_error::deserialize::<_, networking::NetworkPolicySpec>(&object.spec);
        let (policy, problems) = match spec {
            Ok(spec) => Policy::read(name, Some(&spec), "multi-network policy"),
            Err(error) => {
                let mut problems = Problems::new("multi-network policy", &name);
                problems.add(format!("spec.{}", error.path()), error.inner().to_string());
                let closed = Policy {
                    name,
                    subject: Selector::default(),
                    ingress: Some(Vec::new()),
                    egress: Some(Vec::new()),
                };
                (closed, problems.into_inner())
            }
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        Self { uid, policy, problems, networks: object.networks() }
    }
}

impl Policy {
    /// Reads a NetworkPolicy.
    pub fn from_object(object: &networking::NetworkPolicy) -> (Self, Vec<Problem>) {
        Self::read(NamespacedName::from(&object.metadata), object.spec.as_ref(), "network policy")
    }

    fn read(
        name: NamespacedName,
        spec: Option<&networking::NetworkPolicySpec>,
        kind: &str,
    ) -> (Self, Vec<Problem>) {
        let mut problems = Problems::new(kind, &name);
        let mut policy = Self { name, subject: Selector::default(), ingress: None, egress: None };
        let Some(spec) = spec else {
            return (policy, problems.into_inner());
        };
        let (subject, errors) = spec.pod_selector.as_ref().map(Selector::parse_widened).unwrap_or_default();
        // With a selector that could not be read the policy isolates more pods than it should, and allows them nothing.
        let readable = errors.is_empty();
        for error in errors {
            problems.add("spec.podSelector", error);
        }
        policy.subject = subject;
        let (ingress, egress) = directions(spec, &mut problems);
        let mut reader = Reader { namespace: &policy.name.namespace, problems: &mut problems };
        if ingress {
            let rules = spec.ingress.iter().flatten().enumerate().filter(|_| readable);
            policy.ingress = Some(
                rules
                    .map(|(i, rule)| {
                        reader.rule(Direction::Ingress, i, rule.from.as_deref(), rule.ports.as_deref())
                    })
                    .collect(),
            );
        }
        if egress {
            let rules = spec.egress.iter().flatten().enumerate().filter(|_| readable);
            policy.egress = Some(
                rules
                    .map(|(i, rule)| {
                        reader.rule(Direction::Egress, i, rule.to.as_deref(), rule.ports.as_deref())
                    })
                    .collect(),
            );
        }
        (policy, problems.into_inner())
    }
}

/// Which directions the policy isolates; both when a type cannot be read. Without `policyTypes`: ingress always, egress when there are egress rules.
fn directions(spec: &networking::NetworkPolicySpec, problems: &mut Problems) -> (bool, bool) {
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.is_empty() {
        return (true, spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()));
    }
    let (mut ingress, mut egress) = (false, false);
    for (i, text) in types.iter().enumerate() {
        match text.as_str() {
            "Ingress" => ingress = true,
            "Egress" => egress = true,
            other => {
                let problem = format_args!("unknown type `{other}`; supported: Ingress, Egress");
                problems.add(format_args!("spec.policyTypes[{i}]"), problem);
                (ingress, egress) = (true, true);
            }
        }
    }
    (ingress, egress)
}

struct Reader<'a> {
    namespace: &'a str,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn rule(
        &mut self,
        direction: Direction,
        i: usize,
        peers: Option<&[networking::NetworkPolicyPeer]>,
        ports: Option<&[networking::NetworkPolicyPort]>,
    ) -> Rule {
        let (rules, list) = match direction {
            Direction::Ingress => ("ingress", "from"),
            Direction::Egress => ("egress", "to"),
        };
        let peers = peers.filter(|peers| !peers.is_empty()).map(|peers| {
            let mut read = Peers::default();
            for (j, peer) in peers.iter().enumerate() {
                self.peer(&format!("spec.{rules}[{i}].{list}[{j}]"), peer, &mut read);
            }
            read
        });
        let ports = ports.filter(|ports| !ports.is_empty()).map(|ports| {
            let ports = ports.iter().enumerate();
            ports.filter_map(|(j, port)| self.port(&format!("spec.{rules}[{i}].ports[{j}]"), port)).collect()
        });
        Rule { peers, ports }
    }

    fn peer(&mut self, field: &str, peer: &networking::NetworkPolicyPeer, read: &mut Peers) {
        let selects = peer.namespace_selector.is_some() || peer.pod_selector.is_some();
        match (&peer.ip_block, selects) {
            (Some(_), true) => {
                self.problems.add(field, "ipBlock cannot stand beside podSelector or namespaceSelector")
            }
            (Some(block), false) => read.blocks.extend(self.block(&format!("{field}.ipBlock"), block)),
            (None, false) => {
                self.problems.add(field, "one of podSelector, namespaceSelector, ipBlock is needed")
            }
            (None, true) => read.selectors.extend(self.selector(field, peer)),
        }
    }

    fn selector(&mut self, field: &str, peer: &networking::NetworkPolicyPeer) -> Option<PeerSelector> {
        let mut parse = |selector, name| {
            Selector::parse(selector)
                .map_err(|error| self.problems.add(format_args!("{field}.{name}"), error))
                .ok()
        };
        let namespace = match &peer.namespace_selector {
            Some(selector) => NamespaceScope::Matching(parse(selector, "namespaceSelector")?),
            None => NamespaceScope::Own(self.namespace.to_owned()),
        };
        let pod = match &peer.pod_selector {
            Some(selector) => Some(parse(selector, "podSelector")?),
            None => None,
        };
        Some(PeerSelector { namespace, pod })
    }

    /// The block, or nothing if any part of it is invalid: without one of its exceptions it would allow too much.
    fn block(&mut self, field: &str, block: &networking::IPBlock) -> Option<IpBlock> {
        let cidr = self.cidr(&format!("{field}.cidr"), &block.cidr)?;
        let mut except = Vec::new();
        for (i, text) in block.except.iter().flatten().enumerate() {
            let field = format!("{field}.except[{i}]");
            let net = self.cidr(&field, text)?;
            if !cidr.contains(&net) || cidr == net {
                self.problems.add(&field, format_args!("{net} is not a part of {cidr}"));
                return None;
            }
            except.push(net);
        }
        Some(IpBlock { cidr, except })
    }

    fn cidr(&mut self, field: &str, text: &str) -> Option<IpNet> {
        let net = text.parse::<IpNet>().ok();
        if net.is_none() {
            self.problems.add(field, format_args!("`{text}` is not a CIDR such as 192.0.2.0/24"));
        }
        net.map(|net| net.trunc())
    }

    fn port(&mut self, field: &str, port: &networking::NetworkPolicyPort) -> Option<PortRule> {
        let Some(protocol) = Protocol::parse(port.protocol.as_deref()) else {
            let text = port.protocol.as_deref().unwrap_or_default();
            self.problems.add(
                format_args!("{field}.protocol"),
                format_args!("unknown protocol `{text}`; supported: TCP, UDP, SCTP"),
            );
            return None;
        };
        let spec = match (&port.port, port.end_port) {
            (None, None) => PortSpec::All,
            (Some(IntOrString::String(name)), None) => PortSpec::Named(name.clone()),
            (Some(IntOrString::Int(number)), None) => {
                PortSpec::Number(self.problems.port(format_args!("{field}.port"), *number)?)
            }
            (Some(IntOrString::Int(number)), Some(end)) => {
                let first = self.problems.port(format_args!("{field}.port"), *number)?;
                let last = self.problems.port(format_args!("{field}.endPort"), end)?;
                if last < first {
                    let problem = format_args!("{last} is below port {first}");
                    self.problems.add(format_args!("{field}.endPort"), problem);
                    return None;
                }
                PortSpec::Range(first, last)
            }
            (None | Some(IntOrString::String(_)), Some(_)) => {
                self.problems.add(format_args!("{field}.endPort"), "needs a port that is a number");
                return None;
            }
        };
        Some(PortRule { protocol, port: spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(spec: serde_json::Value) -> (Policy, Vec<String>) {
        let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        let (policy, problems) = Policy::from_object(&serde_json::from_value(object).unwrap());
        (policy, problems.into_iter().map(|p| format!("{}: {}", p.object, p.message)).collect())
    }

    fn ingress_rule(rule: serde_json::Value) -> (Rule, Vec<String>) {
        let (policy, problems) = read(json!({"podSelector": {}, "ingress": [rule]}));
        (policy.ingress.unwrap().remove(0), problems)
    }

    #[test]
    fn without_policy_types_ingress_is_isolated_and_egress_only_with_rules() {
        let directions = |spec| {
            let (policy, _) = read(spec);
            (policy.ingress.is_some(), policy.egress.is_some())
        };
        assert_eq!(directions(json!({"podSelector": {}})), (true, false));
        assert_eq!(directions(json!({"podSelector": {}, "egress": []})), (true, false));
        assert_eq!(directions(json!({"podSelector": {}, "egress": [{}]})), (true, true));
        assert_eq!(directions(json!({"podSelector": {}, "policyTypes": ["Egress"]})), (false, true));
        assert_eq!(
            directions(json!({"podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}]})),
            (false, true)
        );
        assert_eq!(
            directions(json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]})),
            (true, false)
        );
    }

    #[test]
    fn absent_and_empty_peers_and_ports_mean_all_and_no_rules_mean_none() {
        for rule in [json!({}), json!({"from": [], "ports": []}), json!({"from": null, "ports": null})] {
            assert_eq!(ingress_rule(rule).0, Rule { peers: None, ports: None });
        }
        assert_eq!(read(json!({"podSelector": {}, "ingress": []})).0.ingress, Some(Vec::new()));
        assert_eq!(read(json!({"podSelector": {}})).0.ingress, Some(Vec::new()));
    }

    #[test]
    fn a_pod_selector_alone_means_the_own_namespace_and_a_namespace_selector_alone_means_all_its_pods() {
        let selectors = |peer| ingress_rule(json!({"from": [peer]})).0.peers.unwrap().selectors.remove(0);
        assert_eq!(selectors(json!({"podSelector": {}})).text(), "n_LS{}");
        assert_eq!(selectors(json!({"namespaceSelector": {}})).text(), "LS{}_LS{}_LNM");
        assert_eq!(selectors(json!({"namespaceSelector": {}, "podSelector": {}})).text(), "LS{}_LS{}");
    }

    #[test]
    fn a_port_that_cannot_be_read_opens_nothing_and_is_named() {
        for (port, problem) in [
            (json!({"port": 0}), "port: port 0 is not between 1 and 65535"),
            (json!({"port": 80, "endPort": 79}), "endPort: 79 is below port 80"),
            (json!({"port": "web", "endPort": 90}), "endPort: needs a port that is a number"),
            (json!({"endPort": 90}), "endPort: needs a port that is a number"),
            (json!({"protocol": "ICMP"}), "protocol: unknown protocol `ICMP`; supported: TCP, UDP, SCTP"),
        ] {
            let (rule, problems) = ingress_rule(json!({"ports": [port]}));
            assert_eq!(rule.ports, Some(Vec::new()), "{port}");
            assert_eq!(problems, [format!("network policy n/p: spec.ingress[0].ports[0].{problem}")]);
        }
    }

    #[test]
    fn a_peer_that_cannot_be_read_allows_nobody_and_is_named() {
        for (peer, problem) in [
            (json!({}), ": one of podSelector, namespaceSelector, ipBlock is needed"),
            (
                json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
                ": ipBlock cannot stand beside podSelector or namespaceSelector",
            ),
            (
                json!({"ipBlock": {"cidr": "10.0.0/8"}}),
                ".ipBlock.cidr: `10.0.0/8` is not a CIDR such as 192.0.2.0/24",
            ),
            (
                json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}}),
                ".ipBlock.except[1]: 11.0.0.0/16 is not a part of 10.0.0.0/8",
            ),
            (
                json!({"podSelector": {"matchExpressions": [{"key": "k", "operator": "Is"}]}}),
                ".podSelector: matchExpressions key `k`: unknown operator `Is`; supported: In, NotIn, Exists, DoesNotExist",
            ),
        ] {
            let (rule, problems) = ingress_rule(json!({"from": [peer]}));
            assert_eq!(rule.peers, Some(Peers::default()), "{peer}");
            assert_eq!(problems, [format!("network policy n/p: spec.ingress[0].from[0]{problem}")]);
        }
    }

    #[test]
    fn a_subject_that_cannot_be_read_isolates_more_and_allows_nothing() {
        let selector = json!({"matchExpressions": [{"key": "k", "operator": "Is"}]});
        let (policy, problems) = read(json!({"podSelector": selector, "ingress": [{}]}));
        assert_eq!(policy.subject, Selector::default());
        assert_eq!(policy.ingress, Some(Vec::new()));
        assert_eq!(problems.len(), 1);
    }

    #[test]
    fn host_bits_of_a_block_do_not_count() {
        let (rule, problems) = ingress_rule(json!({"from": [{"ipBlock": {"cidr": "10.1.2.3/8"}}]}));
        assert_eq!(rule.peers.unwrap().blocks[0].cidr.to_string(), "10.0.0.0/8");
        assert!(problems.is_empty());
    }
}

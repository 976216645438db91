//! Subject of an audit: a cached or given flow, with the packet to trace.

use std::net::IpAddr;

use api::{MacAddr, addr};
use ipnet::IpNet;

use super::compare;
use super::question::{Entry, Question};
use crate::admin::error::AdminError;
use crate::admin::flow_spec;
use crate::admin::naming::{Named, Naming};
use crate::admin::view::Ports;
use crate::flow_cache::{Action, Flow};
use api::admin::FlowSpec;
use api::admin::Outcome;

/// A flow with the packet to trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    /// Id of the endpoint that owns the flow.
    pub(super) container: String,
    /// Protocol, addresses and ports.
    pub(super) flow: FlowSpec,
    /// Cached action and its epoch; `None` when the flow is not cached.
    pub(super) cached: Option<Cached>,
    /// Packet to trace.
    pub(super) question: Question,
}

/// Entry of an audited flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cached {
    /// Cached action.
    pub(super) outcome: Outcome,
    /// Epoch in which the entry was learned.
    pub(super) epoch: u32,
    /// The entry is in use.
    pub(super) valid: bool,
}

impl Subject {
    /// Subject for a cached flow.
    ///
    /// # Errors
    /// What is missing for the trace.
    pub(super) fn cached(flow: &Flow, naming: &Naming, ports: &dyn Ports) -> Result<Self, String> {
        let spec =
            flow_spec::spec(flow).ok_or_else(|| format!("protocol {} is not supported", flow.protocol))?;
        if let Some(to) = flow.translated {
            // A trace has no connection: it would choose a backend of its own.
            return Err(format!(
                "OVS translates it to {} -> {}, which a trace cannot repeat; refreshes compare it",
                to.source, to.destination
            ));
        }
        if flow.gateway {
            return Err("one end is the node or outside of the cluster: a trace of br-int does not see the gateway bridge; refreshes compare it".to_owned());
        }
        let entry = match flow.action {
            Action::Tunnel { .. } | Action::Local { .. } => {
                let named = naming.pods.get(&flow.endpoint);
                let named = named.ok_or_else(|| format!("container {} has no OVS port", flow.endpoint))?;
                pod_entry(named, ports)?
            }
            Action::Deliver { remote, vni, option } => {
                let found = ports.tunnel(remote.into());
                let (port, local) = found.ok_or_else(|| format!("br-int has no tunnel port to {remote}"))?;
                Entry::Tunnel { port, remote: remote.into(), local, vni, option }
            }
        };
        Ok(Self {
            container: flow.endpoint.clone(),
            flow: spec,
            cached: Some(Cached {
                outcome: compare::remembered(flow, naming),
                epoch: flow.epoch,
                valid: flow.valid,
            }),
            question: Question {
                entry,
                source_mac: flow.source_mac,
                destination_mac: flow.destination_mac,
                flow: spec,
                mark: 0,
            },
        })
    }

    /// Subject for a flow from a pod of this node that is not cached.
    pub(super) fn described(flow: FlowSpec, naming: &Naming, ports: &dyn Ports) -> Result<Self, AdminError> {
        let Some((container, named)) = owner(naming, flow.source.ip()) else {
            return Err(AdminError::NotFound(match owner(naming, flow.destination.ip()) {
                Some((_, named)) => format!(
                    "flow `{flow}` is not cached and its source is not on this node, so the ingress tunnel of packets to {} is unknown; \
                     audit it while it is cached (`slipctl flows`), or on the node of {}",
                    named.pod,
                    flow.source.ip()
                ),
                None => format!(
                    "flow `{flow}`: neither {} nor {} is a pod of this node; see `slipctl status`",
                    flow.source.ip(),
                    flow.destination.ip()
                ),
            }));
        };
        let missing = |what: String| AdminError::Failed(format!("flow `{flow}`: {what}"));
        let entry = pod_entry(named, ports).map_err(missing)?;
        let source_mac = named.mac.parse().map_err(|e| missing(format!("port {}: {e}", named.port)))?;
        let destination_mac = next_hop(named, naming, flow.destination.ip())
            .ok_or_else(|| missing(format!("port {} has no address of that IP version", named.port)))?;
        let question = Question { entry, source_mac, destination_mac, flow, mark: 0 };
        Ok(Self { container, flow, cached: None, question })
    }
}

fn pod_entry(named: &Named, ports: &dyn Ports) -> Result<Entry, String> {
    let port = ports.number(&named.port);
    let port = port.ok_or_else(|| format!("port {} of {} is not open in OVS", named.port, named.pod))?;
    Ok(Entry::Pod { port })
}

/// The endpoint with an address. Networks may have the same addresses; the cluster network comes first.
fn owner(naming: &Naming, ip: IpAddr) -> Option<(String, &Named)> {
    let has = |named: &Named| nets(named).any(|net| net.addr() == ip);
    let all = naming.pods.iter().filter(|(_, named)| has(named));
    all.min_by_key(|(_, named)| named.network.is_some()).map(|(id, named)| (id.clone(), named))
}

fn nets(named: &Named) -> impl Iterator<Item = IpNet> {
    named.addresses.iter().filter_map(|address| address.parse().ok())
}

/// Destination MAC of the pod's packets: that of the peer pod in the same subnet, else that of the router, derived from the first
/// IPv4 address of the subnet, or the first IPv6 address without IPv4.
fn next_hop(named: &Named, naming: &Naming, destination: IpAddr) -> Option<MacAddr> {
    let own = nets(named).find(|net| net.addr().is_ipv4() == destination.is_ipv4())?;
    let has = |other: &Named| nets(other).any(|net| net.addr() == destination);
    let mut neighbours = naming.pods.values().filter(|other| other.network == named.network);
    if own.contains(&destination)
        && let Some(neighbour) = neighbours.find(|other| has(other))
    {
        return neighbour.mac.parse().ok();
    }
    let first = nets(named).find(|net| net.addr().is_ipv4()).unwrap_or(own);
    addr::gateway_of(&first.trunc()).map(MacAddr::from_ip)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::admin::naming::tests::naming;
    use crate::flow_cache::fake;

    pub(crate) struct Two;

    impl Ports for Two {
        fn number(&self, name: &str) -> Option<i64> {
            [("soc0ffee01", 4), ("soc0ffee02", 5)].into_iter().find(|(n, _)| *n == name).map(|(_, p)| p)
        }
        fn tunnel(&self, remote: IpAddr) -> Option<(i64, Option<IpAddr>)> {
            (remote.to_string() == "172.18.0.3").then(|| (2, "172.18.0.2".parse().ok()))
        }
    }

    struct Nothing;

    impl Ports for Nothing {
        fn number(&self, _: &str) -> Option<i64> {
            None
        }
        fn tunnel(&self, _: IpAddr) -> Option<(i64, Option<IpAddr>)> {
            None
        }
    }

    #[test]
    fn a_cached_flow_enters_where_its_packets_do() {
        let entries: Vec<_> = fake::flows()
            .iter()
            .map(|flow| Subject::cached(flow, &naming(), &Two).unwrap().question.entry)
            .collect();
        let (remote, local) = ("172.18.0.3".parse().unwrap(), "172.18.0.2".parse().ok());
        let tunnel = Entry::Tunnel { port: 2, remote, local, vni: 5, option: fake::OPTION };
        assert_eq!(entries, [Entry::Pod { port: 4 }, tunnel, Entry::Pod { port: 5 }]);
    }

    #[test]
    fn without_its_port_a_flow_cannot_be_asked_about_and_the_error_names_the_port() {
        let errors: Vec<_> = fake::flows()
            .iter()
            .map(|flow| Subject::cached(flow, &naming(), &Nothing).unwrap_err())
            .collect();
        assert!(errors[0].contains("soc0ffee01") && errors[1].contains("172.18.0.3"), "{errors:?}");
    }

    #[test]
    fn a_described_flow_goes_to_the_neighbour_or_to_the_router() {
        let to = |destination: &str| {
            let flow = FlowSpec::parse("tcp", "10.244.0.3:1", destination).unwrap();
            Subject::described(flow, &naming(), &Two).unwrap().question.destination_mac.to_string()
        };
        assert_eq!(to("10.244.0.4:80"), "0a:58:0a:f4:00:03");
        assert_eq!(to("10.244.1.4:80"), "0a:58:0a:f4:00:01");
        let flow = FlowSpec::parse("tcp", "[fd00:10:244::3]:1", "[fd00:10:244:1::4]:80").unwrap();
        let six = Subject::described(flow, &naming(), &Two).unwrap();
        assert_eq!(six.question.destination_mac.to_string(), "0a:58:0a:f4:00:01");
    }

    #[test]
    fn a_flow_that_cannot_be_described_is_refused_with_the_reason() {
        for (source, destination, part) in [
            ("10.244.1.4:80", "10.244.0.3:1", "packets to default/web-1 is unknown"),
            ("10.244.1.4:80", "10.244.1.5:1", "neither 10.244.1.4 nor 10.244.1.5"),
        ] {
            let flow = FlowSpec::parse("tcp", source, destination).unwrap();
            let error = Subject::described(flow, &naming(), &Two).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

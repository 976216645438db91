//! Carries the random changes of suite `flow_cache_invariants` out on the cluster.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::change::Change;
use super::model::{Direction, Flow, Model, Pod, Policy, Protocol};
use super::nb::{NAMESPACE, Nb, nonce, policy_name};
use super::services::{Client, SERVICES, Service, ServiceFlow};
use super::{FORCE, PODS, service_act};
use crate::flow_cache_invariants::load_pods::{LoadPods, New};
use testbed::tools::load::PORTS;

/// The pod that is moved. On the other node it has an address of the first node's range, far above those that are assigned.
const MOVER: &str = "mover";
const MOVER_IP: &str = "10.244.0.200";
const MOVER_MAC: &str = "0a:58:0a:f4:00:c8";
const MOVER_NETWORK: &str = r#"{"default":{"ip_addresses":["10.244.0.200/24"],"mac_address":"0a:58:0a:f4:00:c8","gateway_ips":["10.244.0.1"],"routes":[],"ip_address":"10.244.0.200/24","gateway_ip":"10.244.0.1","role":"primary"}}"#;

/// The pods at the beginning: some on each node, and the one that moves.
pub(super) fn pods(nodes: &[String]) -> Model {
    let mut pods: Vec<Pod> = (0..nodes.len())
        .flat_map(|node| {
            (0..PODS).map(move |at| Pod {
                name: format!("n{}-{at}", node + 1),
                node,
                role: u8::try_from(at).ok(),
            })
        })
        .collect();
    pods.push(Pod { name: MOVER.into(), node: 0, role: None });
    let service = |number| {
        // One endpoint on each node.
        let backends = [PODS - 1, PODS + number].into();
        Service { live: true, backends, ..Service::default() }
    };
    let services = (0..SERVICES).map(service).collect();
    Model { pods, services, ..Model::default() }
}

/// The cluster.
pub(super) struct Act<'a> {
    pub(super) pods: LoadPods<'a>,
    nb: Nb,
    nodes: Vec<String>,
    flows: Vec<Flow>,
    service_flows: Vec<ServiceFlow>,
    pub(super) addresses: Vec<String>,
    /// Nodes whose agent is down, or was started and may not be ready yet.
    away: BTreeSet<usize>,
    starting: BTreeSet<usize>,
    /// The ovn-controller of each node.
    controllers: Vec<Option<i32>>,
}

impl<'a> Act<'a> {
    /// Makes the pods and begins the flows.
    pub(super) async fn new(
        pods: LoadPods<'a>,
        nodes: Vec<String>,
        (flows, service_flows): (&[Flow], &[ServiceFlow]),
        model: &Model,
    ) -> Result<Self> {
        let nb = Nb::new().await?;
        let (away, starting) = (BTreeSet::new(), BTreeSet::new());
        let addresses = vec![String::new(); model.pods.len()];
        let mut act = Self {
            pods,
            nb,
            nodes,
            flows: flows.to_vec(),
            service_flows: service_flows.to_vec(),
            addresses,
            away,
            starting,
            controllers: Vec::new(),
        };
        for pod in 0..model.pods.len() {
            act.make(pod, model).await?;
        }
        service_act::add_hosts(&mut act.pods, &act.nodes, model.services.len())?;
        for service in 0..model.services.len() {
            act.write_service(service, model).await?;
        }
        act.dial(model, |_| true)?;
        act.nb.join(model).await?;
        act.in_force(model).await?;
        act.dial_services(model, |_| true)?;
        act.crashed()?;
        Ok(act)
    }

    async fn make(&mut self, pod: usize, model: &Model) -> Result<()> {
        let Pod { name, node, role } = &model.pods[pod];
        let role = role.map_or("none".into(), |role| format!("r{role}"));
        // At home its address is the controller's to give. One that came with the pod would be written over while the pod
        // is plugged in, and the pod would have one address and its port another.
        let foreign = name == MOVER && *node != 0;
        let annotations: &[(&str, &str)] =
            if foreign { &[("k8s.ovn.org/pod-networks", MOVER_NETWORK)] } else { &[] };
        let new = New { name, node: &self.nodes[*node], role: &role, annotations };
        self.addresses[pod] = self.pods.add(new).await?.to_string();
        Ok(())
    }

    /// Begins the chosen flows again.
    fn dial(&mut self, model: &Model, chosen: impl Fn(&Flow) -> bool) -> Result<()> {
        for (number, flow) in self.flows.iter().enumerate().filter(|(_, flow)| chosen(flow)) {
            let (from, to) = (&model.pods[flow.from].name, &model.pods[flow.to].name);
            self.pods.dial(u32::try_from(number)?, from, to, flow.protocol == Protocol::Udp)?;
        }
        Ok(())
    }

    /// Begins the chosen flows to services again.
    fn dial_services(&mut self, model: &Model, chosen: impl Fn(&ServiceFlow) -> bool) -> Result<()> {
        let first = self.flows.len();
        for (number, flow) in self.service_flows.iter().enumerate().filter(|(_, flow)| chosen(flow)) {
            let number = u32::try_from(first + number)?;
            service_act::dial(&mut self.pods, number, flow, &self.nodes, model)?;
        }
        Ok(())
    }

    /// Begins flows again whose service has affinity: only new connections show it.
    pub(super) fn new_connections(&mut self, model: &Model) -> Result<()> {
        self.dial_services(model, |flow| model.services[flow.service].affinity)
    }

    async fn write_service(&self, service: usize, model: &Model) -> Result<()> {
        service_act::write(&self.pods.client, model, service).await?;
        self.write_backends(service, model, None).await
    }

    async fn write_backends(&self, service: usize, model: &Model, without: Option<usize>) -> Result<()> {
        let kube = &self.pods.client;
        if !model.services[service].live {
            return Ok(());
        }
        service_act::write_backends(kube, model, service, &self.addresses, &self.nodes, without).await
    }

    /// Waits until every node does what the model says.
    pub(super) async fn in_force(&self, model: &Model) -> Result<()> {
        self.nb.in_force(model, &self.addresses, FORCE).await
    }

    /// Whether every agent can tell the programs of changes.
    pub(super) fn agents_are_well(&mut self) -> bool {
        let starting: Vec<usize> = self.starting.iter().copied().collect();
        for node in starting {
            if self.pods.sees(&self.nodes[node]) {
                self.starting.remove(&node);
            }
        }
        self.away.is_empty() && self.starting.is_empty()
    }

    /// The nodes whose ovn-controller is another process than when this was asked last.
    pub(super) fn crashed(&mut self) -> Result<BTreeSet<usize>> {
        let mut now = Vec::new();
        for node in &self.nodes {
            let list = tokio::task::block_in_place(|| self.pods.bed.host(node).processes())?;
            now.push(list.into_iter().find(|p| p.name == "ovn-controller").and_then(|p| p.pid));
        }
        let before = std::mem::replace(&mut self.controllers, now);
        let pairs = before.iter().zip(&self.controllers).enumerate();
        Ok(pairs.filter(|(_, (before, now))| before != now).map(|(node, _)| node).collect())
    }

    /// Starts the agents that are still down.
    pub(super) async fn all_up(&mut self) -> Result<()> {
        for node in std::mem::take(&mut self.away) {
            self.pods.restart(&self.nodes[node], "node-agent")?;
            self.pods.agent_ready(&self.nodes[node]).await?;
        }
        Ok(())
    }

    /// Does it; it need not be in force when this returns. The model is the one after the change.
    pub(super) async fn carry_out(&mut self, change: &Change, model: &Model) -> Result<()> {
        match change {
            Change::AddPolicy { id, policy } | Change::RewritePolicy { id, policy } => {
                self.write_policy(*id, policy).await
            }
            Change::RemovePolicy { id } => {
                let api: Api<NetworkPolicy> = Api::namespaced(self.pods.client.clone(), NAMESPACE);
                api.delete(&policy_name(*id), &DeleteParams::default()).await?;
                Ok(())
            }
            Change::Relabel { pod, role } => {
                self.pods.relabel(&model.pods[*pod].name, &format!("r{role}")).await
            }
            Change::AddAcl { id, acl } => self.nb.add_acl(*id, acl, &self.addresses).await,
            Change::RemoveAcl { id } => self.nb.remove_acl(*id).await,
            Change::ReplacePod { pod, .. } | Change::MovePod { pod, .. } => self.replace(*pod, model).await,
            Change::RestartController { node } => self.pods.restart(&self.nodes[*node], "ovn-controller"),
            Change::RestartSwitch { node } => {
                self.pods.restart(&self.nodes[*node], "ovs-vswitchd")?;
                self.starting.insert(*node);
                self.in_force(model).await?;
                // OVS has forgotten its connections. One whose acknowledgement is the first packet that it sees would be
                // taken for one of the other direction.
                let touches =
                    |flow: &Flow| [flow.from, flow.to].iter().any(|&pod| model.pods[pod].node == *node);
                self.dial(model, |flow| flow.protocol == Protocol::Tcp && touches(flow))?;
                self.dial_services(model, |flow| flow.protocol == Protocol::Tcp)
            }
            Change::AgentDown { node } => {
                self.away.insert(*node);
                self.pods.kill(&self.nodes[*node], "node-agent")
            }
            Change::AgentUp { node } => {
                self.pods.restart(&self.nodes[*node], "node-agent")?;
                self.away.remove(node);
                self.starting.insert(*node);
                Ok(())
            }
            Change::SetBackends { service, .. } | Change::SetBackendPort { service, .. } => {
                self.write_backends(*service, model, None).await
            }
            Change::SetAffinity { service, .. }
            | Change::RemoveService { service }
            | Change::MakeService { service, .. } => self.write_service(*service, model).await,
            Change::SetLocal { service, .. } => {
                self.write_service(*service, model).await?;
                self.in_force(model).await?;
                // A UDP connection keeps the client's address that it shows.
                self.dial_services(model, |flow| flow.service == *service)
            }
            Change::ReplaceService { service, .. } => {
                service_act::remove(&self.pods.client, *service).await?;
                self.write_service(*service, model).await
            }
        }
    }

    async fn replace(&mut self, pod: usize, model: &Model) -> Result<()> {
        // An agent that is only just starting would make the pod's way to its network long.
        for node in std::mem::take(&mut self.starting) {
            self.pods.agent_ready(&self.nodes[node]).await?;
        }
        let Pod { name, node, .. } = &model.pods[pod];
        let behind: Vec<usize> = (0..model.services.len())
            .filter(|&service| model.services[service].backends.contains(&pod))
            .collect();
        for &service in &behind {
            self.write_backends(service, model, Some(pod)).await?;
        }
        self.pods.remove(name).await?;
        if name == MOVER {
            // At home it is a pod like others to the controller. Elsewhere the controller refuses its address, and its
            // port is made here, on the switch of the address.
            self.nb.remove_port(name, FORCE).await?;
            if *node != 0 {
                self.nb.add_port(name, &self.nodes[0], MOVER_MAC, MOVER_IP).await?;
            }
        }
        let old = self.addresses[pod].clone();
        self.make(pod, model).await?;
        let same = self.addresses[pod] == old;
        tracing::debug!(pod, same, "made again");
        // ACLs that were written directly name addresses.
        for (id, acl) in model.acls.iter().filter(|(_, acl)| !same && [acl.from, acl.to].contains(&pod)) {
            self.nb.remove_acl(*id).await?;
            self.nb.add_acl(*id, acl, &self.addresses).await?;
        }
        for service in behind {
            self.write_backends(service, model, None).await?;
        }
        self.nb.join(model).await?;
        self.dial(model, |flow| [flow.from, flow.to].contains(&pod))?;
        self.dial_services(model, |flow| flow.client == Client::Pod(pod))
    }

    async fn write_policy(&self, id: u16, policy: &Policy) -> Result<()> {
        let mut peers: Vec<_> = policy
            .peers
            .iter()
            .map(|role| json!({"podSelector": {"matchLabels": {"role": format!("r{role}")}}}))
            .collect();
        peers.push(json!({"ipBlock": {"cidr": nonce(policy)}}));
        let ports: Vec<_> = policy
            .protocols
            .iter()
            .flat_map(|protocol| {
                let name = if *protocol == Protocol::Tcp { "TCP" } else { "UDP" };
                PORTS.map(|port| json!({"protocol": name, "port": port}))
            })
            .collect();
        let (kind, list, peer) = match policy.direction {
            Direction::Ingress => ("Ingress", "ingress", "from"),
            Direction::Egress => ("Egress", "egress", "to"),
        };
        let name = policy_name(id);
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "podSelector": {"matchLabels": {"role": format!("r{}", policy.target)}},
                "policyTypes": [kind],
                list: [{peer: peers, "ports": ports}],
            },
        });
        let api: Api<NetworkPolicy> = Api::namespaced(self.pods.client.clone(), NAMESPACE);
        let params = PatchParams::apply("laws").force();
        api.patch(&name, &params, &Patch::Apply(&object)).await.with_context(|| format!("policy {name}"))?;
        Ok(())
    }
}

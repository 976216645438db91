//! Flows of the gateway bridge.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use api::error::chain;
use tracing::{info, warn};

use super::Worker;
use crate::gateway::bridge::port_number;
use crate::gateway::flows::{self, FlowSet};
use crate::gateway::services::NodeService;
use crate::gateway::{FamilyGateway, host_ports, tunnels};
use crate::kernel::sysctl;
use crate::kube::host_ports::HostPorts;
use crate::ovs::unixctl::Unixctl;

/// Timeout for each of two rounds over the datapath's flows.
const FOLLOWED: Duration = Duration::from_secs(1);

/// OpenFlow number of OVN's patch port; none while OVN has not made it.
pub(super) type Patch = Option<String>;

impl Worker {
    /// What the flows of the bridge are computed from.
    pub(super) fn flow_inputs(&self) -> anyhow::Result<flows::Inputs> {
        let gateway = &self.gateway;
        let ovs = &gateway.context.ovs;
        let Some(uplink) = port_number(ovs, &self.names.port) else {
            anyhow::bail!("OVS has not assigned a port number to {} yet", self.names.port);
        };
        Ok(flows::Inputs {
            mode: gateway.context.config.gateway_mode,
            uplink,
            patch: port_number(ovs, &self.names.patch),
            mac: gateway.taken.journal.found.mac,
            families: gateway.reach.families.iter().map(FamilyGateway::flows).collect(),
            remote_nodes: self.view.remote_nodes(),
            tunnel_ends: self.tunnel_ends(),
            local_ports: sysctl::local_ports(),
        })
    }

    /// The flows that the bridge has to have.
    pub(super) fn bridge_flows(
        &self,
        services: &[NodeService],
        ports: &HostPorts,
    ) -> anyhow::Result<(FlowSet, Patch)> {
        let inputs = self.flow_inputs()?;
        let mut set = flows::compute(&inputs, services);
        host_ports::flows::add(&mut set, &inputs, &self.own_addresses(), ports);
        Ok((set, inputs.patch))
    }

    /// Adds what the bridge has not yet of these flows. At the start of the agent, when services may have come in its absence, the datapath
    /// has them too after it. Later this would keep the task from ending stale connections in time.
    pub(super) async fn widen(&mut self, flows: &FlowSet, services: &[NodeService]) -> anyhow::Result<()> {
        let is_new = self.flows.is_new();
        self.flows.widen(flows).await?;
        let unixctl = Unixctl::beside(&self.gateway.context.config.ovs_db);
        if let (true, Some(unixctl)) = (is_new && services.iter().any(NodeService::is_outside), unixctl) {
            // On a machine that is so busy, services that nobody can use are worse than a client that is hidden for a moment.
            if let Err(error) = unixctl.datapath_follows(FOLLOWED).await {
                self.gateway.context.metrics.datapath_unconfirmed();
                warn!(error = chain(&error), "OVS's datapath does not follow its flow tables in time");
            }
        }
        Ok(())
    }

    /// Makes the bridge's flows these.
    pub(super) async fn write_flows(
        &mut self,
        flows: anyhow::Result<(FlowSet, Patch)>,
    ) -> anyhow::Result<()> {
        if flows.is_err() {
            self.flows_written = false;
        }
        let (flows, patch) = flows?;
        if self.flows.write(&flows).await? {
            info!(bridge = self.gateway.bridge(), flows = flows.len(), patch, "flows of the bridge written");
        }
        self.flows_written = patch.is_some();
        Ok(())
    }

    /// Tunnel endpoints: addresses of this node and of the other nodes, and the remotes of OVS's tunnels.
    fn tunnel_ends(&self) -> BTreeSet<IpAddr> {
        let own = self.gateway.reach.families.iter().map(|family| family.address.addr());
        let others = self.view.remote_nodes().into_iter().chain(tunnels::remotes(&self.gateway.context.ovs));
        own.chain(others).collect()
    }
}

//! Gateway bridge: tracks its addresses and next hops in the kernel, and updates OVN.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context as _;
use tracing::info;

use super::super::{reach, uplink};
use super::Worker;
use crate::bpf::NodePort;
use crate::gateway::management_port::ManagementPort;
use crate::ovs::chassis;

impl Worker {
    /// Records or restores the bridge's addresses and routes, and adds those that OVN needs.
    pub(super) async fn bridge(&mut self) -> anyhow::Result<()> {
        let migration = self.gateway.migration();
        let taken = &mut self.gateway.taken;
        let metrics = &self.gateway.context.metrics;
        if let Some(at) = migration.keep_in_line(taken, &mut self.follower, metrics).await? {
            self.look_again = Some(at);
        }
        self.interfaces.clear();
        for name in [&self.names.bridge, &self.names.uplink, ManagementPort::NAME] {
            self.interfaces.extend(self.gateway.context.netlink.find(name).await?.map(|link| link.index));
        }
        let programs = self.programs().await;
        self.reach().await?;
        self.gateway.ensure_host().await?;
        programs
    }

    /// Attaches the eBPF programs to the interfaces of the node on the bridges, which OVS makes again when it starts again.
    async fn programs(&self) -> anyhow::Result<()> {
        let context = &self.gateway.context;
        let Some(programs) = &context.programs else { return Ok(()) };
        let mut interfaces = BTreeMap::new();
        let ports =
            [(self.names.bridge.as_str(), NodePort::Bridge), (ManagementPort::NAME, NodePort::Management)];
        // In direct mode the flow cache has it, as the own port of a bridge to a physical network.
        let second = self.second.as_ref().filter(|_| context.interposed);
        let second = second.map(|second| (second.taken.bridge.as_str(), NodePort::SecondBridge));
        for (name, port) in ports.into_iter().chain(second) {
            interfaces.extend(context.netlink.find(name).await?.map(|link| (link.index, port)));
        }
        programs
            .lock()
            .set_host_interfaces(&interfaces, context.interposed)
            .context("eBPF programs of the node's interfaces")
    }

    /// Updates OVN's settings when the node's addresses or next hops have changed.
    async fn reach(&mut self) -> anyhow::Result<()> {
        let gateway = &mut self.gateway;
        let context = &gateway.context;
        let addresses = gateway.taken.addresses();
        let (new, warnings) = reach::reach(
            &context.config,
            &gateway.masquerade,
            &addresses,
            &self.follower.hops,
            Some(&gateway.reach),
        );
        self.warnings = warnings;
        let end = uplink::find::with_address(&context.netlink, gateway.reach.encap_ip).await?;
        self.warnings.extend(end.and_then(|link| {
            uplink::find::too_small(
                context.config.network.mtu.into(),
                &link.name,
                link.mtu,
                gateway.reach.encap_ip,
            )
        }));
        let Some(new) = new.filter(|new| *new != gateway.reach) else { return Ok(()) };
        let addresses: Vec<String> = new.families.iter().map(|f| f.address.to_string()).collect();
        info!(?addresses, next_hops = ?new.next_hops, "addresses or next hops of the node changed; updating OVN");
        let is_there = |address: IpAddr| gateway.taken.addresses().iter().any(|net| net.addr() == address);
        if !gateway.reach.families.iter().all(|family| is_there(family.address.addr())) {
            gateway.chassis_config.connect_anew(&context.config.sb);
        }
        gateway.chassis_config.encap_ip = new.encap_ip.to_string();
        gateway.reach = new;
        chassis::ensure(&context.ovs, &gateway.chassis_config, Some(&gateway.chassis)).await.map(drop)
    }
}

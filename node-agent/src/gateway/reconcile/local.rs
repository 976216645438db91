//! What only gateway mode local needs.

use api::annotation::GatewayMode;
use tracing::debug;

use super::Worker;
use crate::gateway::management_port::ManagementPort;
use crate::gateway::nft::local::LocalGateway;
use crate::kernel::nft::monitor;

impl Worker {
    pub(super) fn is_local(&self) -> bool {
        self.gateway.context.config.gateway_mode == GatewayMode::Local
    }

    /// What the rules of this mode depend on, if this is the mode.
    pub(super) fn local_gateway(&self) -> Option<LocalGateway> {
        self.is_local().then(|| LocalGateway {
            bridge: self.gateway.bridge().to_owned(),
            subnets: self.management.as_ref().map(|port| port.subnets.clone()).unwrap_or_default(),
            masquerade: self.gateway.masquerade.iter().map(|range| range.subnet).collect(),
        })
    }

    /// A warning about chains of the node's firewall that may drop what pods send to the outside.
    pub(super) fn firewall(&self) -> Option<String> {
        let chains = match self.is_local().then(monitor::chains_that_drop_forwarded)? {
            Ok(chains) => chains,
            Err(error) => {
                debug!(%error, "cannot list chains of nftables");
                return None;
            }
        };
        let bridge = self.gateway.bridge();
        let chains: Vec<String> = chains.into_iter().collect();
        (!chains.is_empty()).then(|| {
            format!(
                "--gateway-mode=local: nftables drops forwarded packets by policy of chain {}; unless its rules accept what comes in by {} \
                 or {bridge} and goes out by the other or by {bridge}, pods do not reach the outside",
                chains.join(" and "),
                ManagementPort::NAME
            )
        })
    }
}

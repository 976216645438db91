//! The second uplink among the steps of the gateway.

use super::Worker;

impl Worker {
    /// Whether an interface of this name matters.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.second.as_ref().is_some_and(|second| second.has(name))
    }

    /// An interface was seen down, or is gone: a bridge may have lost what the kernel ties to it.
    pub(super) fn went_down(&mut self, name: &str) {
        if name == self.names.bridge {
            self.follower.disturb();
        }
        if let Some(second) = self.second.as_mut().filter(|second| second.taken.bridge == name) {
            second.follower.disturb();
        }
    }

    /// Tracks addresses and routes of its bridge.
    pub(super) async fn second_uplink(&mut self) -> anyhow::Result<()> {
        let Some(second) = &mut self.second else { return Ok(()) };
        let context = &self.gateway.context;
        if let Some(at) = second.follow(&context.metrics).await? {
            self.look_again = Some(self.look_again.map_or(at, |other| other.min(at)));
        }
        second.forward(&self.gateway.reach.families)?;
        for name in [&second.taken.bridge, &second.taken.uplink] {
            self.interfaces.extend(context.netlink.find(name).await?.map(|link| link.index));
        }
        Ok(())
    }

    /// Writes the flows of its bridge.
    pub(super) async fn second_flows(&mut self) -> anyhow::Result<()> {
        if self.second.is_none() {
            return Ok(());
        }
        let inputs = self.flow_inputs()?;
        let Some(second) = &mut self.second else { return Ok(()) };
        second.write_flows(&self.gateway.context, &inputs).await
    }

    /// Keeps the node connected by it until its flows are known.
    pub(super) async fn second_connected(&mut self) -> anyhow::Result<()> {
        match &mut self.second {
            Some(second) => second.ensure_connected().await,
            None => Ok(()),
        }
    }
}

//! The second uplink among the steps of the gateway.

use std::time::Duration;

use kube::Client;
use tokio::time::Instant;
use tracing::warn;

use super::Worker;
use crate::gateway::api_server::answers;
use crate::gateway::second_uplink::{self, SecondUplink};
use crate::gateway::uplink::migration::{Migration, Taken};
use crate::gateway::uplink::role::Role;
use crate::gateway::uplink::trial::Trial;
use crate::gateway::{Gateway, families};
use crate::ovs::chassis;

/// Interval of attempts to make a second uplink that cannot be made yet.
const AGAIN: Duration = Duration::from_secs(15);

/// A second uplink that the flag names and that is not there.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Why the last attempt failed.
    why: Option<String>,
    /// When the next one is due; `None`: at once.
    next: Option<Instant>,
}

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

    /// Makes it if it is not there, and tracks addresses and routes of its bridge.
    pub(super) async fn second_uplink(&mut self) -> anyhow::Result<()> {
        self.make_second().await?;
        let Some(second) = &mut self.second else { return Ok(()) };
        let context = &self.gateway.context;
        if let Some(at) = second.follow(&context.metrics).await? {
            self.look_again = Some(self.look_again.map_or(at, |other| other.min(at)));
        }
        for name in [&second.taken.bridge, &second.taken.uplink] {
            self.interfaces.extend(context.netlink.find(name).await?.map(|link| link.index));
        }
        Ok(())
    }

    /// An interface that cannot be a second uplink is a warning: the rest of the gateway does not depend on it.
    async fn make_second(&mut self) -> anyhow::Result<()> {
        let (gateway, now) = (&mut self.gateway, Instant::now());
        let context = &gateway.context;
        let is_due = self.missing.next.is_none_or(|next| next <= now);
        if self.second.is_some() || context.config.exgw_interface.is_none() || !is_due {
            return Ok(());
        }
        match make(&gateway.migration(), gateway, &self.client).await {
            Ok(taken) => {
                gateway.chassis_config.second_bridge = Some(taken.bridge.clone());
                self.second = Some(SecondUplink::new(&gateway.migration(), &gateway.context, taken));
                self.missing = Missing::default();
                let (ovs, config) = (&gateway.context.ovs, &gateway.chassis_config);
                chassis::ensure(ovs, config, Some(&gateway.chassis)).await.map(drop)
            }
            Err(error) => {
                let why = format!("{error:#}");
                if self.missing.why.as_ref() != Some(&why) {
                    warn!("second uplink: {why}");
                }
                self.missing = Missing { why: Some(why), next: Some(now + AGAIN) };
                Ok(())
            }
        }
    }

    /// What is to be told of it.
    pub(super) fn second_warnings(&self) -> impl Iterator<Item = String> {
        let small = self.second.as_ref().and_then(SecondUplink::too_small);
        [self.missing.why.clone(), self.gateway.second_left.clone(), small].into_iter().flatten()
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

/// Makes it, on trial if the API server answers now.
async fn make(migration: &Migration, gateway: &Gateway, client: &Client) -> anyhow::Result<Taken> {
    let context = &gateway.context;
    let state = &context.config.state_dir;
    second_uplink::check(migration, context, &gateway.taken, &families(&context.config)).await?;
    if Trial::would_begin(state, Role::Second)? && answers(client).await {
        Trial::begin(state, Role::Second)?;
    }
    let taken = second_uplink::take(migration, context).await;
    if taken.as_ref().map_or(true, |taken| taken.journal.adopted) {
        Trial::end(state, Role::Second)?;
    }
    taken
}

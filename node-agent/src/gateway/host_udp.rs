//! Ends UDP connections that the host's own connection tracking translates in another way than the ruleset does now.
//!
//! Rules look at the first packet of a connection only, and UDP has no end: a process of the node that goes on sending from one port would
//! stay with what the ruleset made of its first packet, for example with nothing when it began before the service was there. kube-proxy ends
//! connections of its own translations in the same way.

use std::sync::Arc;
use std::time::Duration;

use api::addr::Family;
use tokio::sync::watch;
use tokio::time::Instant;

use super::nft::udp::{Place, UdpTranslations};
use crate::kernel::conntrack;
use crate::metrics::Metrics;

/// Before it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// After each round, so many times its duration is left for other work: services may change all the time, and the table be large.
const SPARE: u32 = 4;

/// What the ruleset does now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InForce {
    pub(super) translations: UdpTranslations,
    pub(super) place: Place,
    pub(super) families: Vec<Family>,
}

/// Follows the ruleset, in the background: the table may have very many entries.
#[derive(Debug)]
pub(super) struct HostUdp {
    now: watch::Sender<Option<Arc<InForce>>>,
    metrics: Metrics,
}

impl HostUdp {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { now: watch::Sender::new(None), metrics }
    }

    /// Call when this is in force. The first time, all connections are looked at.
    pub(super) fn follow(&self, new: InForce) {
        if self.now.borrow().as_deref() == Some(&new) && self.now.receiver_count() > 0 {
            return;
        }
        let before = self.now.send_replace(Some(Arc::new(new)));
        if self.now.receiver_count() == 0 {
            if before.is_some() {
                self.metrics.stale_udp_failed();
                tracing::error!(
                    "task that deletes stale UDP conntrack entries ended unexpectedly; restarted"
                );
            }
            tokio::spawn(follow(self.now.subscribe(), self.metrics.clone()));
        }
    }
}

async fn follow(mut now: watch::Receiver<Option<Arc<InForce>>>, metrics: Metrics) {
    let mut done: Option<Arc<InForce>> = None;
    // It may fail for ever, as where a program is missing: told once.
    let mut told = String::new();
    loop {
        let wanted = now.borrow_and_update().clone();
        if let Some(wanted) = wanted.filter(|wanted| done.as_ref() != Some(wanted)) {
            let begin = Instant::now();
            match round(done.as_deref(), &wanted, &metrics).await {
                Ok(()) => {
                    done = Some(wanted);
                    told.clear();
                    tokio::time::sleep(begin.elapsed() * SPARE).await;
                }
                Err(error) => {
                    metrics.stale_udp_failed();
                    let error = format!("{error:#}");
                    if error != told {
                        tracing::warn!(
                            "cannot end UDP connections of the node that services have changed; trying again: {error}"
                        );
                        told = error;
                    }
                    tokio::time::sleep(RETRY).await;
                    if now.has_changed().is_ok() {
                        continue;
                    }
                }
            }
        }
        // An error means that the gateway is given up or set up anew.
        if now.changed().await.is_err() {
            return;
        }
    }
}

async fn round(done: Option<&InForce>, wanted: &InForce, metrics: &Metrics) -> anyhow::Result<()> {
    let before = done.map(|done| &done.translations);
    if before == Some(&wanted.translations) {
        return Ok(());
    }
    let mut ended = 0;
    for family in &wanted.families {
        let stale = conntrack::udp(*family, |udp| {
            wanted.translations.is_stale(before, &wanted.place, udp.destination, udp.translated())
        });
        for connections in stale.await? {
            ended += conntrack::end(&connections).await?;
        }
    }
    if ended > 0 {
        metrics.stale_udp_ended(ended);
        tracing::info!(connections = ended, "UDP connections of the node that services have changed ended");
    }
    Ok(())
}

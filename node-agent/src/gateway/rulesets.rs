//! nftables tables of the agent: applied on change, and restored when another process changes or removes them.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kernel::nft::Writer;
use crate::kernel::nft::monitor::{self, Heard, Monitor};
use crate::metrics::Metrics;

/// Delay before tables that another process changed are restored, in case it changes them repeatedly.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval of the check for removed tables, in case a notification was missed.
pub const CHECK: Duration = Duration::from_secs(15);

/// The agent's tables, and a monitor of changes by other processes.
pub struct Rulesets {
    /// Services.
    pub services: Writer,
    /// Host ports.
    pub host_ports: Writer,
    /// Table that drops packets of OVS's ports in the host's stack.
    pub ports: Writer,
    monitor: Option<Monitor>,
    /// When to write all tables again.
    again: Option<Instant>,
    /// Tables that existed after the last write.
    there: BTreeSet<(u8, String)>,
    generations: Generations,
    metrics: Metrics,
}

/// Whether lost notifications can have been about anything but the agent's own transactions. One with many services makes more
/// notifications than a socket holds, and writing the tables again because of those would lose them again, without end.
#[derive(Debug, Default)]
struct Generations {
    /// Number of the namespace's last transaction when the agent had written, and of the agent's own then.
    at: Option<(u32, u32)>,
    /// Since the time before that there were no transactions but the agent's.
    alone: bool,
}

impl Generations {
    /// After the agent has written: the number of the last transaction, if it is known, and how many the agent made so far.
    fn wrote(&mut self, now: Option<u32>, applied: u32) {
        let now = now.map(|number| (number, applied));
        self.alone = match (self.at, now) {
            (Some((before, made)), Some((number, _))) => {
                number.wrapping_sub(before) == applied.wrapping_sub(made)
            }
            _ => false,
        };
        self.at = now;
    }

    /// Whether no other process changed anything since the time before the agent wrote last. `now`: number of the last transaction.
    fn are_ours(&self, now: Option<u32>) -> bool {
        self.alone && now.is_some() && self.at.map(|(number, _)| number) == now
    }
}

impl Rulesets {
    /// Creates the writers; the first write applies every table.
    pub fn new(metrics: Metrics) -> Self {
        let monitor = Monitor::open();
        if let Err(error) = &monitor {
            warn!(%error, "cannot subscribe to nftables changes; checking every {CHECK:?}");
        }
        Self {
            services: Writer::default(),
            host_ports: Writer::default(),
            ports: Writer::default(),
            monitor: monitor.ok(),
            again: None,
            there: BTreeSet::new(),
            generations: Generations { at: generation().map(|number| (number, 0)), alone: true },
            metrics,
        }
    }

    /// Waits until all tables must be written again.
    pub async fn lost(&mut self) {
        loop {
            let heard = async {
                match &self.monitor {
                    Some(monitor) => monitor.next().await,
                    None => std::future::pending().await,
                }
            };
            let due = async {
                match self.again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = heard => self.heard(heard),
                () = due => {
                    self.again = None;
                    self.forget("another process changed Slipstream's nftables tables; restoring them");
                    return;
                }
            }
        }
    }

    fn heard(&mut self, heard: io::Result<Heard>) {
        let again = match heard {
            Ok(Heard::Touched(by)) => by.iter().any(|socket| !self.is_ours(*socket)),
            Ok(Heard::Lost) => !self.generations.are_ours(generation()),
            Err(error) => {
                warn!(%error, "subscription to nftables changes failed; checking every {CHECK:?}");
                self.monitor = None;
                true
            }
        };
        if again && self.again.is_none() {
            self.again = Some(Instant::now() + PAUSE);
        }
    }

    /// Whether the netlink socket is that of an `nft` started by the agent: its port id is the process id.
    fn is_ours(&self, socket: u32) -> bool {
        self.writers().iter().any(|writer| writer.was_process(socket))
    }

    fn writers(&self) -> [&Writer; 3] {
        [&self.services, &self.host_ports, &self.ports]
    }

    fn forget(&mut self, why: &'static str) {
        warn!("{why}");
        self.metrics.gateway_restored("nftables");
        for writer in [&mut self.services, &mut self.host_ports, &mut self.ports] {
            writer.forget();
        }
    }

    /// Records which tables exist. Call after all tables were written.
    pub fn written(&mut self) {
        let applied = self.writers().iter().fold(0_u32, |sum, writer| sum.wrapping_add(writer.applied()));
        self.generations.wrote(generation(), applied);
        match monitor::tables() {
            Ok(tables) => self.there = tables,
            Err(error) => debug!(%error, "cannot list nftables tables"),
        }
    }

    /// True when tables of the agent were removed and must all be written again.
    pub fn are_gone(&mut self) -> bool {
        match monitor::tables() {
            Ok(tables) if self.there.is_subset(&tables) => false,
            Ok(_) => {
                self.forget("Slipstream's nftables tables were removed; restoring them");
                true
            }
            Err(error) => {
                warn!(%error, "cannot list nftables tables");
                false
            }
        }
    }
}

/// Number of the last transaction, if the kernel tells it.
fn generation() -> Option<u32> {
    monitor::generation().inspect_err(|error| debug!(%error, "nftables' last transaction is not known")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_that_were_lost_by_the_agents_own_transactions_are_no_change_of_others() {
        let mut seen = Generations { at: Some((10, 0)), alone: true };
        // Three tables.
        seen.wrote(Some(13), 3);
        assert!(seen.are_ours(Some(13)));
        assert!(!seen.are_ours(Some(14)), "somebody wrote since");
        assert!(!seen.are_ours(None), "nothing is known");
        // Somebody wrote beside the agent.
        seen.wrote(Some(16), 5);
        assert!(!seen.are_ours(Some(16)));
        // The tables were written again, and that is all.
        seen.wrote(Some(19), 8);
        assert!(seen.are_ours(Some(19)));
        seen.wrote(None, 9);
        assert!(!seen.are_ours(Some(20)));
    }
}

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
    metrics: Metrics,
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
            Ok(Heard::Lost) => true,
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

//! A `testbed probe tally` in a pod: what of a spray arrives there.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use testbed::cluster::Bed;
use testbed::nodes::PodName;
use testbed::tools::spray::{FIRST_PORT, PORTS, Tally};

/// The first port of a spray that the policy does not allow; those after it are not allowed either.
pub(super) const DENIED: u16 = FIRST_PORT + PORTS - 2;

/// One process; it ends with this.
#[derive(Debug)]
pub(super) struct Counter {
    child: Child,
    last: Arc<Mutex<Tally>>,
}

/// Packets by whether the policy allows their port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Allowed ones, TCP and UDP apart: only UDP may use the flow cache with its first packet.
    pub(super) tcp: u64,
    pub(super) udp: u64,
    pub(super) denied: u64,
    /// Arrived, and not seen by the counter.
    pub(super) missed: u64,
}

impl Counter {
    /// Starts it in the network of a running pod.
    pub(super) fn start(bed: &Bed, pod: &PodName<'_>) -> Result<Self> {
        let mut command = bed.runtime().pod_command(bed, pod, &bed.config().program("testbed"))?;
        command.args(["probe", "tally"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("counter in {}", pod.name))?;
        let lines = BufReader::new(child.stdout.take().context("no pipe")?);
        let last = Arc::<Mutex<Tally>>::default();
        let write = Arc::clone(&last);
        let read = move || {
            for line in lines.lines().map_while(Result::ok) {
                // The last line of a killed process may be cut.
                if let Ok(tally) = serde_json::from_str(&line) {
                    *write.lock().unwrap_or_else(PoisonError::into_inner) = tally;
                }
            }
        };
        thread::Builder::new().name("tally".into()).spawn(read)?;
        Ok(Self { child, last })
    }

    /// What has arrived since the start.
    pub(super) fn arrived(&self) -> Arrived {
        judge(&self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Arrived {
    /// Allowed packets of the protocol of which fewer came.
    pub(super) fn least(&self) -> u64 {
        self.tcp.min(self.udp)
    }
}

fn judge(tally: &Tally) -> Arrived {
    let mut arrived = Arrived { missed: tally.missed, ..Arrived::default() };
    for (list, allowed) in [(&tally.tcp, &mut arrived.tcp), (&tally.udp, &mut arrived.udp)] {
        for (port, count) in list {
            *(if *port < DENIED { &mut *allowed } else { &mut arrived.denied }) += count;
        }
    }
    arrived
}

impl std::ops::Sub for Arrived {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            tcp: self.tcp.saturating_sub(before.tcp),
            udp: self.udp.saturating_sub(before.udp),
            denied: self.denied.saturating_sub(before.denied),
            missed: self.missed.saturating_sub(before.missed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ports_of_either_protocol_are_denied() {
        let tally = Tally {
            tcp: [(FIRST_PORT, 3), (DENIED, 1)].into(),
            udp: [(DENIED - 1, 4), (DENIED + 1, 2)].into(),
            missed: 5,
        };
        let all = Arrived { tcp: 3, udp: 4, denied: 3, missed: 5 };
        assert_eq!(judge(&tally), all);
        assert_eq!(
            all - Arrived { tcp: 3, udp: 1, denied: 1, missed: 0 },
            Arrived { tcp: 0, udp: 3, denied: 2, missed: 5 }
        );
    }
}

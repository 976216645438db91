//! A `testbed probe load` in a pod, and where the arrivals of all of them are gathered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use testbed::cluster::Bed;
use testbed::nodes::PodName;
use testbed::tools::load::{Arrival, Order};

/// Everything that arrived anywhere.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Arrival>>>);

impl Log {
    /// Takes out what is there, sorted by flow and time.
    pub(super) fn take(&self) -> BTreeMap<u32, Vec<Arrival>> {
        let list = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut flows: BTreeMap<u32, Vec<Arrival>> = BTreeMap::new();
        for arrival in list {
            flows.entry(arrival.flow).or_default().push(arrival);
        }
        flows.values_mut().for_each(|list| list.sort_by_key(|arrival| arrival.at));
        flows
    }

    fn add(&self, arrivals: Vec<Arrival>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(arrivals);
    }
}

/// One process; it ends with this.
#[derive(Debug)]
pub(super) struct Loader {
    child: Child,
    orders: ChildStdin,
}

impl Loader {
    /// Starts it in the network of a running pod.
    pub(super) fn start(bed: &Bed, pod: &PodName<'_>, pause_ms: u64, log: &Log) -> Result<Self> {
        let mut command = bed.runtime().pod_command(bed, pod, &bed.config().program("testbed"))?;
        command.args(["probe", "load", "--pause", &pause_ms.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("load tool in {}", pod.name))?;
        let orders = child.stdin.take().context("no pipe")?;
        let reports = BufReader::new(child.stdout.take().context("no pipe")?);
        let log = log.clone();
        let read = move || {
            for line in reports.lines().map_while(Result::ok) {
                // The last line of a killed process may be cut.
                if let Ok(arrivals) = serde_json::from_str(&line) {
                    log.add(arrivals);
                }
            }
        };
        thread::Builder::new().name("arrivals".into()).spawn(read)?;
        Ok(Self { child, orders })
    }

    /// Gives an order.
    pub(super) fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)?;
        writeln!(self.orders, "{line}").context("the load tool has ended")
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

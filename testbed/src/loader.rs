//! A `testbed probe load` in a pod or on a host, and where the arrivals of all of them are gathered.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::tools::load::{Arrival, Order};
use crate::traffic::{self, Place};

/// What arrived, with the name of where.
pub type Received = (Arc<str>, Arrival);

/// Everything that arrived anywhere.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<Received>>>);

impl Log {
    /// Takes out what is there, by flow, sorted by time.
    pub fn take(&self) -> BTreeMap<u32, Vec<Arrival>> {
        let flows = self.take_received().into_iter();
        flows.map(|(flow, list)| (flow, list.into_iter().map(|(_, arrival)| arrival).collect())).collect()
    }

    /// As [`Self::take`], with who received it.
    pub fn take_received(&self) -> BTreeMap<u32, Vec<Received>> {
        let list = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut flows: BTreeMap<u32, Vec<Received>> = BTreeMap::new();
        for received in list {
            flows.entry(received.1.flow).or_default().push(received);
        }
        flows.values_mut().for_each(|list| list.sort_by_key(|(_, arrival)| arrival.at));
        flows
    }

    fn add(&self, by: &Arc<str>, arrivals: Vec<Arrival>) {
        let received = arrivals.into_iter().map(|arrival| (Arc::clone(by), arrival));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(received);
    }
}

/// One process; it ends with this.
#[derive(Debug)]
pub struct Loader {
    child: Child,
    orders: ChildStdin,
}

impl Loader {
    /// Starts it in the network of a running pod, or of a host. `name`: who receives, in the log.
    pub fn start(bed: &Bed, place: &Place, name: &str, pause_ms: u64, log: &Log) -> Result<Self> {
        let mut command = traffic::command(bed, place, &bed.config().program("testbed"))?;
        command.args(["probe", "load", "--pause", &pause_ms.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("load tool in {place}"))?;
        let orders = child.stdin.take().context("no pipe")?;
        let reports = BufReader::new(child.stdout.take().context("no pipe")?);
        let (log, name) = (log.clone(), Arc::from(name));
        let read = move || {
            for line in reports.lines().map_while(Result::ok) {
                // The last line of a killed process may be cut.
                if let Ok(arrivals) = serde_json::from_str(&line) {
                    log.add(&name, arrivals);
                }
            }
        };
        thread::Builder::new().name("arrivals".into()).spawn(read)?;
        Ok(Self { child, orders })
    }

    /// Gives an order.
    pub fn order(&mut self, order: &Order) -> Result<()> {
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

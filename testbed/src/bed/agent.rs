//! Asking the agent of a node: its pages and metrics, and what it tells operators, through slipctl or its socket.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::admin::{SERVICE_TOTALS, ServiceTotals, ServiceTotalsRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Bed;
use crate::config::AGENT_PORT;
use crate::exec;
use crate::metrics::Metrics;

/// Where the agent answers operators; in the host's own files.
const SOCKET: &str = "/run/slipstream/admin.sock";

/// Longest until a page is there.
const PAGE: Duration = Duration::from_secs(5);

/// The agent of a node.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    bed: &'a Bed,
    node: &'a str,
}

impl Bed {
    /// The agent of a node, whether it runs or not.
    #[must_use]
    pub fn agent<'a>(&'a self, node: &'a str) -> Agent<'a> {
        Agent { bed: self, node }
    }

    /// A page of the process that answers at that port of a host's own address; any status but 200 is an error.
    pub fn page(&self, host: &str, port: u16, path: &str) -> Result<String> {
        let mut get = self.host(host).network_command(self.config.program("testbed"))?;
        get.args(["probe", "get", "--body", "--timeout", &exec::patient(PAGE).as_secs().to_string()]);
        get.args([&Ipv4Addr::LOCALHOST.to_string(), &port.to_string(), path]);
        exec::output(&mut get).with_context(|| format!("{path} of port {port} on {host}"))
    }
}

impl Agent<'_> {
    /// A page, such as `/readyz`.
    pub fn page(self, path: &str) -> Result<String> {
        self.bed.page(self.node, AGENT_PORT, path)
    }

    /// What it has counted.
    pub fn metrics(self) -> Result<Metrics> {
        self.page("/metrics").map(Metrics::new)
    }

    /// Runs slipctl and returns what it printed, for people if no argument says otherwise.
    pub fn slipctl(self, args: &[&str]) -> Result<String> {
        let mut command = self.bed.host(self.node).command(self.bed.config().program("slipctl"))?;
        exec::output(command.args(args)).with_context(|| format!("on {}", self.node))
    }

    /// Runs slipctl and reads what it printed for programs.
    pub fn slipctl_json<T: DeserializeOwned>(self, args: &[&str]) -> Result<T> {
        let said = self.slipctl(&[&["--output", "json"], args].concat())?;
        serde_json::from_str(&said).with_context(|| format!("slipctl {args:?} on {}: {said:?}", self.node))
    }

    /// `slipctl status`.
    pub fn status(self) -> Result<Value> {
        self.slipctl_json(&["status"])
    }

    /// What it has counted for its pods and tunnels, fast and slow. No verb of slipctl shows the pods' part.
    pub fn counters(self) -> Result<Value> {
        self.ask("/v1/counters", None)
    }

    /// What it has counted for a service by path and backend, since it was started.
    pub fn service_totals(self, service: &str) -> Result<ServiceTotals> {
        let request = ServiceTotalsRequest { service: service.to_owned() };
        let totals = self.ask(SERVICE_TOTALS, Some(serde_json::to_string(&request)?))?;
        serde_json::from_value(totals).with_context(|| format!("totals of {service}"))
    }

    /// Asks for a resource of its socket that no verb of slipctl shows as it is.
    fn ask(self, resource: &str, body: Option<String>) -> Result<Value> {
        let mut get = self.bed.host(self.node).command("curl")?;
        get.args(["--silent", "--show-error", "--fail-with-body", "--unix-socket", SOCKET]);
        if let Some(body) = body {
            get.args(["--data", &body]);
        }
        let said = exec::output(get.arg(format!("http://agent{resource}")))
            .with_context(|| format!("{resource} of {}", self.node))?;
        serde_json::from_str(&said).with_context(|| format!("{resource} of {}: {said:?}", self.node))
    }
}

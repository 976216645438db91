//! Real connections to servers in the targets, made during a spray.

use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use testbed::cluster::Bed;
use testbed::nodes::PodName;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial, Place};

/// Where the servers answer, TCP and UDP.
pub(super) const SERVER: u16 = 7080;
/// How long a new connection may take. The kernel repeats a SYN after 1 s and after 3 s.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a datagram may be sent before one is answered, as UDP does not repeat it.
const DATAGRAMS: u32 = 5;

/// A server in a pod; it ends with this.
#[derive(Debug)]
pub(super) struct Server(Child);

impl Server {
    /// Starts it in the network of a running pod.
    pub(super) fn start(bed: &Bed, pod: &PodName<'_>) -> Result<Self> {
        let mut command = bed.runtime().pod_command(bed, pod, &bed.config().program("testbed"))?;
        let port = SERVER.to_string();
        command.args(["probe", "serve", "--name", pod.name, "--tcp", &port, "--udp", &port]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("server in {}", pod.name))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What came of the connections.
#[derive(Debug, Default)]
pub(super) struct NewConnections {
    made: u32,
    failed: Vec<String>,
    slowest_ms: f64,
}

impl NewConnections {
    /// One by TCP and one by UDP.
    pub(super) fn make(&mut self, bed: &Bed, from: &Place, to: IpAddr) {
        let tcp = Dial::tcp(to, SERVER).within(CONNECT);
        let udp = Dial::udp(to, SERVER).times(DATAGRAMS).within(CONNECT / DATAGRAMS);
        for dial in [tcp, udp] {
            let what = format!("{} to {to}", if dial.udp { "UDP" } else { "TCP" });
            let attempts = match traffic::dial(bed, from, dial) {
                Ok(attempts) => attempts,
                Err(error) => {
                    self.failed.push(format!("{what}: {error:#}"));
                    continue;
                }
            };
            match attempts.iter().find(|attempt| matches!(attempt.answer, Answer::Reply(_))) {
                Some(attempt) => {
                    self.made += 1;
                    self.slowest_ms = self.slowest_ms.max(attempt.ms);
                }
                None => self.failed.push(format!("{what}: {}", traffic::summary(&attempts))),
            }
        }
    }

    /// All of them, and at least one.
    pub(super) fn judge(&self) -> Result<String, String> {
        let text = format!("{} were made, the slowest took {:.0} ms", self.made, self.slowest_ms);
        if self.failed.is_empty() && self.made > 0 {
            return Ok(text);
        }
        Err(format!("{text}, {} failed: {}", self.failed.len(), self.failed.join("; ")))
    }
}

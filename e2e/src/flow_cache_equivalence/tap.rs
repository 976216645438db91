//! A `testbed probe packets` on an interface: packets go out by it, and what comes in is gathered.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use testbed::tools::packets::{Capture, Frame, Order, Report};

/// How long an order may take beyond its pauses.
const SLOW: Duration = Duration::from_secs(20);

/// One process; it ends with this.
#[derive(Debug)]
pub(super) struct Tap {
    child: Child,
    orders: ChildStdin,
    done: mpsc::Receiver<()>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    packets: Vec<Capture>,
    failures: Vec<String>,
}

impl Tap {
    /// Starts it; `command` is the test bed's program in the right network.
    pub(super) fn start(mut command: Command, interface: &str, outgoing: bool) -> Result<Self> {
        command.args(["probe", "packets", "--interface", interface]);
        command.args(outgoing.then_some("--outgoing"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("packet tool")?;
        let orders = child.stdin.take().context("no pipe")?;
        let reports = BufReader::new(child.stdout.take().context("no pipe")?);
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let (tell, done) = mpsc::channel();
        let into = Arc::clone(&seen);
        let read = move || {
            for line in reports.lines().map_while(Result::ok) {
                let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
                match serde_json::from_str(&line) {
                    Ok(Report::Packet(capture)) => seen.packets.push(capture),
                    Ok(Report::Failed(why)) => seen.failures.push(why),
                    Ok(Report::Ready | Report::Sent) => {
                        if tell.send(()).is_err() {
                            return;
                        }
                    }
                    // The last line of a killed process may be cut.
                    Err(error) => seen.failures.push(format!("{error}: {line}")),
                }
            }
        };
        thread::Builder::new().name("captures".into()).spawn(read)?;
        let tap = Self { child, orders, done, seen };
        tap.wait(SLOW).context("the packet tool does not start")?;
        Ok(tap)
    }

    fn wait(&self, limit: Duration) -> Result<()> {
        self.done.recv_timeout(limit).context("the packet tool does not answer")
    }

    /// Sends packets with a pause after each, and waits until the last has gone.
    pub(super) fn send(&mut self, frames: Vec<Frame>, pause: Duration) -> Result<()> {
        let limit = SLOW + pause * u32::try_from(frames.len())?;
        let pause_us = u64::try_from(pause.as_micros())?;
        let line = serde_json::to_string(&Order { frames, pause_us })?;
        writeln!(self.orders, "{line}").context("the packet tool has ended")?;
        self.wait(limit)?;
        let failures = std::mem::take(&mut self.seen().failures);
        if let Some(first) = failures.first() {
            bail!("the packet tool failed {} times; the first: {first}", failures.len());
        }
        Ok(())
    }

    /// Takes out what has come in so far.
    pub(super) fn take(&self) -> Vec<Capture> {
        std::mem::take(&mut self.seen().packets)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

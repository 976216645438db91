//! One measurement: one kind of traffic on one path.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::load::{Kind, Measured};
use super::place::Place;

/// Where traffic goes from and to.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) client: Place,
    pub(super) server: Place,
    pub(super) address: String,
}

/// How a measurement is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// CPU that both ends stay on.
    pub(super) cpu: usize,
    /// Length of the measurement in seconds.
    pub(super) seconds: f64,
    /// Seconds before it.
    pub(super) warm_up: f64,
}

/// First port of the serving ends; the kind and, with several at once, the CPU are added.
const PORT: u16 = 7100;

/// A load tool that runs; killed when it is dropped.
pub(super) struct End {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl End {
    pub(super) fn start(
        role: &str,
        kind: Kind,
        route: &Route,
        port: u16,
        settings: Settings,
    ) -> Result<Self> {
        let place = if role == "serve" { &route.server } else { &route.client };
        // What else the machine runs shall disturb little.
        let mut command = place.command("nice");
        command.args(["-n", "-20"]).arg(std::env::current_exe()?);
        let kind = kind.to_possible_value().context("kinds have names")?;
        command.args(["load", role, kind.get_name(), "--address", &route.address]);
        for (flag, value) in [
            ("--port", port.to_string()),
            ("--cpu", settings.cpu.to_string()),
            ("--seconds", settings.seconds.to_string()),
            ("--warm-up", settings.warm_up.to_string()),
        ] {
            command.args([flag, &value]);
        }
        Self::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let out = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Self { child, out })
    }

    /// Waits until a serving end listens.
    pub(super) fn wait_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("the serving end did not start: {}", self.complaint());
        }
        Ok(())
    }

    /// Waits for the result.
    pub(super) fn result(mut self) -> Result<Measured> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{}", self.complaint());
        }
        serde_json::from_str(&line).with_context(|| format!("result {line:?}"))
    }

    /// What it said at its end.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        // What cannot be read is not shown.
        let _ = self.child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut text));
        text.trim().to_owned()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures one kind on one route, both ends on one CPU.
pub(super) fn measure(kind: Kind, route: &Route, settings: Settings) -> Result<Measured> {
    let port = PORT + kind_number(kind);
    let mut server = End::start("serve", kind, route, port, settings)?;
    server.wait_ready()?;
    let client = End::start("drive", kind, route, port, settings)?;
    match kind {
        Kind::TcpRr | Kind::UdpRr | Kind::Crr => client.result(),
        Kind::UdpPps | Kind::TcpStream | Kind::Paced => server.result(),
    }
}

/// Measures one kind on one route with a pair of ends on every CPU at once; the sum.
pub(super) fn measure_on_all(kind: Kind, route: &Route, settings: Settings) -> Result<Measured> {
    let cpus = std::thread::available_parallelism()?.get();
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for (cpu, port) in (0..cpus).zip(PORT + 100..) {
        let mut server = End::start("serve", kind, route, port, Settings { cpu, ..settings })?;
        server.wait_ready()?;
        servers.push(server);
    }
    for (cpu, port) in (0..cpus).zip(PORT + 100..) {
        clients.push(End::start("drive", kind, route, port, Settings { cpu, ..settings })?);
    }
    let mut sum = Measured::default();
    for client in clients {
        sum.per_second += client.result()?.per_second;
    }
    Ok(sum)
}

fn kind_number(kind: Kind) -> u16 {
    match kind {
        Kind::TcpRr => 1,
        Kind::UdpRr => 2,
        Kind::UdpPps => 3,
        Kind::TcpStream => 4,
        Kind::Crr => 5,
        Kind::Paced => 6,
    }
}

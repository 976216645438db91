//! One end of a load, as a process: the load tool, started in a network namespace and controlled by a pipe.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use super::load::{Command, Kind};
use super::place::Place;

/// Where traffic goes from and to.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) client: Place,
    pub(super) server: Place,
    /// Where the server listens.
    pub(super) address: String,
    /// Where the client sends to, if that is something else.
    pub(super) by: Option<By>,
    /// Processes whose work is a part of the way: its OVS.
    pub(super) part_of_path: Vec<i32>,
}

/// An address that is translated into the server's.
#[derive(Debug, Clone)]
pub(super) struct By {
    pub(super) address: String,
    /// What to add to a port of the server.
    pub(super) port_offset: u16,
}

/// What both ends of a load have in common.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) kind: Kind,
    pub(super) port: u16,
    /// CPU that both stay on.
    pub(super) cpu: usize,
    /// Processes whose work is a part of the path.
    pub(super) part_of_path: Vec<i32>,
    /// Seconds that the paced kind runs.
    pub(super) seconds: f64,
}

/// A load tool that runs; killed when it is dropped.
pub(super) struct End {
    child: Child,
    input: ChildStdin,
    out: BufReader<ChildStdout>,
}

impl End {
    /// The serving end, when it listens.
    pub(super) fn serve(route: &Route, settings: &Settings) -> Result<Self> {
        let mut end = Self::start("serve", &route.server, &route.address, settings.port, settings)?;
        let word = end.line()?;
        if word != "ready" {
            bail!("the serving end did not start: {word}");
        }
        Ok(end)
    }

    /// The end that begins.
    pub(super) fn drive(route: &Route, settings: &Settings) -> Result<Self> {
        let (address, offset) = match &route.by {
            Some(by) => (&by.address, by.port_offset),
            None => (&route.address, 0),
        };
        Self::start("drive", &route.client, address, settings.port + offset, settings)
    }

    fn start(role: &str, place: &Place, address: &str, port: u16, settings: &Settings) -> Result<Self> {
        let Settings { kind, cpu, part_of_path, seconds, .. } = settings;
        let address: IpAddr = address.parse().with_context(|| format!("address {address:?}"))?;
        let kind = kind.to_possible_value().context("kinds have names")?;
        // What else the machine runs shall disturb little.
        let mut command = place.command("nice");
        command.args(["-n", "-20"]).arg(std::env::current_exe()?);
        command.args(["load", role, kind.get_name()]);
        for (flag, value) in [
            ("--address", address.to_string()),
            ("--port", port.to_string()),
            ("--cpu", cpu.to_string()),
            ("--seconds", seconds.to_string()),
        ] {
            command.args([flag, &value]);
        }
        if !part_of_path.is_empty() {
            let pids: Vec<String> = part_of_path.iter().map(i32::to_string).collect();
            command.args(["--part-of-path", &pids.join(",")]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let input = child.stdin.take().context("no pipe")?;
        let out = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Self { child, input, out })
    }

    /// Process id of the end: the commands before it on the command line replace themselves by it (exec).
    pub(super) fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(self.child.id().try_into()?))
    }

    /// Tells it what to do.
    pub(super) fn tell(&mut self, command: Command) -> Result<()> {
        let written = self.input.write_all(command.line().as_bytes());
        written.or_else(|error| bail!("{error}: {}", self.complaint()))
    }

    /// Waits for its next line; if it has ended without, the error is what it said.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{}", self.complaint());
        }
        Ok(line.trim().to_owned())
    }

    /// Waits for its next answer.
    pub(super) fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("answer {line:?}"))
    }

    /// How it ended, and what it said.
    fn complaint(&mut self) -> String {
        // What cannot be read is not shown; its pipe ends with it.
        let mut text = String::new();
        let _ = self.child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut text));
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("{status}: {}", text.trim())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

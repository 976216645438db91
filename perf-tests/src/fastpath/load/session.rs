//! The commands to an end and its answers: a line each, on standard input and output. Between two lines it sleeps.

use std::io::{BufRead, BufReader, Stdin, Write};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use serde::Serialize;

use super::account::{Account, Reading};

/// The command to the end that begins: run one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    /// For so long.
    pub(crate) length: Duration,
    /// The process of the other end.
    pub(crate) peer: Pid,
}

impl Command {
    /// The command as a line.
    pub(crate) fn line(self) -> String {
        format!("go {} {}\n", self.length.as_micros(), self.peer)
    }
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["go", length, peer] = words[..] else { bail!("{line:?} is no command") };
        let length = length.parse().map(Duration::from_micros).with_context(|| format!("{line:?}"))?;
        let peer = peer.parse().map(Pid::from_raw).with_context(|| format!("{line:?}"))?;
        Ok(Self { length, peer })
    }
}

/// Ends this process when its standard input ends: it is no longer wanted.
pub(super) fn end_with_input() -> Result<()> {
    commands().map(drop)
}

/// The commands on standard input, which a thread of its own reads; it ends the process with the input.
fn commands() -> Result<Receiver<Command>> {
    let (sender, commands) = mpsc::channel();
    thread::Builder::new().name("commands".into()).spawn(move || {
        let outcome = read(std::io::stdin(), &sender);
        if let Err(error) = &outcome {
            // The last word of a process that ends here.
            let _ = writeln!(std::io::stderr(), "{error:#}");
        }
        std::process::exit(i32::from(outcome.is_err()));
    })?;
    Ok(commands)
}

fn read(stdin: Stdin, sender: &mpsc::Sender<Command>) -> Result<()> {
    for line in BufReader::new(stdin).lines() {
        if sender.send(line.context("standard input")?.parse()?).is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes an answer.
pub(super) fn answer(out: &mut impl Write, value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)?;
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}

/// The lines between an end and whoever started it.
pub(super) struct Session {
    commands: Receiver<Command>,
    out: Box<dyn Write + Send>,
    account: Option<Account>,
}

impl Session {
    /// Over the standard streams.
    pub(super) fn of_process(account: Account) -> Result<Self> {
        Ok(Self { commands: commands()?, out: Box::new(std::io::stdout()), account: Some(account) })
    }

    /// Sleeps until there is something to do. None: never again.
    pub(super) fn next(&self) -> Option<Command> {
        self.commands.recv().ok()
    }

    pub(super) fn answer(&mut self, value: &impl Serialize) -> Result<()> {
        answer(&mut self.out, value)
    }

    /// Begin of an account of the CPU's time, with the other end.
    pub(super) fn begin(&self, peer: Pid) -> Result<Option<Reading>> {
        self.account.as_ref().map(|account| account.begin(peer)).transpose()
    }

    /// The part of the time since then in which the CPU was not ours; 0 without an account.
    pub(super) fn away(&self, begin: Option<Reading>) -> Result<f64> {
        self.account.as_ref().zip(begin).map_or(Ok(0.0), |(account, begin)| account.away(&begin))
    }

    /// With a pipe of its own and without an account.
    #[cfg(test)]
    pub(super) fn of_test(commands: Receiver<Command>, out: impl Write + Send + 'static) -> Self {
        Self { commands, out: Box::new(out), account: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_it_is_written() {
        let command = Command { length: Duration::from_millis(30), peer: Pid::from_raw(7) };
        assert_eq!(command.line().parse::<Command>().unwrap(), command);
        for wrong in ["", "go", "go x 7", "go 7 x", "stop 1 2"] {
            assert!(wrong.parse::<Command>().is_err(), "{wrong:?}");
        }
    }
}

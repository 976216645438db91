//! How an end is told what to do, and how it answers: a line each, on standard input and output. Between two lines it sleeps.
//!
//! An end of requests and answers is told `go` and measures by itself. One-way traffic is measured where it arrives: the
//! receiver is told `open`, the sender `go`, and then the receiver `close` with what the sender says.

use std::io::{BufRead, BufReader, Stdin, Write};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use serde::Serialize;

use super::account::{Account, Reading};

/// What an end is told. The process is that of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Run for so long.
    Go { length: Duration, peer: Pid },
    /// Count from now on.
    Open { peer: Pid },
    /// All was sent: so much, the first of it at that time.
    Close { sent: u64, begin: u64 },
}

impl Command {
    /// As a line.
    pub(crate) fn line(self) -> String {
        match self {
            Self::Go { length, peer } => format!("go {} {peer}\n", length.as_micros()),
            Self::Open { peer } => format!("open {peer}\n"),
            Self::Close { sent, begin } => format!("close {sent} {begin}\n"),
        }
    }
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().with_context(|| format!("{line:?}"));
        let pid = |word: &str| word.parse().map(Pid::from_raw).with_context(|| format!("{line:?}"));
        Ok(match words[..] {
            ["go", length, peer] => {
                Self::Go { length: Duration::from_micros(number(length)?), peer: pid(peer)? }
            }
            ["open", peer] => Self::Open { peer: pid(peer)? },
            ["close", sent, begin] => Self::Close { sent: number(sent)?, begin: number(begin)? },
            _ => bail!("{line:?} is no command"),
        })
    }
}

/// The lines between an end and whoever started it.
pub(super) struct Session {
    commands: Receiver<Command>,
    answers: Box<dyn Write + Send>,
    account: Option<Account>,
}

impl Session {
    /// Over the standard streams. The process ends when standard input does: then nobody wants it any more.
    pub(super) fn of_process(account: Account) -> Result<Self> {
        let (sender, commands) = mpsc::channel();
        thread::Builder::new().name("commands".into()).spawn(move || {
            let outcome = read(std::io::stdin(), &sender);
            if let Err(error) = &outcome {
                // The last word of a process that ends here.
                let _ = writeln!(std::io::stderr(), "{error:#}");
            }
            std::process::exit(i32::from(outcome.is_err()));
        })?;
        Ok(Self { commands, answers: Box::new(std::io::stdout()), account: Some(account) })
    }

    /// Sleeps until there is something to do. None: never again.
    pub(super) fn next(&self) -> Option<Command> {
        self.commands.recv().ok()
    }

    /// What there is to do already.
    pub(super) fn pending(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    /// Says that the end is where the other may go on.
    pub(super) fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.answers, "{word}").and_then(|()| self.answers.flush()).context("standard output")
    }

    pub(super) fn answer(&mut self, value: &impl Serialize) -> Result<()> {
        self.say(&serde_json::to_string(value)?)
    }

    /// Begin of an account of the CPU's time, with the other end.
    pub(super) fn begin(&self, peer: Pid) -> Result<Option<Reading>> {
        self.account.as_ref().map(|account| account.begin(peer)).transpose()
    }

    /// The part of the time since then in which the CPU was not ours; 0 without an account.
    pub(super) fn away(&self, begin: Option<Reading>) -> Result<f64> {
        self.account.as_ref().zip(begin).map_or(Ok(0.0), |(account, begin)| account.away(&begin))
    }

    /// With nobody at the other end of a pipe: for tests in one process.
    #[cfg(test)]
    pub(super) fn of_test(commands: Receiver<Command>, answers: impl Write + Send + 'static) -> Self {
        Self { commands, answers: Box::new(answers), account: None }
    }
}

fn read(stdin: Stdin, sender: &mpsc::Sender<Command>) -> Result<()> {
    for line in BufReader::new(stdin).lines() {
        if sender.send(line.context("standard input")?.parse()?).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_they_are_written() {
        let peer = Pid::from_raw(7);
        for command in [
            Command::Go { length: Duration::from_millis(30), peer },
            Command::Open { peer },
            Command::Close { sent: 1 << 40, begin: 12 },
        ] {
            assert_eq!(command.line().parse::<Command>().unwrap(), command);
        }
        for wrong in ["", "go", "go x 7", "open", "stop 1 2"] {
            assert!(wrong.parse::<Command>().is_err(), "{wrong:?}");
        }
    }
}

//! Several programs in one container: they are started in order, the first that ends ends all, signals reach them, and nothing stays
//! a zombie, as this is the container's first process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::exec::{self, Argv};
use crate::say;

/// How long a program may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(8);
const FORWARDED: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];

/// A program of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name for the log.
    pub name: &'static str,
    /// What is started.
    pub argv: Argv,
}

/// Programs that run.
#[derive(Debug)]
pub struct Group {
    running: Vec<(&'static str, Child)>,
    signals: mpsc::Receiver<Signal>,
}

impl Group {
    /// A group without programs. Signals are for it from now on: call this before other threads are started.
    ///
    /// # Errors
    /// The operating system refuses to block signals, or a thread.
    pub fn new() -> Result<Self> {
        let mut set = SigSet::empty();
        FORWARDED.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| set.add(signal));
        set.thread_block().map_err(|source| Error::System { call: "pthread_sigmask", source })?;
        let (sender, signals) = mpsc::channel();
        let wait = move || {
            while let Ok(signal) = set.wait() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into()).spawn(wait);
        thread.map_err(|source| Error::Start { program: "the thread of signals".into(), source })?;
        Ok(Self { running: Vec::new(), signals })
    }

    /// Starts one more program.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, program: &Program) -> Result<()> {
        say(format_args!("starting {}", program.argv.join(" ")));
        // The standard library gives children an empty signal mask.
        let child = exec::command(&program.argv)
            .spawn()
            .map_err(|source| Error::Start { program: program.argv.join(" "), source })?;
        self.running.push((program.name, child));
        Ok(())
    }

    /// Fails if a program has ended already.
    ///
    /// # Errors
    /// The first that has.
    pub fn check(&mut self) -> Result<()> {
        match self.ended() {
            Some((name, status)) => Err(Error::Failed { program: name.to_owned(), detail: told(status) }),
            None => Ok(()),
        }
    }

    /// Runs until a program ends, which is an error whatever its exit code, or until SIGTERM. Then all others are ended, the last
    /// started first.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        loop {
            if let Some((name, status)) = self.ended() {
                say(format_args!("{name} has ended: {}", told(status)));
                self.end();
                return ExitCode::from(code(status));
            }
            match self.signals.recv_timeout(Duration::from_secs(1)) {
                Ok(Signal::SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Signal::SIGHUP) => self.forward(Signal::SIGHUP),
                Ok(signal) => {
                    say(format_args!("{signal}: ending"));
                    self.end();
                    return ExitCode::SUCCESS;
                }
                // The thread of signals never ends by itself.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_secs(1)),
            }
        }
    }

    /// The first program that has ended. Orphans that became this process's children are reaped.
    fn ended(&mut self) -> Option<(&'static str, ExitStatus)> {
        let mut first = None;
        self.running.retain_mut(|(name, child)| match child.try_wait() {
            Ok(Some(status)) => {
                first.get_or_insert((*name, status));
                false
            }
            _ => true,
        });
        self.reap_orphans();
        first
    }

    /// Only a child that is none of ours is waited for here, as its status is nobody's.
    fn reap_orphans(&self) {
        if std::process::id() != 1 {
            return;
        }
        let own = |pid: Pid| self.running.iter().any(|(_, child)| as_pid(child) == Some(pid));
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while let Ok(status) = nix::sys::wait::waitid(nix::sys::wait::Id::All, flags) {
            match status {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _) if !own(pid) => {
                    // It has ended: this does not block.
                    let _ = waitpid(pid, None);
                }
                _ => return,
            }
        }
    }

    fn forward(&self, signal: Signal) {
        for pid in self.running.iter().filter_map(|(_, child)| as_pid(child)) {
            // It may have ended meanwhile.
            let _ = kill(pid, signal);
        }
    }

    /// Ends what runs, the last started first.
    fn end(&mut self) {
        while let Some((name, mut child)) = self.running.pop() {
            if let Some(pid) = as_pid(&child) {
                let _ = kill(pid, Signal::SIGTERM);
            }
            let limit = Instant::now() + PATIENCE;
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() >= limit {
                    say(format_args!("{name} does not end: killed"));
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn as_pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().map(Pid::from_raw)
}

fn told(status: ExitStatus) -> String {
    status.to_string()
}

/// The exit code of the container: that of the program, 128 and the signal's number, and never 0.
fn code(status: ExitStatus) -> u8 {
    let raw = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(raw).ok().filter(|code| *code != 0).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_programs_and_never_success() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(0)), 1);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}

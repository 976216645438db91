//! Several programs in one container: they are started in order, the first that ends ends all, signals reach them, and nothing stays
//! a zombie, as this is the container's first process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};
use crate::exec::{self, Argv};
use crate::say;

/// How long a program may take to end after it was asked to. Three of them stay below the grace period of their pod, 30 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// By this one the programs are started anew.
const RESTART: Signal = Signal::SIGUSR1;
const WATCHED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGCHLD, RESTART];

/// A program of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name for the log.
    pub name: &'static str,
    /// What is started.
    pub argv: Argv,
    /// How it is ended.
    pub stop: Stop,
}

/// How a program is asked to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// By SIGTERM.
    Terminate,
    /// By a command; by SIGTERM if that fails.
    Command(Argv),
}

/// Programs that run.
#[derive(Debug)]
pub struct Group {
    running: Vec<Running>,
    signals: mpsc::Receiver<Signal>,
}

#[derive(Debug)]
struct Running {
    program: Program,
    child: Child,
}

impl Group {
    /// A group without programs. Signals are for it from now on, also while it has none: the kernel ignores those of a container's
    /// first process that it does not handle.
    ///
    /// # Errors
    /// The operating system refuses a signal handler, or a thread.
    pub fn new() -> Result<Self> {
        let failed = |source| Error::Start { program: "the thread of signals".into(), source };
        // Handlers, and no mask: programs that are started would inherit that, and those of OVS leave it as it is.
        let mut arrivals = Signals::new(WATCHED.map(|signal| signal as i32)).map_err(failed)?;
        let (sender, signals) = mpsc::channel();
        let wait = move || {
            let known = arrivals.forever().filter_map(|number| Signal::try_from(number).ok());
            // Until the group is gone.
            let _ = known.map(|signal| sender.send(signal)).find(std::result::Result::is_err);
        };
        thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
        Ok(Self { running: Vec::new(), signals })
    }

    /// Starts one more program.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, program: &Program) -> Result<()> {
        say(format_args!("starting {}", program.argv.join(" ")));
        let child = exec::command(&program.argv)
            .spawn()
            .map_err(|source| Error::Start { program: program.argv.join(" "), source })?;
        self.running.push(Running { program: program.clone(), child });
        Ok(())
    }

    /// Fails if a program has ended already, or if SIGTERM has come: what is being prepared is then given up.
    ///
    /// # Errors
    /// [`Error::Stopped`], or the first program that has ended.
    pub fn check(&mut self) -> Result<()> {
        // The others say nothing that must be handled before the programs run.
        let stopped = self.signals.try_iter().find(|signal| is_stop(*signal));
        if let Some(signal) = stopped {
            return Err(Error::Stopped(signal));
        }
        match self.ended() {
            Some((name, status)) => Err(Error::Failed { program: name.to_owned(), detail: told(status) }),
            None => Ok(()),
        }
    }

    /// Runs until a program ends, which is an error whatever its exit code, or until SIGTERM. Then all others are ended, the last
    /// started first.
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.run_and_look(|| None)
    }

    /// Does what [`Self::run`] does; about every second `look` may name a program that is to be restarted.
    #[must_use]
    pub fn run_and_look(mut self, mut look: impl FnMut() -> Option<&'static str>) -> ExitCode {
        loop {
            if let Some(name) = look()
                && let Err(error) = self.restart(name)
            {
                say(error);
                return ExitCode::FAILURE;
            }
            if let Some((name, status)) = self.ended() {
                say(format_args!("{name} has ended: {}", told(status)));
                return ExitCode::from(code(status));
            }
            match self.signals.recv_timeout(Duration::from_secs(1)) {
                Ok(signal) if is_stop(signal) => {
                    say(format_args!("{signal}: ending"));
                    return ExitCode::SUCCESS;
                }
                Ok(Signal::SIGHUP) => self.forward(Signal::SIGHUP),
                Ok(RESTART) => {
                    say("restart requested; restarting the programs");
                    if let Err(error) = self.restart_all() {
                        say(error);
                        return ExitCode::FAILURE;
                    }
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                // The thread of signals never ends by itself.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_secs(1)),
            }
        }
    }

    /// Ends a program and starts it again.
    fn restart(&mut self, name: &str) -> Result<()> {
        let place = self.running.iter().position(|running| running.program.name == name);
        let Some(running) = place.map(|place| self.running.remove(place)) else { return Ok(()) };
        let program = running.program.clone();
        end(running);
        self.start(&program)
    }

    /// Ends all programs, the last started first, and starts them again in their order.
    fn restart_all(&mut self) -> Result<()> {
        let mut programs = Vec::new();
        while let Some(running) = self.running.pop() {
            programs.push(running.program.clone());
            end(running);
        }
        programs.iter().rev().try_for_each(|program| self.start(program))
    }

    /// The first program that has ended. Orphans that became this process's children are reaped.
    fn ended(&mut self) -> Option<(&'static str, ExitStatus)> {
        let mut first = None;
        self.running.retain_mut(|running| match running.child.try_wait() {
            Ok(Some(status)) => {
                first.get_or_insert((running.program.name, status));
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
        let own = |pid: Pid| self.running.iter().any(|program| as_pid(&program.child) == Some(pid));
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
        for pid in self.running.iter().filter_map(|program| as_pid(&program.child)) {
            // It may have ended meanwhile.
            let _ = kill(pid, signal);
        }
    }
}

/// Ends what runs, the last started first.
impl Drop for Group {
    fn drop(&mut self) {
        while let Some(program) = self.running.pop() {
            end(program);
        }
    }
}

fn end(Running { program, mut child }: Running) {
    let Program { name, stop, .. } = program;
    let asked = match &stop {
        Stop::Command(argv) => {
            exec::output(argv).map_err(|error| say(format_args!("{name}: {error}"))).is_ok()
        }
        Stop::Terminate => false,
    };
    if !asked && let Some(pid) = as_pid(&child) {
        // It may have ended meanwhile.
        let _ = kill(pid, Signal::SIGTERM);
    }
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begin.elapsed() >= PATIENCE {
            say(format_args!("{name} did not exit within the grace period; sent SIGKILL"));
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    say(format_args!("{name} has ended after {} ms", begin.elapsed().as_millis()));
}

/// Asks the first process of this container to start its programs anew. The container goes on, so the kubelet, which waits longer from
/// restart to restart, has nothing to do with it.
///
/// # Errors
/// The first process is not this program, as outside a container.
pub fn ask_for_restart() -> Result<()> {
    // The kernel keeps 15 characters.
    let name = std::fs::read_to_string("/proc/1/comm").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() || !"slipstream-entrypoint".starts_with(name) {
        return Err(Error::Container {
            what: format!("the first process here is {name:?}, not slipstream-entrypoint"),
            remedy: "run this in the container whose programs are to be started again (kubectl exec)",
        });
    }
    kill(Pid::from_raw(1), RESTART).map_err(|source| Error::System { call: "kill of process 1", source })
}

fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT)
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

    fn shell(script: &str, stop: Stop) -> Program {
        Program { name: "a shell", argv: exec::argv(&["sh", "-c", script]), stop }
    }

    #[test]
    fn programs_take_signals_and_are_ended_by_command_or_signal() {
        let begin = Instant::now();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("asked").display().to_string();
        let mut group = Group::new().unwrap();
        let wait = format!("until [ -e {file} ]; do sleep 0.05; done");
        let touch = |path: &str| Stop::Command(exec::argv(&["touch", path]));
        group.start(&shell(&wait, touch(&file))).unwrap();
        group.start(&shell("exec sleep 60", touch("/dev/null/none"))).unwrap();
        group.start(&shell("exec sleep 60", Stop::Terminate)).unwrap();
        group.check().unwrap();
        drop(group);
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        assert!(dir.path().join("asked").exists());
    }

    #[test]
    fn a_program_that_has_ended_is_told_with_its_status() {
        let mut group = Group::new().unwrap();
        group.start(&shell("exit 3", Stop::Terminate)).unwrap();
        let error = exec::retry(PATIENCE, || match group.check() {
            Err(error) => Ok(error.to_string()),
            Ok(()) => Err(Error::NotReady("it runs".into())),
        });
        assert!(error.unwrap().contains("exit status: 3"));
    }

    #[test]
    fn programs_are_started_anew_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log").display().to_string();
        let said = |name: &str| format!("echo {name} >> {log}; exec sleep 60");
        let mut group = Group::new().unwrap();
        for name in ["a", "b"] {
            group.start(&shell(&said(name), Stop::Terminate)).unwrap();
            exec::retry(PATIENCE, || match std::fs::read_to_string(&log) {
                Ok(text) if text.contains(name) => Ok(()),
                _ => Err(Error::NotReady("yet".into())),
            })
            .unwrap();
        }
        let before: Vec<_> = group.running.iter().map(|running| running.child.id()).collect();
        group.restart_all().unwrap();
        group.check().unwrap();
        let names: Vec<_> = group.running.iter().map(|running| running.program.argv[2].clone()).collect();
        assert_eq!(names, [said("a"), said("b")]);
        assert!(group.running.iter().all(|running| !before.contains(&running.child.id())));
    }

    #[test]
    fn the_first_process_of_a_machine_is_left_alone() {
        let error = ask_for_restart().unwrap_err().to_string();
        assert!(error.contains("not slipstream-entrypoint") && error.contains("kubectl exec"), "{error}");
    }

    #[test]
    fn the_exit_code_is_the_programs_and_never_success() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(0)), 1);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}

//! Running programs: the only module of this crate that starts any.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// A program with its arguments.
pub type Argv = Vec<String>;

/// The command of an argument vector.
#[expect(clippy::disallowed_methods, reason = "an entry point exists to start programs")]
pub(crate) fn command(argv: &[String]) -> Command {
    let program = argv.first().map(String::as_str).unwrap_or_default();
    let mut command = Command::new(program);
    command.args(argv.iter().skip(1));
    command
}

/// An argument vector of texts.
#[must_use]
pub fn argv(words: &[&str]) -> Argv {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// It cannot be started, or its exit code is not 0: then with what it wrote to standard error.
pub fn output(argv: &[String]) -> Result<String> {
    let shown = argv.join(" ");
    let out = command(argv)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start { program: shown.clone(), source })?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let detail = format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    Err(Error::Failed { program: shown, detail })
}

/// Runs a program to its end; what it prints is printed.
///
/// # Errors
/// It cannot be started, or its exit code is not 0.
pub fn run(argv: &[String], variables: &[(&str, String)]) -> Result<()> {
    let shown = argv.join(" ");
    let mut command = command(argv);
    command.envs(variables.iter().map(|(name, value)| (OsStr::new(*name), value)));
    let status = command.status().map_err(|source| Error::Start { program: shown.clone(), source })?;
    if status.success() { Ok(()) } else { Err(Error::Failed { program: shown, detail: status.to_string() }) }
}

/// Becomes a program; returns only if it cannot be started.
///
/// # Errors
/// It cannot be started.
pub fn become_program(argv: &[String], variables: &[(&str, String)]) -> Result<Infallible> {
    let mut command = command(argv);
    command.envs(variables.iter().map(|(name, value)| (OsStr::new(*name), value)));
    Err(Error::Start { program: argv.join(" "), source: command.exec() })
}

/// Tries until it works, the time is over, or a signal ends the role.
///
/// # Errors
/// The error of the last try.
pub fn retry<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Err(stopped @ Error::Stopped(_)) => return Err(stopped),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_says_what_it_wrote() {
        assert_eq!(output(&argv(&["echo", "a b"])).unwrap(), "a b\n");
        let failed = output(&argv(&["sh", "-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(failed.contains("exit status: 3") && failed.contains("why"), "{failed}");
        let none = output(&argv(&["no-such-program"])).unwrap_err().to_string();
        assert!(none.contains("cannot start no-such-program"), "{none}");
    }

    #[test]
    fn a_try_that_works_ends_the_tries() {
        let mut tries = 0;
        let third = retry(Duration::from_secs(5), || {
            tries += 1;
            if tries == 3 { Ok(tries) } else { Err(Error::NotReady("yet".into())) }
        });
        assert_eq!(third.unwrap(), 3);
        assert!(retry(Duration::ZERO, || Err::<(), _>(Error::NotReady("ever".into()))).is_err());
    }
}

//! Running programs: the only module of the test bed that starts any.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A command to be filled in.
#[expect(clippy::disallowed_methods, reason = "a test bed runs programs")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// A command to be filled in, for use inside an asynchronous task.
#[expect(clippy::disallowed_methods, reason = "a test bed runs programs")]
pub fn async_command(program: impl AsRef<OsStr>) -> tokio::process::Command {
    tokio::process::Command::new(program)
}

/// Runs to the end and returns standard output; an exit code other than 0 is an error with what was written to
/// standard error.
pub fn output(command: &mut Command) -> Result<String> {
    input_output(command, "")
}

/// As [`output`], with `input` on standard input.
pub fn input_output(command: &mut Command, input: &str) -> Result<String> {
    let Captured { status, stdout, stderr } = capture(command, input)?;
    if !status.success() {
        let said = [stderr.trim(), stdout.trim()].join("\n");
        bail!("{}: {status}: {}", shown(command), said.trim());
    }
    Ok(stdout)
}

/// How a program ended and what it said.
#[derive(Clone, Debug)]
pub struct Captured {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs to the end, however that may be, with something on standard input.
pub fn capture(command: &mut Command, input: &str) -> Result<Captured> {
    let shown = shown(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let mut pipe = child.stdin.take().context("no pipe")?;
    let text = input.to_owned();
    let writer = thread::Builder::new().name("stdin".into()).spawn(move || {
        // A program that does not read its input is free not to.
        let _ = pipe.write_all(text.as_bytes());
    })?;
    let out = child.wait_with_output().with_context(|| format!("waiting for {shown}"))?;
    let _ = writer.join();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Captured { status: out.status, stdout: text(&out.stdout), stderr: text(&out.stderr) })
}

/// Program and arguments on one line, shortened.
fn shown(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    let mut line = words.join(" ");
    if line.len() > 400 {
        line = line.chars().take(400).collect::<String>() + " ..";
    }
    line
}

/// An error that no further try can resolve.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(pub String);

/// How many times as long as usual things may take on this machine: `$SLIPSTREAM_PATIENCE`, for where everything is slow
/// because the processor is emulated.
#[must_use]
pub fn patience() -> u32 {
    let set = std::env::var("SLIPSTREAM_PATIENCE").ok().and_then(|v| v.parse::<u32>().ok());
    set.unwrap_or(1).clamp(1, 100)
}

/// A time to wait for something, on this machine.
#[must_use]
pub fn patient(limit: Duration) -> Duration {
    limit * patience()
}

/// Tries until it works or the time is over; the error is that of the last try.
pub fn retry<T>(limit: Duration, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let limit = patient(limit);
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if error.is::<Fatal>() => return Err(error.context(what.to_owned())),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("gave up after {limit:?}: {what}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Runs a program in the foreground and takes over its exit code.
pub fn foreground(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

//! What is printed: as text or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::Value;

use crate::checks::{self, Finding};
use crate::client::Error;

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Plain text.
    Table,
    /// JSON, as sent by the agent.
    Json,
}

impl Output {
    /// Prints findings; the exit code says whether one is a failure.
    pub(crate) fn findings(self, findings: &[Finding]) -> Result<ExitCode, Error> {
        let value = serde_json::to_value(findings).map_err(Error::not_understood)?;
        self.print(&value, |_: Value| checks::text(findings))?;
        Ok(checks::code(findings))
    }

    /// Prints an answer.
    pub(crate) fn print<T: serde::de::DeserializeOwned>(
        self,
        value: &Value,
        text: impl FnOnce(T) -> String,
    ) -> Result<(), Error> {
        let out = match self {
            Self::Json => format!("{value:#}\n"),
            Self::Table => text(serde_json::from_value(value.clone()).map_err(Error::not_understood)?),
        };
        write(&out)
    }
}

/// Writes to standard output. A closed pipe is not an error.
pub(crate) fn write(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Output(error)),
        _ => Ok(()),
    }
}

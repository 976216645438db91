//! What can go wrong before the programs of a role run.

use std::io;
use std::path::PathBuf;

/// An error of the entry point. Each says which setting or object to change, where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable is needed and is not set, or is empty.
    #[error("the environment variable {name} is not set; it must be {right}")]
    Missing {
        /// Name of the variable.
        name: &'static str,
        /// What is right.
        right: &'static str,
    },
    /// A variable has a value that cannot be right.
    #[error("the environment variable {name} is {value:?}: {problem}; it must be {right}")]
    Wrong {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What is right.
        right: &'static str,
    },
    /// The container lacks something that its pod must give it.
    #[error("{what}; {remedy}")]
    Container {
        /// What is missing.
        what: String,
        /// What to change.
        remedy: &'static str,
    },
    /// A file cannot be read, written or made.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A database file that does not fit the settings.
    #[error("{path} {problem}")]
    Database {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        problem: String,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A program that prepares something has failed.
    #[error("{program}: {detail}")]
    Failed {
        /// The program with its arguments.
        program: String,
        /// Exit code and what it wrote to standard error.
        detail: String,
    },
    /// Something has not come within its time.
    #[error("{what} within {seconds} s")]
    Late {
        /// What has not come.
        what: String,
        /// Time waited, seconds.
        seconds: u64,
    },
    /// A signal has come before the programs of the role ran.
    #[error("{0}: ending")]
    Stopped(nix::sys::signal::Signal),
    /// A role is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
    /// A signal or process call of the operating system.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Error of the call.
        source: nix::Error,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

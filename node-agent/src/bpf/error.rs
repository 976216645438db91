//! Errors of eBPF programs and maps. Each names the object (program, map, interface, pin) and what would be right.

use std::{fmt, io, path::PathBuf};

use aya::{EbpfError, maps::MapError, programs::ProgramError};

use super::Unsupported;
use crate::flow_cache::CacheError;

/// Number of lines from the end of the verifier's log that go into an error.
const VERIFIER_LINES: usize = 12;

/// Whether the error means that the map has no such key (aya's KeyNotFound for lookups, ENOENT for removals).
pub(super) fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(nix::libc::ENOENT),
        _ => false,
    }
}

/// Error of an operation on eBPF programs, maps or links.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine cannot run the programs; the node must use OVS only.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A file operation on the pins.
    #[error("cannot {action} {}", path.display())]
    Pin {
        /// What was tried, as a verb.
        action: &'static str,
        /// File or directory of the pin.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// Loading the object: parsing it, creating or pinning its maps.
    #[error("cannot load the eBPF object with its maps pinned in {}", dir.display())]
    Object {
        /// Directory of the pinned maps.
        dir: PathBuf,
        /// Error of the loader.
        #[source]
        source: Box<EbpfError>,
    },
    /// The kernel rejects a program; the source has the end of the verifier's log.
    #[error("the kernel rejects eBPF program {program}: {text}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// End of the verifier's log.
        text: String,
    },
    /// The object has no such program or map: it was built from another source than the agent.
    #[error("the eBPF object has no {what} {name}; build agent and object from the same source")]
    NotInObject {
        /// `program` or `map`.
        what: &'static str,
        /// Name of the program or map.
        name: &'static str,
    },
    /// Attaching a program to an interface.
    #[error("cannot attach {program} to interface {ifindex} ({})", if *ingress { "ingress" } else { "egress" })]
    Attach {
        /// Name of the program.
        program: &'static str,
        /// Index of the interface.
        ifindex: u32,
        /// Direction: true for ingress, false for egress.
        ingress: bool,
        /// Error of the attachment.
        #[source]
        source: Box<ProgramError>,
    },
    /// There is no interface with this index in this network namespace.
    #[error("cannot attach {program}: no interface has index {ifindex} in this network namespace")]
    NoInterface {
        /// Name of the program.
        program: &'static str,
        /// The index.
        ifindex: u32,
    },
    /// Reading or writing a map.
    #[error("cannot {action} map {map}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// What was tried, as a verb.
        action: &'static str,
        /// Error of the operation.
        #[source]
        source: Box<MapError>,
    },
    /// Invalid configuration of a port.
    #[error("endpoint {id:?}: {problem}")]
    BadEndpoint {
        /// Id of the pod's interface.
        id: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Invalid configuration of the uplink.
    #[error("uplink {ifindex}: {problem}")]
    BadUplink {
        /// Index of the uplink.
        ifindex: u32,
        /// What is wrong.
        problem: &'static str,
    },
    /// Every counter slot is taken.
    #[error("no counter slot left: at most {capacity} pods per node are supported")]
    NoSlot {
        /// Number of slots.
        capacity: u32,
    },
    /// Setting up a port failed, and so did undoing it.
    #[error("{cause}; and undoing it failed: {rollback}")]
    Rollback {
        /// Why the port could not be set up.
        cause: Box<Error>,
        /// What could not be undone.
        rollback: Failures,
    },
    /// Running a program on a packet in memory.
    #[error("cannot run {program} on a packet: {text}")]
    DryRun {
        /// Name of the program.
        program: String,
        /// Error of the run.
        text: String,
    },
    /// Reading the programs' log.
    #[error("cannot read the programs' log")]
    Log(#[source] io::Error),
}

impl From<Error> for CacheError {
    fn from(error: Error) -> Self {
        match error {
            Error::Map { map, source, .. } if is_full(&source) => Self::MapFull { map },
            Error::Map { map, action, source } => {
                Self::Map { map, action, reason: api::error::chain(&*source) }
            }
            other => Self::Programs(api::error::chain(&other)),
        }
    }
}

/// Whether the kernel refuses another entry: hash maps answer E2BIG (kernel/bpf/hashtab.c), others ENOSPC.
fn is_full(error: &MapError) -> bool {
    use nix::libc::{E2BIG, ENOSPC};
    matches!(error, MapError::SyscallError(error) if matches!(error.io_error.raw_os_error(), Some(E2BIG | ENOSPC)))
}

impl Error {
    /// Error of a map operation: "cannot `action` map `map`".
    pub(super) fn map(map: &'static str, action: &'static str, source: MapError) -> Self {
        Self::Map { map, action, source: Box::new(source) }
    }
}

/// Why the kernel rejects a program, with the end of the verifier's log.
pub(super) fn verifier_text(error: &ProgramError) -> String {
    let ProgramError::LoadError { io_error, verifier_log } = error else { return api::error::chain(error) };
    let log = verifier_log.to_string();
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(VERIFIER_LINES)..];
    format!("{io_error}: {}", last.join(" | "))
}

/// Failures of an operation that continues after errors.
#[derive(Debug)]
pub struct Failures(pub Vec<Error>);

impl Failures {
    /// Ok if nothing failed.
    pub(super) fn check(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Records the error, if there is one.
    pub(super) fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(error);
                None
            }
        }
    }
}

impl std::error::Error for Failures {}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            f.write_str(&api::error::chain(error))?;
        }
        Ok(())
    }
}

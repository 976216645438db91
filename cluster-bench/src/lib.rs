//! The network benchmark on a live cluster, whatever network plugin it has: `run`, `clean`, `compare` and `report`.
//!
//! From the bottom up: [`paths`], `options`, `scenario` and `plan` say what is measured and how long it takes; `objects` and `rbac` are the objects, `ready` why a
//! pod is not; `document`, `rows`, `report`, `html` and `compare` are about results. All these are pure. `api` asks the API server, `facts` reads
//! what the cluster is, `place` puts servers into it, `drive` runs clients, `clean` removes everything, `run` joins them, and `args` is the command line. Nothing is
//! executed in a pod: clients say their results in their logs, so that the right to execute is not needed.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod api;
mod args;
mod clean;
mod compare;
mod document;
mod drive;
mod facts;
mod html;
mod objects;
mod options;
pub mod paths;
mod place;
mod plan;
mod plugin;
mod rbac;
mod ready;
mod report;
mod rows;
mod run;
mod say;
mod scenario;

pub use args::Command;
pub use options::{CleanArgs, CompareArgs, ReportArgs, RunArgs};

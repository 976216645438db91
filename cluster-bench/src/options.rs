//! What can be said on the command line about each command.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use traffic::{GoalOf, Test};

use crate::paths::Path;

/// Where everything is put unless told otherwise.
const NAMESPACE: &str = "slipstream-perf-tests";
/// The image that `cargo xtask image --traffic` makes.
const IMAGE: &str = concat!("localhost/slipstream-traffic:", env!("CARGO_PKG_VERSION"));

/// Which cluster, and where in it.
#[derive(Debug, Clone, Args)]
pub struct Where {
    /// How to reach the cluster; without it as kubectl does.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of everything. It is made, or must be one that was made for this.
    #[arg(long, default_value = NAMESPACE)]
    pub namespace: String,
}

/// Families of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// Only IPv4.
    Ipv4,
    /// Only IPv6.
    Ipv6,
    /// The families that the cluster has.
    Both,
}

impl Family {
    /// Whether an address is wanted.
    #[must_use]
    pub fn has(self, address: std::net::IpAddr) -> bool {
        match self {
            Self::Ipv4 => address.is_ipv4(),
            Self::Ipv6 => address.is_ipv6(),
            Self::Both => true,
        }
    }
}

/// `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Which cluster.
    #[command(flatten)]
    pub place: Where,
    /// Two nodes: of the client, and of the other server. Without it the first two that are ready and take pods.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub nodes: Vec<String>,
    /// What is measured; without it every path.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PATH,..")]
    pub paths: Vec<Path>,
    /// Tests: tcp-rr, tcp-crr, tcp-stream, udp-rr, udp-rate; without it all of them.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TEST,..")]
    pub tests: Vec<Test>,
    /// What is measured and its goals, from a file, or by name: `scenarios` lists them. Flags win over it.
    #[arg(long, value_name = "NAME|FILE")]
    pub scenario: Option<String>,
    /// Families of addresses that are measured; without it those that the cluster has.
    #[arg(long, value_enum)]
    pub family: Option<Family>,
    /// The traffic tool's image.
    #[arg(long, default_value = IMAGE, value_name = "REF")]
    pub image: String,
    /// Rounds of all passes together; each has one slice of every path. 300, with --quick 30.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,
    /// Into so many passes the rounds are divided, each with new pods and connections. 3, with --quick 2.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub passes: Option<u32>,
    /// Length of a slice, in milliseconds. 30, with --quick 20.
    #[arg(long, value_parser = clap::value_parser!(u64).range(5..=5_000))]
    pub slice_ms: Option<u64>,
    /// Short: the fewest slices that allow a verdict.
    #[arg(long)]
    pub quick: bool,
    /// Directory of the results, run.json, report.md and report.html; must not have them yet. Without it a new one with the time in its name.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A bound on the ratio of two paths, in every test, such as `cluster-ip/pod-ip>=0.95`; may be given more than once.
    #[arg(long, value_name = "PATH/PATH>=RATIO")]
    pub goal: Vec<GoalOf>,
    /// Control port of servers with the node's network; data goes to the one after it. Both must be free on the nodes.
    #[arg(long, default_value_t = 25_501, value_parser = clap::value_parser!(u16).range(1024..=65_534))]
    pub host_port: u16,
    /// Seconds until pods must be ready.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub ready_seconds: u64,
    /// Print the objects that give a service account the rights that are needed, and end.
    #[arg(long)]
    pub print_rbac: bool,
}

/// `clean`.
#[derive(Debug, Clone, Args)]
pub struct CleanArgs {
    /// Which cluster.
    #[command(flatten)]
    pub place: Where,
}

/// `compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// run.json of the first run, or its directory.
    pub before: PathBuf,
    /// run.json of the second run, or its directory.
    pub after: PathBuf,
    /// Per cent within which two figures count as the same.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub within: f64,
}

/// `report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// run.json of a run, or its directory.
    pub run: PathBuf,
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    /// The arguments of `run` as a command line would give them.
    pub(crate) fn parsed(line: &str) -> RunArgs {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        Line::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap().args
    }
}

//! The JSON document of a run. Its fields are described in docs/traffic.md; a change that a reader would notice raises [`FORMAT`].

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::measure::{CpuTimes, Host, Latency};
use crate::protocol::control::Test;
use crate::statistics::{Goal, Pairs, Verdict};

/// Version of the document.
pub const FORMAT: u32 = 1;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`FORMAT`] of the program that wrote the document.
    pub format: u32,
    /// Version of the program that wrote the document.
    pub version: String,
    /// Seconds since 1970.
    pub begun: u64,
    /// Machine of the client.
    pub client: Host,
    /// By the name of the path, which is the target where there is only one.
    pub servers: BTreeMap<String, Host>,
    /// Tests, each with one size of messages.
    pub rows: Vec<Row>,
    /// Slices of several paths, if the run had them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliced: Option<Sliced>,
}

/// One test with one size of messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Test that was run.
    pub test: Test,
    /// `forward`, `reverse` or `both`, of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// Connections, or flows of datagrams, at once.
    pub connections: u32,
    /// Bytes of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u32>,
    /// Bytes of a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<u32>,
    /// Bytes of a stream's writes, or of a datagram's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_bytes: Option<u32>,
    /// Rate that was asked for, in the unit of [`Row::per_second`]; `None`: as fast as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_per_second: Option<f64>,
    /// Address and port of the server that the load went to.
    pub data_address: String,
    /// Length of the measurement.
    pub seconds: f64,
    /// The main figure: transactions, bits received or different datagrams received, per second.
    pub per_second: f64,
    /// The main figure by intervals of [`Row::interval_seconds`].
    pub samples: Vec<f64>,
    /// Length of an interval.
    pub interval_seconds: f64,
    /// Times of transactions, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// Transactions completed.
    pub transactions: u64,
    /// Requests without an answer, or datagrams that did not come.
    pub lost: u64,
    /// Failures at the client, by name of the error.
    pub failures: BTreeMap<String, u64>,
    /// Datagrams sent.
    pub sent_packets: u64,
    /// Datagrams received.
    pub received_packets: u64,
    /// Order of the datagrams received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Bytes of payload sent.
    pub sent_bytes: u64,
    /// Bytes of payload received.
    pub received_bytes: u64,
    /// What each end sent and received from the first connection to the last, warm-up included: client, then server.
    pub all_sent_bytes: [u64; 2],
    /// Bytes that each end received, as in [`Row::all_sent_bytes`].
    pub all_received_bytes: [u64; 2],
    /// Transactions that each end completed, as in [`Row::all_sent_bytes`].
    pub all_transactions: [u64; 2],
    /// TCP segments sent again: by the client, by the server.
    pub retransmits: [u64; 2],
    /// Failures at the server, by name of the error.
    pub server_failures: BTreeMap<String, u64>,
    /// CPU time of both machines.
    pub cpu: Cpu,
}

/// Order of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reorder {
    /// Datagrams that came more than once.
    pub duplicates: u64,
    /// Datagrams that came after one with a higher number.
    pub reordered: u64,
    /// Reordered of those received (RFC 4737, section 4.1.4).
    pub ratio: f64,
}

/// What all CPUs of both machines did during the measurement, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// CPUs of the client's machine.
    pub client: CpuTimes,
    /// CPUs of the server's machine.
    pub server: CpuTimes,
    /// Busy time of both, in microseconds; twice the same where both ends are on one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_per_transaction: Option<[f64; 2]>,
}

/// Interleaved slices of several paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sliced {
    /// Test that was run.
    pub test: Test,
    /// Length of a slice, in milliseconds.
    pub slice_ms: u64,
    /// Rounds, each with one slice of every path.
    pub rounds: usize,
    /// Paths that were measured.
    pub paths: Vec<PathSeries>,
    /// Paths against others.
    pub ratios: Vec<Ratio>,
    /// Paths that could not be opened, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<(String, String)>,
}

/// The slices of one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathSeries {
    /// Name of the path.
    pub name: String,
    /// Target of the path, as on the command line.
    pub target: String,
    /// Address and port of the server that the load went to.
    pub data_address: String,
    /// Median of the slices that were not disturbed.
    pub per_second: Option<f64>,
    /// Median of the median times of a transaction, in microseconds.
    pub median_us: Option<f64>,
    /// Slices that were disturbed.
    pub disturbed: usize,
    /// Datagrams or requests that were sent; 0 of streams.
    #[serde(default)]
    pub sent: u64,
    /// Datagrams or requests among `sent` that were not received, or had no answer.
    #[serde(default)]
    pub lost: u64,
    /// Slices, each with its round, rate, median time in microseconds and the part in which others had the CPU.
    pub slices: Vec<(usize, f64, Option<f64>, f64)>,
}

/// One path against another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the path.
    pub path: String,
    /// Name of the path that it is held against.
    pub against: String,
    /// Ratios of neighbouring slices.
    pub pairs: Pairs,
    /// Bound for the ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// Whether the goal is reached; `None` without a goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl Document {
    /// Reads one.
    ///
    /// # Errors
    /// The file cannot be read, is no such document, or of a format that this program does not know.
    pub fn read(path: &Path) -> Result<Self> {
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(at)?;
        Self::parse(&text).with_context(at)
    }

    /// Reads one from its text.
    ///
    /// # Errors
    /// As [`Document::read`].
    pub fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_str(text)
            .context("no result of `slipstream-traffic run --json`: field format is missing")?;
        if version.format != FORMAT {
            bail!("format {}: this program reads format {FORMAT}", version.format);
        }
        serde_json::from_str(text).context("no result of `slipstream-traffic run --json`")
    }
}

/// Writes a document to a file, or to standard output for `-`.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(document: &Document, path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return write_line(document, true);
    }
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("--json {}", path.display()))
}

/// Writes a document to standard output; as a single line if others follow.
///
/// # Errors
/// It is closed.
pub(crate) fn write_line(document: &Document, pretty: bool) -> Result<()> {
    let text = if pretty { serde_json::to_string_pretty(document) } else { serde_json::to_string(document) }?;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .context("standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_that_are_not_known_are_refused() {
        let error = |text: &str| format!("{:#}", Document::parse(text).unwrap_err());
        assert_eq!(error(r#"{"format": 2}"#), "format 2: this program reads format 1");
        assert!(error("{}").contains("field format"));
        assert!(error(r#"{"format": 1}"#).contains("missing field"));
    }
}

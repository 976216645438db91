//! The control connection: what a client may ask, within which bounds, and what a server answers.
//!
//! Each message is one line of JSON. A session has one control connection; when that ends, so does the session.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::measure::{CpuTimes, Host};

/// Version of everything that the ends say. Both must have the same.
pub(crate) const PROTOCOL: u32 = 1;
/// How both ends introduce themselves.
pub(crate) const PROGRAM: &str = "slipstream-traffic";
/// Most data connections or flows of a test.
pub(crate) const MOST_CONNECTIONS: u32 = 1024;
/// Largest request, answer or message of a TCP test, in bytes.
pub(crate) const MOST_BYTES: u32 = 1 << 20;
/// Largest payload of a UDP datagram by IPv4, in bytes (RFC 768, RFC 791: 65,535 less both headers).
pub(crate) const MOST_DATAGRAM: u32 = 65_507;
/// Most bytes of a test's messages on all its connections together.
pub(crate) const MOST_MEMORY: u64 = 256 << 20;
/// Longest test with its warm-up, in seconds.
pub(crate) const MOST_SECONDS: f64 = 3600.0;
/// Buckets of arrivals that a server keeps: one each 100 ms.
pub(crate) const BUCKET_MILLIS: u64 = 100;

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Requests and answers on TCP connections, one at a time on each.
    TcpRr,
    /// TCP connections one after another: connect, request, answer, close.
    TcpCrr,
    /// Bytes over TCP connections, as many as go.
    TcpStream,
    /// Requests and answers by UDP, one at a time from each socket.
    UdpRr,
    /// Numbered UDP datagrams at a rate, or as many as go.
    UdpRate,
    /// Requests over many UDP flows in turn, one at a time.
    Flows,
    /// Requests over many TCP connections in turn, one at a time.
    TcpFlows,
    /// New TCP connections at a rate or all at once, many at a time.
    Storm,
}

impl Test {
    /// Whether its data goes by UDP.
    #[must_use]
    pub fn is_udp(self) -> bool {
        matches!(self, Self::UdpRr | Self::UdpRate | Self::Flows)
    }

    /// Whether each transaction has a connection of its own.
    pub(crate) fn connects(self) -> bool {
        matches!(self, Self::TcpCrr | Self::Storm)
    }

    /// Whether it is made of requests and answers.
    pub(crate) fn asks(self) -> bool {
        !matches!(self, Self::TcpStream | Self::UdpRate)
    }

    /// Name of the test on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What the server must know of a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) test: Test,
    /// Connections or flows.
    pub(crate) connections: u32,
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
    /// Bytes of a stream's writes, or of a datagram's payload.
    pub(crate) message_bytes: u32,
    /// Warm-up and measurement, in seconds.
    pub(crate) seconds: f64,
    /// The CPU that the server stays on.
    pub(crate) server_cpu: Option<u32>,
}

impl Settings {
    /// Fails with the field that is out of bounds, and the bounds. Both ends check.
    pub(crate) fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: u32, least: u32, most: u32| {
            let is_good = (least..=most).contains(&value);
            is_good.then_some(()).ok_or(format!("{name} {value}: must be from {least} to {most}"))
        };
        within("--connections", self.connections, 1, MOST_CONNECTIONS)?;
        let udp = self.test.is_udp();
        let most = if udp { MOST_DATAGRAM } else { MOST_BYTES };
        let least = match self.test {
            test if test.is_udp() => super::data::HEAD_BYTES,
            // The head of a connection is the beginning of the request.
            test if test.connects() => u32::try_from(super::data::HELLO_BYTES).unwrap_or(u32::MAX),
            _ => 1,
        };
        if self.test.asks() {
            within("--request-bytes", self.request_bytes, least, most)?;
            within("--response-bytes", self.response_bytes, if udp { least } else { 1 }, most)?;
        } else {
            within("--message-bytes", self.message_bytes, least, most)?;
        }
        let largest =
            if self.test.asks() { self.request_bytes.max(self.response_bytes) } else { self.message_bytes };
        if u64::from(largest) * u64::from(self.connections) > MOST_MEMORY {
            return Err(format!(
                "--connections {} with messages of {largest} bytes: must be at most {MOST_MEMORY} bytes together",
                self.connections
            ));
        }
        if !(self.seconds > 0.0 && self.seconds <= MOST_SECONDS) {
            return Err(format!(
                "--time and --warm-up are {} s together: must be above 0 and at most {MOST_SECONDS} s",
                self.seconds
            ));
        }
        Ok(())
    }
}

/// The first message of a client. A server of another version must be able to read it, so it never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) program: String,
    pub(crate) protocol: u32,
    pub(crate) version: String,
    /// Sessions of one run may be open together; those of two runs would disturb each other.
    pub(crate) run: u64,
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum Ask {
    /// A test is to begin: data connections may come after the answer.
    Prepare { settings: Settings },
    /// The warm-up is over.
    Begin,
    /// The measurement is over; load may still go on.
    Mark,
    /// The client has closed its data connections: answer with a report.
    End,
    /// How long the server's threads have waited for a CPU.
    Waited,
    /// The last message: when it is answered, the session is over.
    Bye,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    Welcome {
        tag: u64,
        data_port: u16,
        host: Box<Host>,
    },
    Done,
    Report {
        report: Box<Report>,
    },
    Waited {
        nanoseconds: u64,
        stolen: u64,
    },
    /// The last message.
    Refused {
        reason: String,
    },
}

/// Datagrams of a test as the receiver counted them; those of the warm-up are not in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Datagrams {
    /// Different datagrams.
    pub(crate) received: u64,
    pub(crate) bytes: u64,
    pub(crate) duplicates: u64,
    /// Came after one with a higher number (RFC 4737, type-P-reordered).
    pub(crate) reordered: u64,
    /// From the first to the last.
    pub(crate) seconds: f64,
    /// Received in each 100 ms after the first.
    pub(crate) buckets: Vec<u32>,
}

/// What a server has seen of a test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Between `Begin` and `Mark`.
    pub(crate) seconds: f64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// In all of the test.
    pub(crate) all_received_bytes: u64,
    pub(crate) all_sent_bytes: u64,
    pub(crate) all_connections: u64,
    pub(crate) all_transactions: u64,
    /// TCP segments that the server sent again (`tcpi_total_retrans`).
    pub(crate) retransmits: u64,
    pub(crate) datagrams: Datagrams,
    pub(crate) cpu: CpuTimes,
    /// Data connections that ended by an error, by its name.
    pub(crate) failures: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(test: Test) -> Settings {
        let (connections, server_cpu) = (1, None);
        Settings {
            test,
            connections,
            request_bytes: 64,
            response_bytes: 64,
            message_bytes: 64,
            seconds: 1.0,
            server_cpu,
        }
    }

    #[test]
    fn what_a_client_may_ask_is_bounded_and_the_field_named() {
        let wrong = |change: fn(&mut Settings), test| {
            let mut settings = settings(test);
            change(&mut settings);
            settings.check().unwrap_err()
        };
        assert!(
            wrong(|s| s.connections = 0, Test::TcpRr).starts_with("--connections 0: must be from 1 to 1024")
        );
        assert!(wrong(|s| s.connections = 100_000, Test::Storm).starts_with("--connections"));
        assert!(wrong(|s| s.request_bytes = 15, Test::UdpRr).starts_with("--request-bytes 15"));
        assert!(wrong(|s| s.response_bytes = 65_508, Test::Flows).starts_with("--response-bytes"));
        assert!(wrong(|s| s.request_bytes = 31, Test::TcpCrr).starts_with("--request-bytes"));
        assert!(wrong(|s| s.message_bytes = u32::MAX, Test::TcpStream).starts_with("--message-bytes"));
        let big = |s: &mut Settings| (s.connections, s.message_bytes) = (1024, 1 << 20);
        assert!(wrong(big, Test::TcpStream).contains("268435456 bytes together"));
        for seconds in [0.0, -1.0, 4000.0, f64::NAN, f64::INFINITY] {
            let settings = Settings { seconds, ..settings(Test::TcpRr) };
            assert!(settings.check().unwrap_err().contains("--time"), "{seconds}");
        }
        for test in Test::value_variants() {
            assert_eq!(settings(*test).check(), Ok(()), "{test:?}");
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let ask = Ask::Prepare { settings: settings(Test::Flows) };
        let text = serde_json::to_string(&ask).unwrap();
        assert_eq!(serde_json::from_str::<Ask>(&text).unwrap(), ask);
        assert!(serde_json::from_str::<Ask>(r#"{"ask":"reboot"}"#).is_err());
    }
}

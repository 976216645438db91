//! Results as tables for people.

use std::fmt::Write;

use super::document::{Document, Row, Sliced};
use crate::protocol::control::Test;

/// A number with commas between thousands, without decimals.
#[must_use]
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

/// The rate of a row, with its unit.
fn rate(row: &Row) -> String {
    match row.test {
        Test::TcpStream => format!("{:.3} Gbit/s", row.per_second / 1e9),
        Test::UdpRate => format!("{} packets/s", thousands(row.per_second)),
        Test::TcpCrr | Test::Storm => format!("{} connections/s", thousands(row.per_second)),
        _ => format!("{} transactions/s", thousands(row.per_second)),
    }
}

fn size(row: &Row) -> String {
    match (row.request_bytes, row.response_bytes, row.message_bytes) {
        (Some(request), Some(response), _) => format!("{request}/{response}"),
        (_, _, Some(message)) => message.to_string(),
        _ => String::new(),
    }
}

/// The rows of a document.
pub(crate) fn rows(document: &Document) -> String {
    let mut out = String::new();
    let mut say = |line: String| {
        // A string takes everything.
        let _ = writeln!(out, "{line}");
    };
    let hosts = [&document.client].into_iter().chain(document.servers.values());
    for (what, host) in ["client", "server"].into_iter().zip(hosts) {
        say(format!(
            "{what}: {}, {} {}, Linux {}, {} x {}, clock {}",
            host.hostname,
            "slipstream-traffic",
            host.version,
            host.kernel,
            host.cpus,
            host.cpu_model,
            host.clock
        ));
    }
    for row in &document.rows {
        let direction = row.direction.as_deref().map(|d| format!(", {d}")).unwrap_or_default();
        say(format!(
            "\n{} to {}, {} bytes, {} connection(s){direction}, {:.2} s",
            row.test.name(),
            row.data_address,
            size(row),
            row.connections,
            row.seconds
        ));
        say(format!("  rate            {}", rate(row)));
        if let Some(offered) = row.offered_per_second {
            say(format!("  offered         {}/s", thousands(offered)));
        }
        if let Some(l) = row.latency_us {
            say(format!(
                "  latency us      p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
                l.p50, l.p90, l.p99, l.p99_9, l.max
            ));
        }
        if row.test.is_udp() {
            let sent = row.sent_packets.max(1);
            let percent = 100.0 * row.lost as f64 / sent as f64;
            say(format!(
                "  packets         sent {}  received {}  lost {} ({percent:.3} %)",
                row.sent_packets, row.received_packets, row.lost
            ));
        } else {
            say(format!("  retransmits     client {}  server {}", row.retransmits[0], row.retransmits[1]));
        }
        if let Some(reorder) = row.reorder {
            say(format!(
                "  order           reordered {} ({:.4} %)  duplicates {}",
                reorder.reordered,
                100.0 * reorder.ratio,
                reorder.duplicates
            ));
        }
        for (whose, failures) in [("failures", &row.failures), ("server failures", &row.server_failures)] {
            for (name, count) in failures {
                say(format!("  {whose:<15} {count} {name}"));
            }
        }
        for (whose, cpu) in [("client", row.cpu.client), ("server", row.cpu.server)] {
            say(format!(
                "  CPU of {whose}   user {:.2} s  system {:.2}  softirq {:.2}  steal {:.2}  idle {:.2}",
                cpu.user, cpu.system, cpu.softirq, cpu.steal, cpu.idle
            ));
        }
        if let Some([client, server]) = row.cpu.us_per_transaction {
            say(format!("  CPU/transaction client {client:.1} us  server {server:.1} us"));
        }
    }
    out
}

/// Interleaved paths.
pub(crate) fn sliced(sliced: &Sliced) -> String {
    let mut out = String::new();
    let mut say = |line: String| {
        let _ = writeln!(out, "{line}");
    };
    say(format!("{}, {} rounds of {} ms slices", sliced.test.name(), sliced.rounds, sliced.slice_ms));
    for path in &sliced.paths {
        let rate = path
            .per_second
            .map_or_else(|| "not measured".to_owned(), |rate| format!("{}/s", thousands(rate)));
        let time = path.median_us.map(|us| format!("  p50 {us:.1} us")).unwrap_or_default();
        let (left_out, all) = (path.disturbed, path.slices.len());
        say(format!("  {:<12} {rate}{time}  disturbed {left_out} of {all}", path.name));
    }
    for ratio in &sliced.ratios {
        let figure = ratio.pairs.estimate.map_or_else(
            || "not measured".to_owned(),
            |e| format!("{:.3} ({:.3} to {:.3}, {} pairs)", e.median, e.low, e.high, e.values),
        );
        let verdict = ratio.verdict.map(|verdict| format!("  {}", verdict.text())).unwrap_or_default();
        say(format!("  {}/{}  {figure}{verdict}", ratio.path, ratio.against));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_have_commas() {
        assert_eq!([0.0, 999.0, 1000.0, 1_234_567.4].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}

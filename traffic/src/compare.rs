//! Two results of the same tests: better, worse or the same, row by row.

use std::fmt::Write;

use crate::report::{Document, Row};
use crate::statistics::{Change, Estimate};

/// What lies so near to 1 is the same.
const SAME: f64 = 0.01;

/// What makes two rows of the same test: everything that was asked for.
fn key(row: &Row) -> String {
    let bytes = [row.request_bytes, row.response_bytes, row.message_bytes];
    let bytes: Vec<_> = bytes.into_iter().flatten().map(|bytes| bytes.to_string()).collect();
    let mut key = format!("{} {} x{}", row.test.name(), bytes.join("/"), row.connections);
    if let Some(direction) = &row.direction {
        let _ = write!(key, " {direction}");
    }
    if let Some(rate) = row.offered_per_second {
        let _ = write!(key, " at {rate}/s");
    }
    key
}

/// The table, and the answers in its order; rows that only one side has are named and have none.
pub(crate) fn compare(before: &Document, after: &Document) -> (String, Vec<Change>) {
    let mut text = format!("{:<34} {:>14} {:>14}  ratio (95 % interval)\n", "test", "before", "after");
    let mut changes = Vec::new();
    for row in &after.rows {
        let name = key(row);
        let Some(old) = before.rows.iter().find(|old| key(old) == name) else {
            let _ = writeln!(text, "{name:<34} only in the second");
            continue;
        };
        let estimate = Estimate::of_ratio_of_runs(
            std::slice::from_ref(&row.samples),
            std::slice::from_ref(&old.samples),
        );
        let change = Change::of(estimate, SAME);
        let figure = estimate.map_or_else(
            || "not measured".to_owned(),
            |e| format!("{:.3} ({:.3} to {:.3})", e.median, e.low, e.high),
        );
        let _ = writeln!(
            text,
            "{name:<34} {:>14.1} {:>14.1}  {figure}  {}",
            old.per_second,
            row.per_second,
            change.text()
        );
        if let Some((old, new)) = old.latency_us.zip(row.latency_us) {
            let _ = writeln!(
                text,
                "{:<34} {:>14.1} {:>14.1}  p50 us; p99 {:.1}, {:.1}",
                "", old.p50, new.p50, old.p99, new.p99
            );
        }
        changes.push(change);
    }
    for old in before.rows.iter().filter(|old| !after.rows.iter().any(|row| key(row) == key(old))) {
        let _ = writeln!(text, "{:<34} only in the first", key(old));
    }
    (text, changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(rates: &[f64]) -> Document {
        let row = serde_json::json!({
            "test": "tcp-rr", "connections": 1, "request_bytes": 64, "response_bytes": 64, "data_address": "x",
            "seconds": 1.0, "per_second": rates[0], "samples": rates, "interval_seconds": 0.1, "transactions": 1,
            "lost": 0, "failures": {}, "sent_packets": 0, "received_packets": 0, "sent_bytes": 0,
            "received_bytes": 0, "all_sent_bytes": [0, 0], "all_received_bytes": [0, 0],
            "all_transactions": [0, 0], "retransmits": [0, 0], "server_failures": {},
            "cpu": {"client": {"user": 0.0, "system": 0.0, "softirq": 0.0, "steal": 0.0, "idle": 0.0},
                    "server": {"user": 0.0, "system": 0.0, "softirq": 0.0, "steal": 0.0, "idle": 0.0}},
        });
        let host = serde_json::to_value(crate::measure::Host::default()).unwrap();
        let document = serde_json::json!({
            "format": 1, "version": "0", "begun": 0, "client": host, "servers": {}, "rows": [row],
        });
        serde_json::from_value(document).unwrap()
    }

    fn rates(around: f64) -> Vec<f64> {
        (0..40).map(|i| around * (1.0 + 0.02 * (f64::from(i / 8) - 2.0) / 2.0)).collect()
    }

    #[test]
    fn better_worse_and_the_same_are_told_apart() {
        let change = |before: f64, after: f64| compare(&document(&rates(before)), &document(&rates(after))).1;
        assert_eq!(change(100.0, 100.0), [Change::Undecided], "an interval of 2 % is not within 1 %");
        assert_eq!(change(100.0, 90.0), [Change::Worse]);
        assert_eq!(change(100.0, 110.0), [Change::Better]);
        let steady = document(&[100.0; 40]);
        assert_eq!(compare(&steady, &document(&[100.5; 40])).1, [Change::Same]);
        assert_eq!(compare(&steady, &document(&[50.0; 3])).1, [Change::Undecided]);
    }

    #[test]
    fn rows_of_one_side_are_named() {
        let mut other = document(&[1.0; 40]);
        other.rows[0].connections = 2;
        let (text, changes) = compare(&document(&[1.0; 40]), &other);
        assert!(text.contains("tcp-rr 64/64 x2") && text.contains("only in the second"), "{text}");
        assert!(text.contains("only in the first") && changes.is_empty(), "{text}");
    }
}

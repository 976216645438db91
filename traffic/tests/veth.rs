//! Every test over a veth pair between two namespaces: what both ends count must agree, and what is lost on purpose be seen.
#![expect(clippy::unwrap_used, reason = "what cannot be done fails the test")]

mod support;

use support::{Pair, SERVER, SERVER6, Server, number, result};

/// All that the client has sent came, and the other way round.
fn agree(document: &serde_json::Value) {
    for (sent, received) in
        [("all_sent_bytes/0", "all_received_bytes/1"), ("all_transactions/0", "all_transactions/1")]
    {
        assert_eq!(number(document, sent), number(document, received), "{sent} {received}: {document:#}");
    }
}

#[test]
fn transactions_are_counted_alike_at_both_ends() {
    let pair = Pair::new("rr");
    let _server = Server::start(Some(&pair.server), &[]);
    for test in ["tcp-rr", "tcp-crr", "udp-rr", "flows", "tcp-flows", "storm"] {
        let document = result(Some(&pair.client), &[SERVER, test]);
        let (all, counted) = (number(&document, "all_transactions/0"), number(&document, "transactions"));
        assert_eq!(all, number(&document, "all_transactions/1"), "{test}: {document:#}");
        assert!(counted > 100 && counted <= all, "{test}: {document:#}");
        assert_eq!(number(&document, "lost"), 0, "{test}");
        assert!(document.pointer("/rows/0/latency_us/p99").is_some(), "{test}");
        assert_eq!(document["rows"][0]["failures"], serde_json::json!({}), "{test}");
    }
}

#[test]
fn streams_are_counted_alike_at_both_ends() {
    let pair = Pair::new("stream");
    let _server = Server::start(Some(&pair.server), &[]);
    let forward = result(Some(&pair.client), &[SERVER, "tcp-stream", "--connections", "3"]);
    agree(&forward);
    assert!(number(&forward, "received_bytes") > 1_000_000);
    let reverse = result(Some(&pair.client), &[SERVER, "tcp-stream", "--reverse"]);
    assert!(number(&reverse, "received_bytes") > 1_000_000);
    assert_eq!(number(&reverse, "all_sent_bytes/0"), 0);
    // What was on its way when the client had enough.
    assert!(number(&reverse, "all_sent_bytes/1") >= number(&reverse, "all_received_bytes/0"));
    let both = result(Some(&pair.client), &[SERVER, "tcp-stream", "--bidirectional"]);
    agree(&both);
    assert!(number(&both, "all_received_bytes/0") > 1_000_000, "{both:#}");
}

#[test]
fn datagrams_at_a_rate_all_arrive_and_the_rate_is_kept() {
    let pair = Pair::new("rate");
    let _server = Server::start(Some(&pair.server), &[]);
    let args = [SERVER, "udp-rate", "--rate", "5000", "--sweep", "16,64,1400", "--connections", "2"];
    let document = result(Some(&pair.client), &args);
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let sent = row["sent_packets"].as_u64().unwrap();
        // Of 0.3 s, which a busy machine makes longer.
        assert!(sent >= 1000, "{row:#}");
        assert!(row["per_second"].as_f64().unwrap() < 5050.0, "{row:#}");
        assert_eq!(row["received_packets"], sent, "{row:#}");
        assert_eq!((&row["reorder"]["reordered"], &row["lost"]), (&0.into(), &0.into()));
    }
}

#[test]
fn loss_is_measured_as_it_is_made() {
    let pair = Pair::new("loss");
    let _server = Server::start(Some(&pair.server), &[]);
    pair.drop_at_server("udp dport 5502 numgen inc mod 10 0");
    let document = result(Some(&pair.client), &[SERVER, "udp-rate", "--rate", "20000"]);
    let [sent, received, lost] =
        ["sent_packets", "received_packets", "lost"].map(|name| number(&document, name));
    assert_eq!(sent, received + lost);
    assert!(sent > 5000 && lost.abs_diff(sent / 10) <= 2, "{sent} {lost}");
}

#[test]
fn retransmits_are_seen_where_segments_are_lost() {
    let pair = Pair::new("retrans");
    let _server = Server::start(Some(&pair.server), &[]);
    pair.drop_at_server("tcp dport 5502 numgen inc mod 200 0");
    let document = result(Some(&pair.client), &[SERVER, "tcp-stream"]);
    assert!(number(&document, "retransmits/0") > 0, "{document:#}");
    agree(&document);
}

#[test]
fn ipv6_names_and_a_data_address_of_their_own() {
    let pair = Pair::new("six");
    let _server = Server::start(Some(&pair.server), &[]);
    let document = result(Some(&pair.client), &[SERVER6, "tcp-rr", "--target-address", SERVER]);
    assert_eq!(document["rows"][0]["data_address"], format!("{SERVER}:5502"));
    let document = result(Some(&pair.client), &[SERVER6, "udp-rr"]);
    assert_eq!(document["rows"][0]["data_address"], format!("[{SERVER6}]:5502"));
}

#[test]
fn ends_stay_on_their_cpus_and_the_host_is_told() {
    let pair = Pair::new("cpu");
    let _server = Server::start(Some(&pair.server), &[]);
    let document = result(Some(&pair.client), &[SERVER, "tcp-rr", "--cpu", "0", "--server-cpu", "0"]);
    assert!(number(&document, "transactions") > 100);
    assert!(!document["client"]["kernel"].as_str().unwrap().is_empty());
    let error = support::failure(Some(&pair.client), &[SERVER, "tcp-rr", "--server-cpu", "1023"]);
    assert!(error.contains("--server-cpu"), "{error}");
}

#[test]
fn paths_of_one_server_are_interleaved_and_judged() {
    let pair = Pair::new("paths");
    let _server = Server::start(Some(&pair.server), &[]);
    let paths = format!("four={SERVER},six={SERVER6}");
    let args = ["tcp-rr", "--paths", &paths, "--rounds", "4", "--slice-ms", "5", "--goal", "six/four>=0.5"];
    let out = support::run(Some(&pair.client), &args);
    let document: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["sliced"]["paths"][0]["slices"].as_array().unwrap().len(), 4);
    // Four rounds are too few for a verdict.
    assert_eq!(out.status.code(), Some(3), "{document:#}");
}

//! How long it takes to have 20,000 logical switch ports as typed rows, against the C `ovsdb-client dump` of the same
//! columns from the same server. Both sides start unconnected, and take turns. Then how long one-row transactions take.
//! Prints medians; asserts nothing about times.
//!
//! `cargo bench -p ovsdb-client --bench ingest -- [PORTS] [ROUNDS]`

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{Client, Condition, Datum, MonitorSpec, Mutator, Row, Transaction};
use support::{PATIENCE, Server, ovs_command};

const DATABASE: &str = ovsdb_client::nb::DATABASE;
const COLUMNS: [&str; 4] = ["addresses", "external_ids", "name", "options"];

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let ports: usize = numbers.next().unwrap_or(20_000);
    let rounds: usize = numbers.next().unwrap_or(15);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let server = Server::start("ovn-nb.ovsschema");
    runtime.block_on(fill(&server, ports));

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let c = dump(&server);
        let rust = runtime.block_on(ingest(&server, ports));
        // The first round warms up.
        if round > 0 {
            theirs.push(c);
            ours.push(rust);
        }
    }
    let commits = Spread::of(runtime.block_on(commits(&server, 1000)));
    let (ours, theirs) = (Spread::of(ours), Spread::of(theirs));
    let ratio = ours.median.as_secs_f64() / theirs.median.as_secs_f64();
    let report = format!(
        "{ports} Logical_Switch_Port rows, columns {}, {rounds} rounds in turn\n\
         connect, monitor, typed rows with an index: {ours}\n\
         C ovsdb-client dump of the same:            {theirs}\n\
         ratio of medians: {ratio:.3} (goal: at most 1.5)\n\
         one-row transactions one by one, each in the replica afterwards: {commits}\n",
        COLUMNS.join(" ")
    );
    std::io::stdout().write_all(report.as_bytes()).expect("the report can be written");
}

async fn fill(server: &Server, ports: usize) {
    let client = server.client(DATABASE).await;
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("n1"))]);
    let switch = client.transact(txn).await.expect("a switch")[0].uuid.expect("its identifier");
    for batch in (0..ports).collect::<Vec<_>>().chunks(1000) {
        let mut txn = Transaction::new();
        let mut added = Vec::new();
        for n in batch {
            let (high, low) = (n / 250, n % 250 + 2);
            added.push(txn.insert(
                LogicalSwitchPort::TABLE,
                [
                    ("name", Datum::from(format!("namespace-{}_deployment-7d4b9c6f5-{n:05}", n % 40))),
                    ("addresses", [format!("0a:58:0a:f4:{high:02x}:{low:02x} 10.244.{high}.{low}")].into()),
                    (
                        "options",
                        map([("requested-chassis", "n1".to_owned()), ("iface-id-ver", switch.to_string())]),
                    ),
                    (
                        "external_ids",
                        map([("namespace", format!("namespace-{}", n % 40)), ("pod", "true".to_owned())]),
                    ),
                ],
            ));
        }
        txn.mutate(
            LogicalSwitch::TABLE,
            vec![Condition::uuid(switch)],
            [("ports", Mutator::Insert, added.into())],
        );
        client.transact(txn).await.expect("ports");
    }
}

fn map<const N: usize>(pairs: [(&str, String); N]) -> Datum {
    pairs.into_iter().collect::<BTreeMap<_, _>>().into()
}

/// Time until every row is here, typed and indexed.
async fn ingest(server: &Server, ports: usize) -> Duration {
    let start = Instant::now();
    let client = Client::new(server.options(DATABASE));
    client.connected(PATIENCE).await.expect("a connection");
    let spec = MonitorSpec::new()
        .table::<LogicalSwitchPort>(&COLUMNS)
        .index::<LogicalSwitchPort>("name", |port| vec![port.name.clone()]);
    let replica = client.monitor(spec).await.expect("a replica");
    let took = start.elapsed();
    assert_eq!(replica.read().table::<LogicalSwitchPort>().len(), ports, "the benchmark read something else");
    took
}

/// Times of single transactions, from the call until it has returned.
async fn commits(server: &Server, count: usize) -> Vec<Duration> {
    let client = server.client(DATABASE).await;
    let replica =
        client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"])).await.expect("a replica");
    let mut times = Vec::new();
    for n in 0..count {
        let mut txn = Transaction::new();
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(format!("s{n}")))]);
        let start = Instant::now();
        client.transact(txn).await.expect("a switch");
        times.push(start.elapsed());
        assert_eq!(replica.read().table::<LogicalSwitch>().len(), n + 2, "the replica lags behind");
    }
    times
}

/// Run time of the C tool.
fn dump(server: &Server) -> Duration {
    let start = Instant::now();
    let status = ovs_command("ovsdb-client", server.dir.path())
        .args(["dump", "unix:db.sock", DATABASE, LogicalSwitchPort::TABLE])
        .args(COLUMNS)
        .stdout(Stdio::null())
        .status()
        .expect("ovsdb-client starts");
    let took = start.elapsed();
    assert!(status.success(), "ovsdb-client dump failed");
    took
}

struct Spread {
    median: Duration,
    min: Duration,
    max: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        Self { median: at(times.len() / 2), min: at(0), max: at(times.len().saturating_sub(1)) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        write!(f, "median {:.2} ms (min {:.2}, max {:.2})", ms(self.median), ms(self.min), ms(self.max))
    }
}

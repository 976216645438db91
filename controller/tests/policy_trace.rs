//! The reference's policies in a real northbound database, translated by a real ovn-northd, judged by `ovn-trace`: which
//! packets between the reference's pods reach the other pod's port.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod fixture;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use controller::plan;
use controller::reconcile::{Desired, ReplicaView, desired::Touched, diff, monitor_spec};
use ovsdb_client::{Client, Endpoint, Options, Transaction};
use test_support::ovs::{self, Process};

/// Longest wait for anything that should happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Name, MAC address and address of the pods.
const PODS: [(&str, &str, &str); 4] = [
    ("red_a", "0a:58:0a:f4:00:03", "10.244.0.3"),
    ("red_b", "0a:58:0a:f4:01:03", "10.244.1.3"),
    ("blue_c", "0a:58:0a:f4:00:04", "10.244.0.4"),
    ("blue_d", "0a:58:0a:f4:01:04", "10.244.1.4"),
];

/// OVN's central processes, which end with the test.
struct Ovn {
    server: ovs::Server,
    _northd: Process,
}

impl Ovn {
    fn start() -> Self {
        let server = ovs::Server::start(&[("nb.db", "ovn-nb.ovsschema"), ("sb.db", "ovn-sb.ovsschema")]);
        let databases = ["--ovnnb-db=unix:db.sock", "--ovnsb-db=unix:db.sock", "--unixctl=northd.ctl"];
        let log = std::fs::File::create(server.path("ovn-northd.log")).unwrap();
        let mut northd = ovs::command("ovn-northd", server.dir.path());
        let northd = northd.args(databases).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { server, _northd: Process(northd) }
    }

    fn socket(&self) -> PathBuf {
        self.server.socket()
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        ovs::text(ovs::command(program, self.server.dir.path()).args(args))
    }

    /// Waits until northd has translated what is in the northbound database.
    fn sync(&self) {
        self.run("ovn-nbctl", &["--db=unix:db.sock", "--timeout=30", "--wait=sb", "sync"]);
    }

    /// True when the first packet of a connection leaves by the port of pod `to`.
    fn reaches(&self, from: &str, to: &str, protocol: &str, port: u16) -> bool {
        let pod = |name: &str| PODS.into_iter().find(|(pod, ..)| *pod == name).unwrap();
        let ((_, source_mac, source), (_, destination_mac, destination)) = (pod(from), pod(to));
        // A pod of the same node is reached directly, one of another node through the router.
        let node = |ip: &str| ip.rsplit_once('.').unwrap().0.to_owned();
        let router = if node(source) == "10.244.0" { "0a:58:0a:f4:00:01" } else { "0a:58:0a:f4:01:01" };
        let next = if node(source) == node(destination) { destination_mac } else { router };
        self.trace(from, source_mac, next, source, destination, protocol, port)
            .contains(&format!("output to \"{to}\""))
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn trace(
        &self,
        from: &str,
        mac: &str,
        next: &str,
        source: &str,
        to: &str,
        protocol: &str,
        port: u16,
    ) -> String {
        let flow = format!(
            "inport == \"{from}\" && eth.src == {mac} && eth.dst == {next} && ip4.src == {source} && ip4.dst == {to} \
             && ip.ttl == 64 && {protocol} && {protocol}.src == 40000 && {protocol}.dst == {port}"
        );
        let mut args = vec!["--db=unix:db.sock", "--detailed"];
        args.extend(["--ct=new"; 8]);
        args.push(&flow);
        self.run("ovn-trace", &args)
    }
}

/// Writes the plan of the stage.
async fn write(socket: &Path, stage: u8) {
    let client = Client::new(Options {
        endpoints: vec![Endpoint::Unix(socket.to_owned())],
        database: "OVN_Northbound".to_owned(),
        ..Options::default()
    });
    client.connected(PATIENCE).await.unwrap();
    let schema = client.schema().await.unwrap();
    let replica = client.monitor(monitor_spec()).await.unwrap();
    let (index, config) = (fixture::index(stage), fixture::config());
    let (mut desired, mut touched) = (Desired::default(), Touched::default());
    for unit in index.units() {
        desired.set(&unit, plan::plan(&index, &config, &unit), &mut touched);
    }
    let changes = diff::compare(&desired, &ReplicaView::new(replica.read(), &schema), &touched);
    assert!(!changes.is_empty());
    let mut transaction = Transaction::new();
    changes.write(&mut transaction);
    client.transact(transaction).await.unwrap();
}

#[test]
fn packets_between_the_pods_of_the_reference_pass_as_its_policies_say() {
    let ovn = Ovn::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write(&ovn.socket(), 4));
    ovn.sync();
    let cases = [
        ("red_a", "blue_c", "tcp", 8080, true, "allowed by namespace and pod selector"),
        ("red_a", "blue_c", "tcp", 8085, true, "inside the port range"),
        ("red_a", "blue_c", "tcp", 8091, false, "behind the port range"),
        ("red_a", "blue_c", "udp", 5353, true, "the rule's other protocol"),
        ("red_a", "blue_c", "udp", 8080, false, "the port of the other protocol"),
        ("red_b", "blue_c", "tcp", 8080, false, "another pod of the same namespace"),
        ("blue_c", "blue_d", "tcp", 8080, true, "in the block, and the named port"),
        ("blue_c", "blue_d", "tcp", 9999, false, "in the block, but not the named port"),
        ("blue_c", "blue_d", "udp", 8080, false, "in the block, but not the named port's protocol"),
        ("red_a", "blue_d", "tcp", 8080, false, "an exception of the block"),
        ("red_b", "blue_d", "tcp", 8080, true, "allowed on both sides"),
        ("red_b", "red_a", "tcp", 8080, false, "denied on egress"),
        ("red_a", "red_b", "tcp", 8080, true, "egress isolation does not touch ingress"),
    ];
    let wrong: Vec<String> = cases
        .into_iter()
        .filter(|(from, to, protocol, port, expected, _)| ovn.reaches(from, to, protocol, *port) != *expected)
        .map(|(from, to, protocol, port, expected, why)| {
            format!("{from} -> {to} {protocol} {port} ({why}): expected {expected}")
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn without_policies_all_packets_between_pods_pass() {
    let ovn = Ovn::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write(&ovn.socket(), 3));
    ovn.sync();
    for (from, to) in [("red_a", "blue_c"), ("red_b", "blue_c"), ("blue_c", "blue_d"), ("red_b", "red_a")] {
        assert!(ovn.reaches(from, to, "tcp", 9999), "{from} -> {to}");
    }
}

//! The client against a cluster of three servers, some of which are killed.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ovsdb_client::nb::LogicalSwitch;
use ovsdb_client::{
    Change, ChangeKind, Client, Condition, Datum, Endpoint, Error, MonitorSpec, Options, Replica, Row,
    Status, Transaction,
};
use support::{PATIENCE, options, ovs_command, ovs_run, schema_file, soon};
use tempfile::TempDir;

const NB: &str = "OVN_Northbound";

/// Three servers of one database on unix sockets.
struct Cluster {
    dir: TempDir,
    servers: [Option<Child>; 3],
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let schema = schema_file("ovn-nb.ovsschema");
        let raft = |n: usize| format!("unix:raft{n}.sock");
        ovs_run("ovsdb-tool", path, &["create-cluster", "db0", schema.to_str().unwrap(), &raft(0)]);
        for n in 1..3 {
            ovs_run("ovsdb-tool", path, &["join-cluster", &format!("db{n}"), NB, &raft(n), &raft(0)]);
        }
        let mut cluster = Self { dir, servers: [None, None, None] };
        for n in 0..3 {
            cluster.run(n);
            cluster.joined(n).await;
        }
        cluster
    }

    fn run(&mut self, n: usize) {
        let log = std::fs::File::create(self.dir.path().join(format!("log{n}"))).unwrap();
        let child = ovs_command("ovsdb-server", self.dir.path())
            .args([
                &format!("db{n}"),
                &format!("--remote=punix:db{n}.sock"),
                &format!("--unixctl=ctl{n}.sock"),
                "--no-chdir",
            ])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.servers[n] = Some(child);
    }

    fn kill(&mut self, n: usize) {
        let mut child = self.servers[n].take().expect("the server runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn endpoint(&self, n: usize) -> Endpoint {
        Endpoint::Unix(self.dir.path().join(format!("db{n}.sock")))
    }

    fn options(&self) -> Options {
        options((0..3).map(|n| self.endpoint(n)).collect(), NB)
    }

    /// What a server says of the cluster; empty while it does not answer.
    fn cluster_status(&self, n: usize) -> String {
        let target = self.dir.path().join(format!("ctl{n}.sock"));
        let output = ovs_command("ovs-appctl", self.dir.path())
            .arg("-t")
            .arg(target)
            .args(["cluster/status", NB])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn joined(&self, n: usize) {
        let start = Instant::now();
        while !self.cluster_status(n).contains("Status: cluster member") {
            assert!(start.elapsed() < PATIENCE, "server {n} does not join: {}", self.log(n));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self, n: usize) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("log{n}"))).unwrap_or_default()
    }

    /// The running server that leads.
    async fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            let leads =
                |n: &usize| self.servers[*n].is_some() && self.cluster_status(*n).contains("Role: leader");
            if let Some(leader) = (0..3).find(leads) {
                return leader;
            }
            assert!(start.elapsed() < PATIENCE, "no leader");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn names(replica: &Replica) -> BTreeSet<String> {
    replica.read().table::<LogicalSwitch>().iter().map(|row| row.name.clone()).collect()
}

fn endpoint_of(path: &Path, status: &Status) -> Option<usize> {
    let Status::Connected { endpoint, .. } = status else { return None };
    (0..3).find(|n| *endpoint == Endpoint::Unix(path.join(format!("db{n}.sock"))))
}

async fn switches(client: &Client) -> Replica {
    soon("monitor", client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"]))).await.unwrap()
}

/// Writes one switch for sure: again as long as it was not sent, and after an unknown outcome if it is not there.
async fn write(client: &Client, name: &str) -> Result<(), Error> {
    loop {
        client.connected(PATIENCE).await?;
        let mut txn = Transaction::new();
        txn.wait(
            LogicalSwitch::TABLE,
            vec![Condition::equal("name", name)],
            &["name"],
            vec![],
            ovsdb_client::Until::Equal,
            Some(Duration::ZERO),
        );
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(name))]);
        match client.transact(txn).await {
            Ok(_) => return Ok(()),
            // An earlier attempt whose outcome was unknown had done it.
            Err(Error::Operation { index: 0, error, .. }) if error == "timed out" => return Ok(()),
            Err(error) if error.not_sent() || error.outcome_unknown() => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_on_and_replicas_lose_nothing_when_the_leader_is_killed() {
    let mut cluster = Cluster::start().await;
    let leading = Client::new(Options { leader_only: true, ..cluster.options() });
    let any = Client::new(cluster.options());
    let replicas = [switches(&leading).await, switches(&any).await];
    let mut changes = replicas.each_ref().map(Replica::changes);

    let writer = tokio::spawn({
        let client = leading.clone();
        let replica = replicas[0].clone();
        async move {
            for n in 0..300 {
                let name = format!("s{n}");
                write(&client, &name).await.unwrap();
                assert!(names(&replica).contains(&name), "an acknowledged write is in the replica");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let path = cluster.dir.path().to_owned();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let killed = cluster.leader().await;
        cluster.kill(killed);
        let mut status = leading.status();
        let moved = |status: &Status| endpoint_of(&path, status).is_some_and(|n| n != killed);
        soon("new leader", status.wait_for(moved)).await.unwrap();
        let now = endpoint_of(&path, &leading.status().borrow());
        assert_eq!(now, Some(cluster.leader().await), "a leader-only session is with the leader");
        cluster.run(killed);
        cluster.joined(killed).await;
    }
    soon("writer", writer).await.unwrap();

    let wanted: BTreeSet<String> = (0..300).map(|n| format!("s{n}")).collect();
    for (replica, changes) in replicas.iter().zip(&mut changes) {
        let mut told = BTreeSet::new();
        while told != wanted {
            let Some(Change::Rows(rows)) = soon("change", changes.next()).await else {
                panic!("the reader was not slow")
            };
            for row in rows {
                assert_eq!(row.kind, ChangeKind::Inserted, "a reconnection tells the difference only");
                assert!(
                    told.insert(row.new_row::<LogicalSwitch>().unwrap().name.clone()),
                    "nothing is told twice"
                );
            }
        }
        assert_eq!(names(replica), wanted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_cluster_is_left_and_all_is_well_when_it_is_back() {
    let mut cluster = Cluster::start().await;
    let client = Client::new(cluster.options());
    let replica = switches(&client).await;
    write(&client, "before").await.unwrap();
    let path = cluster.dir.path().to_owned();
    let at = endpoint_of(&path, &client.status().borrow()).unwrap();
    let others: Vec<usize> = (0..3).filter(|n| *n != at).collect();
    for n in &others {
        cluster.kill(*n);
    }
    let mut status = client.status();
    let lost = |status: &Status| matches!(status, Status::Connecting { last_error: Some(error) } if error.contains("lost its cluster"));
    soon("departure", status.wait_for(lost)).await.unwrap();
    assert!(names(&replica).contains("before") && !replica.is_synced());
    for n in others {
        cluster.run(n);
    }
    soon("return", write(&client, "after")).await.unwrap();
    assert_eq!(names(&replica), BTreeSet::from(["before".to_owned(), "after".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_to_a_cluster_member_loses_nothing() {
    let cluster = Cluster::start().await;
    let client = Client::new(cluster.options());
    let replica = switches(&client).await;
    write(&client, "a").await.unwrap();
    let at = endpoint_of(cluster.dir.path(), &client.status().borrow()).unwrap();
    let mut synced = replica.synced();
    let target = cluster.dir.path().join(format!("ctl{at}.sock"));
    ovs_run("ovs-appctl", cluster.dir.path(), &["-t", target.to_str().unwrap(), "ovsdb-server/reconnect"]);
    soon("loss", synced.wait_for(|synced| !*synced)).await.unwrap();
    soon("return", synced.wait_for(|synced| *synced)).await.unwrap();
    write(&client, "b").await.unwrap();
    assert_eq!(names(&replica), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}

/// One address for all members, each connection to the next of them, as a balancer does; ends with the test.
fn relay(cluster: &Cluster) -> Endpoint {
    let path = cluster.dir.path().join("relay.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let members = [0, 1, 2].map(|n| cluster.dir.path().join(format!("db{n}.sock")));
    tokio::spawn(async move {
        for member in members.iter().cycle() {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = tokio::net::UnixStream::connect(member).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    Endpoint::Unix(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_clients_that_reach_the_cluster_by_one_address_one_holds_the_lock() {
    let cluster = Cluster::start().await;
    let address = relay(&cluster);
    let client = || Client::new(Options { leader_only: true, ..options(vec![address.clone()], NB) });
    let clients = [client(), client()];
    let first = soon("lock", clients[0].lock("fence")).await.unwrap();
    let second = soon("lock", clients[1].lock("fence")).await.unwrap();
    assert!(first.is_owned() && !second.is_owned(), "each member would give the lock to whom it knows of");
    let mut owned = second.owned.clone();
    drop(first);
    soon("succession", owned.wait_for(|owned| *owned)).await.unwrap();
}

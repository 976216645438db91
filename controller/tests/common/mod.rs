//! A private northbound database, and the engine on it, fed with objects instead of watches.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use api::NamespacedName;
use controller::config::Config;
use controller::engine::{Engine, Input, Leadership, Outlets, Reason};
use controller::index::convert;
use controller::metrics::Metrics;
use controller::state::{ClaimReport, NetworkReport, Notice, Patch, Watched};
use ovsdb_client::{Client, Options, Transaction, nb};
use serde_json::{Value, json};
use test_support::ovs;
use tokio::sync::{mpsc, watch};

/// A program of OVN.
pub(crate) fn command(program: &str) -> Command {
    ovs::command(program, &std::env::temp_dir())
}

/// Runs a program of OVN to its end; returns its standard output.
pub(crate) fn output(command: &mut Command) -> String {
    ovs::text(command)
}

/// A database server on a unix socket in its own directory.
pub(crate) struct Server(ovs::Server);

impl Deref for Server {
    type Target = ovs::Server;

    fn deref(&self) -> &ovs::Server {
        &self.0
    }
}

impl Server {
    /// A server of the databases `(file, schema)`.
    pub(crate) fn start(databases: &[(&str, &str)]) -> Self {
        Self(ovs::Server::start(databases))
    }

    pub(crate) fn northbound() -> Self {
        Self::start(&[("nb.db", "ovn-nb.ovsschema")])
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Options {
            endpoints: self.remote().parse().map(|one| vec![one]).unwrap(),
            database: nb::DATABASE.to_owned(),
            ..Options::default()
        })
    }

    /// Number of transactions that the server carried out, by the records of its file (the first holds the schema).
    pub(crate) fn transactions(&self) -> usize {
        let file = std::fs::read(self.path("nb.db")).unwrap();
        let records = file.windows(11).filter(|window| window == b"OVSDB JSON ").count();
        records - 1
    }

    pub(crate) fn nbctl(&self, args: &[&str]) -> String {
        output(command("ovn-nbctl").arg(format!("--db={}", self.remote())).args(args)).trim().to_owned()
    }

    /// Columns of all rows of tables, by table and columns, without the order of rows.
    pub(crate) fn rows(&self, tables: &[(&str, &str)]) -> Vec<String> {
        let mut lines = Vec::new();
        for (table, columns) in tables {
            let columns = format!("--columns={columns}");
            let text = self.nbctl(&["--format=csv", "--no-headings", &columns, "list", table]);
            lines.extend(text.lines().map(|line| format!("{table} {line}")));
        }
        lines.sort();
        lines
    }
}

/// An engine and its outputs.
pub(crate) struct Controller {
    client: Client,
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) patches: mpsc::UnboundedReceiver<Patch>,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    pub(crate) networks: mpsc::UnboundedReceiver<NetworkReport>,
    pub(crate) claims: mpsc::UnboundedReceiver<ClaimReport>,
    pub(crate) reason: watch::Receiver<Reason>,
}

impl Controller {
    pub(crate) async fn start(client: Client, config: Config) -> Self {
        Self::led(client, config, Leadership::always()).await
    }

    /// Starts one beside or after others, with its first lists. The lock of one that has just ended is free when the server has noticed.
    pub(crate) async fn started(server: &Server, inputs: Vec<Input>) -> Self {
        let mut controller = Self::start(server.client(), config()).await;
        controller.wait_for_lock().await;
        controller.feed(inputs).await;
        controller
    }

    /// Works until `is_right` holds, for five seconds at most.
    pub(crate) async fn settle_until(&mut self, is_right: impl Fn() -> bool) {
        for _ in 0..500 {
            self.engine.settle().await.unwrap();
            if is_right() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn wait_for_lock(&mut self) {
        for _ in 0..1000 {
            self.engine.settle().await.unwrap();
            if !self.reason.borrow().as_ref().is_some_and(|reason| reason.contains("lock")) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the lock does not become free");
    }

    pub(crate) async fn led(client: Client, config: Config, leadership: Leadership) -> Self {
        let metrics = Metrics::default();
        let (patch_sender, patches) = mpsc::unbounded_channel();
        let (notice_sender, notices) = mpsc::unbounded_channel();
        let (reason_sender, reason) = watch::channel(None);
        let (network_sender, networks) = mpsc::unbounded_channel();
        let (forgotten, _) = mpsc::unbounded_channel();
        let (claim_sender, claims) = mpsc::unbounded_channel();
        let outlets = Outlets {
            patches: patch_sender,
            forgotten,
            notices: notice_sender,
            networks: network_sender,
            claims: claim_sender,
        };
        let (kept, led) = (client.clone(), leadership);
        let engine = Engine::new(kept, config, metrics.clone(), outlets, led, reason_sender).await.unwrap();
        Self { client, engine, metrics, patches, notices, networks, claims, reason }
    }

    /// Waits until the engine's replica has everything that other clients have committed so far: the server sends it before its
    /// answer.
    pub(crate) async fn catch_up(&self) {
        let mut nothing = Transaction::new();
        nothing.comment("nothing");
        self.client.transact(nothing).await.unwrap();
    }

    /// Applies reports and carries out their effects.
    pub(crate) async fn feed(&mut self, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            self.engine.apply(input);
        }
        self.engine.settle().await.unwrap();
    }
}

/// A node as the node agent has annotated it.
pub(crate) fn node(name: &str, number: u8) -> Value {
    let ip = format!("172.18.0.{}", number + 1);
    let mac = format!("02:42:ac:12:00:0{}", number + 1);
    let gateway = json!({"default": {
        "mode": "shared", "bridge-id": "breth0", "interface-id": format!("breth0_{name}"), "mac-address": mac,
        "ip-addresses": [format!("{ip}/16")], "ip-address": format!("{ip}/16"),
        "next-hops": ["172.18.0.1"], "next-hop": "172.18.0.1", "node-port-enable": "true", "vlan-id": "0"
    }});
    json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "annotations": {
            "k8s.ovn.org/node-chassis-id": format!("00000000-0000-4000-8000-00000000000{number}"),
            "k8s.ovn.org/host-cidrs": format!("[\"{ip}/16\"]"),
            "k8s.ovn.org/l3-gateway-config": gateway.to_string(),
        }},
        "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
    })
}

/// A pod bound to a node.
pub(crate) fn pod(namespace: &str, name: &str, uid: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn nodes(change: Watched<Value, &str>) -> Input {
    let read = |node: Value| convert::node(serde_json::from_value(node).unwrap()).unwrap();
    Input::Nodes(match change {
        Watched::Apply(node) => Watched::Apply(read(node)),
        Watched::Delete(name) => Watched::Delete(name.to_owned()),
        Watched::Reset(all) => Watched::Reset(all.into_iter().map(read).collect()),
    })
}

pub(crate) fn pods(change: Watched<Value, (&str, &str)>) -> Input {
    let read = |pod: Value| convert::pod(serde_json::from_value(pod).unwrap()).unwrap();
    Input::Pods(match change {
        Watched::Apply(pod) => Watched::Apply(read(pod)),
        Watched::Delete((namespace, name)) => Watched::Delete(NamespacedName::new(namespace, name)),
        Watched::Reset(all) => Watched::Reset(all.into_iter().map(read).collect()),
    })
}

/// A virtual network; `created` is the second of its creation.
pub(crate) fn network(namespace: &str, name: &str, created: u8, spec: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-of-{namespace}-{name}"),
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"), "generation": 1},
        "spec": spec,
    })
}

pub(crate) fn networks(change: Watched<Value, (&str, &str)>) -> Input {
    let read = |object: Value| controller::index::network::read(&serde_json::from_value(object).unwrap());
    Input::Networks(match change {
        Watched::Apply(object) => Watched::Apply(read(object)),
        Watched::Delete((namespace, name)) => Watched::Delete(NamespacedName::new(namespace, name)),
        Watched::Reset(all) => Watched::Reset(all.into_iter().map(read).collect()),
    })
}

/// The first lists: these nodes and pods, nothing of the other kinds.
pub(crate) fn lists(node_list: Vec<Value>, pod_list: Vec<Value>) -> Vec<Input> {
    vec![
        nodes(Watched::Reset(node_list)),
        pods(Watched::Reset(pod_list)),
        Input::Namespaces(Watched::Reset(vec![])),
        Input::Services(Watched::Reset(vec![])),
        Input::EndpointSlices(Watched::Reset(vec![])),
        Input::Networks(Watched::Reset(vec![])),
        Input::Definitions(None),
        Input::Claims(None),
        Input::MultiPolicies(Watched::Reset(vec![])),
        Input::Policies(Watched::Reset(vec![])),
    ]
}

/// The first lists: these virtual networks, nodes and pods, nothing of the other kinds.
pub(crate) fn lists_with_networks(
    network_list: Vec<Value>,
    node_list: Vec<Value>,
    pod_list: Vec<Value>,
) -> Vec<Input> {
    let mut inputs = lists(node_list, pod_list);
    inputs.retain(|input| !matches!(input, Input::Networks(_)));
    inputs.push(networks(Watched::Reset(network_list)));
    inputs
}

/// The configuration of the reference cluster.
pub(crate) fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
        mtu: 1400,
        default_network: true,
        host_network_namespace: None,
        features: controller::config::Features::ALL,
    }
}

/// Reads a file beside the tests.
pub(crate) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

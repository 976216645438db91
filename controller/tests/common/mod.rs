//! A private northbound database, and the engine on it, fed with objects instead of watches.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::NamespacedName;
use controller::config::Config;
use controller::engine::{Engine, Input, Leadership, Outlets, Reason};
use controller::index::convert;
use controller::metrics::Metrics;
use controller::state::{Notice, Patch, Watched};
use ovsdb_client::{Client, Options, Transaction, nb};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// A file of the project's cache, which `cargo xtask setup` fills.
pub(crate) fn cache(file: &str) -> PathBuf {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("SLIPSTREAM_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("slipstream")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/slipstream")))
        .expect("none of SLIPSTREAM_CACHE, XDG_CACHE_HOME and HOME is set");
    let path = cache.join(file);
    assert!(path.exists(), "{} is missing; run `cargo xtask setup`", path.display());
    path
}

#[expect(clippy::disallowed_methods, reason = "the tests start OVN's own programs")]
pub(crate) fn command(program: &str) -> Command {
    Command::new(cache(&format!("ovs/bin/{program}")))
}

/// Runs a program of OVN to its end; its standard output.
pub(crate) fn output(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// A process that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A database server on a unix socket in its own directory.
pub(crate) struct Server {
    pub(crate) dir: tempfile::TempDir,
    _process: Process,
}

impl Server {
    /// A server of the databases `(file, schema)`.
    pub(crate) fn start(databases: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut server = command("ovsdb-server");
        let at = |name: &str| dir.path().join(name).display().to_string();
        server
            .arg(format!("--remote=punix:{}", at("db.sock")))
            .arg(format!("--unixctl={}", at("ctl")))
            .arg("--no-chdir");
        for (file, schema) in databases {
            let schema = cache(&format!("ovs/share/{schema}"));
            output(command("ovsdb-tool").arg("create").arg(dir.path().join(file)).arg(schema));
            server.arg(dir.path().join(file));
        }
        let process = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = Self { dir, _process: Process(process) };
        let socket = started.path("db.sock");
        let start = Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "ovsdb-server does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        started
    }

    pub(crate) fn northbound() -> Self {
        Self::start(&[("nb.db", "ovn-nb.ovsschema")])
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Options {
            endpoints: format!("unix:{}", self.path("db.sock").display())
                .parse()
                .map(|one| vec![one])
                .unwrap(),
            database: nb::DATABASE.to_owned(),
            ..Options::default()
        })
    }

    /// Transactions that the server carried out, by the records of its file (the first holds the schema).
    pub(crate) fn transactions(&self) -> usize {
        let file = std::fs::read(self.path("nb.db")).unwrap();
        let records = file.windows(11).filter(|window| window == b"OVSDB JSON ").count();
        records - 1
    }

    pub(crate) fn nbctl(&self, args: &[&str]) -> String {
        let db = format!("--db=unix:{}", self.path("db.sock").display());
        output(command("ovn-nbctl").arg(db).args(args)).trim().to_owned()
    }
}

/// An engine and what it hands out.
pub(crate) struct Controller {
    client: Client,
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) patches: mpsc::UnboundedReceiver<Patch>,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    pub(crate) reason: watch::Receiver<Reason>,
}

impl Controller {
    pub(crate) async fn start(client: Client, config: Config) -> Self {
        Self::led(client, config, Leadership::always()).await
    }

    pub(crate) async fn led(client: Client, config: Config, leadership: Leadership) -> Self {
        let metrics = Metrics::default();
        let (patch_sender, patches) = mpsc::unbounded_channel();
        let (notice_sender, notices) = mpsc::unbounded_channel();
        let (reason_sender, reason) = watch::channel(None);
        let (forgotten, _) = mpsc::unbounded_channel();
        let outlets = Outlets { patches: patch_sender, forgotten, notices: notice_sender };
        let (kept, led) = (client.clone(), leadership);
        let engine = Engine::new(kept, config, metrics.clone(), outlets, led, reason_sender).await.unwrap();
        Self { client, engine, metrics, patches, notices, reason }
    }

    /// Waits until the engine's replica has what others have committed so far: the server tells it before it answers.
    pub(crate) async fn catch_up(&self) {
        let mut nothing = Transaction::new();
        nothing.comment("nothing");
        self.client.transact(nothing).await.unwrap();
    }

    /// Applies reports and carries out what follows.
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

/// The first lists: these nodes and pods, nothing of the other kinds.
pub(crate) fn lists(node_list: Vec<Value>, pod_list: Vec<Value>) -> Vec<Input> {
    vec![
        nodes(Watched::Reset(node_list)),
        pods(Watched::Reset(pod_list)),
        Input::Namespaces(Watched::Reset(vec![])),
        Input::Services(Watched::Reset(vec![])),
        Input::EndpointSlices(Watched::Reset(vec![])),
        Input::Policies(Watched::Reset(vec![])),
    ]
}

/// The configuration of the reference cluster.
pub(crate) fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: None,
        features: controller::config::Features::ALL,
    }
}

/// Reads a file beside the tests.
pub(crate) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

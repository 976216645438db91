//! An API server with its etcd, a northbound database, and controllers as processes.

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1 as core;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use ovsdb_client::{MonitorSpec, nb};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use test_support::cache::file as cache;
use test_support::ovs::Process;

use crate::common::Server;

const TOKEN: &str = "token-of-the-test";

/// The processes end when it is dropped.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    database: Server,
    ports: ovsdb_client::Replica,
    client: Client,
    _processes: [Process; 2],
}

/// A port that is free now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[expect(clippy::disallowed_methods, reason = "the test starts Kubernetes' own programs, and ours")]
fn program(path: impl AsRef<std::ffi::OsStr>, log: std::fs::File) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (etcd, peers, port) = (free_port(), free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let mut command = program(cache("k8s/etcd"), log("etcd.log"));
        command.args([
            format!("--data-dir={}", at("etcd")),
            "--unsafe-no-fsync".to_owned(),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            "--log-level=warn".to_owned(),
        ]);
        let etcd = Process(command.spawn().unwrap());
        // Signs the tokens of service accounts, which no client requests.
        let accounts = rcgen::KeyPair::generate().unwrap();
        std::fs::write(at("sa.key"), accounts.serialize_pem()).unwrap();
        std::fs::write(at("sa.pub"), accounts.public_key_pem()).unwrap();
        std::fs::write(at("tokens.csv"), format!("{TOKEN},test,test,system:masters\n")).unwrap();
        let mut command = program(cache("k8s/kube-apiserver"), log("apiserver.log"));
        command.args([
            format!("--etcd-servers={etcd_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", at("certificates")),
            format!("--token-auth-file={}", at("tokens.csv")),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=AlwaysAllow".to_owned(),
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned(),
        ]);
        let mut api_server = Process(command.spawn().unwrap());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(at("kubeconfig"), kubeconfig.to_string()).unwrap();
        let file = Kubeconfig::read_from(at("kubeconfig")).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let namespaces: Api<core::Namespace> = Api::all(client.clone());
        let start = Instant::now();
        while namespaces.get("default").await.is_err() {
            let shown = || std::fs::read_to_string(at("apiserver.log")).unwrap_or_default();
            let runs = api_server.0.try_wait().unwrap().is_none();
            assert!(
                runs && start.elapsed() < Duration::from_secs(120),
                "the API server does not come up: {}",
                shown()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let database = Server::northbound();
        let spec = MonitorSpec::new().table::<nb::LogicalSwitchPort>(&["name", "external_ids"]);
        let ports = database.client().monitor(spec).await.unwrap();
        Self { dir, database, ports, client, _processes: [api_server, etcd] }
    }

    /// A client with all rights.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// What `ovn-nbctl` prints.
    pub(crate) fn nbctl(&self, args: &[&str]) -> String {
        self.database.nbctl(args)
    }

    async fn create<K>(&self, api: Api<K>, object: Value)
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// Creates nodes without machines.
    pub(crate) async fn create_nodes(&self, count: usize) {
        for n in 0..count {
            let object = json!({"metadata": {"name": format!("node-{n}")}});
            self.create(Api::<core::Node>::all(self.client.clone()), object).await;
        }
    }

    /// Creates a pod that is bound to a node.
    pub(crate) async fn create_pod(&self, name: &str, node: &str) {
        let object = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "none"}]},
        });
        self.create(Api::<core::Pod>::namespaced(self.client.clone(), "default"), object).await;
    }

    /// Creates pods, spread over this number of nodes.
    pub(crate) async fn create_pods(&self, count: usize, nodes: usize) {
        let all = stream::iter(0..count).map(|n| async move {
            self.create_pod(&format!("pod-{n}"), &format!("node-{}", n % nodes)).await;
        });
        all.buffer_unordered(16).collect::<()>().await;
    }

    async fn wait_for(&self, what: &str, limit: Duration, there: impl Fn(&Self) -> bool) {
        let mut changes = self.ports.changes();
        let seen = async {
            while !there(self) {
                changes.next().await;
            }
        };
        assert!(tokio::time::timeout(limit, seen).await.is_ok(), "no {what} within {limit:?}");
    }

    /// Waits for the port with this name.
    pub(crate) async fn wait_for_port(&self, name: &str, limit: Duration) {
        let is_there = |cluster: &Self| {
            cluster.ports.read().table::<nb::LogicalSwitchPort>().iter().any(|port| port.name == name)
        };
        self.wait_for(name, limit, is_there).await;
    }

    /// Waits until there are this many ports of pods.
    pub(crate) async fn wait_for_ports(&self, count: usize, limit: Duration) {
        let there = |cluster: &Self| {
            let tables = cluster.ports.read();
            let of_pod =
                |port: &&nb::LogicalSwitchPort| port.external_ids.get("pod").is_some_and(|is| is == "true");
            tables.table::<nb::LogicalSwitchPort>().iter().filter(|port| of_pod(&&***port)).count() == count
        };
        self.wait_for(&format!("{count} ports"), limit, there).await;
    }
}

/// A controller's process.
pub(crate) struct Replica {
    process: Mutex<Process>,
    address: String,
    log: std::path::PathBuf,
}

impl Replica {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let at = |name: &str| cluster.dir.path().join(name).display().to_string();
        let log = cluster.dir.path().join(format!("controller-{address}.log"));
        let mut command =
            program(env!("CARGO_BIN_EXE_slipstream-controller"), std::fs::File::create(&log).unwrap());
        command.arg("run").args([
            format!("--kubeconfig={}", at("kubeconfig")),
            format!("--nb=unix:{}", cluster.database.path("db.sock").display()),
            "--cluster-subnets=10.244.0.0/16/23".to_owned(),
            format!("--metrics-bind-address={address}"),
        ]);
        Self { process: Mutex::new(Process(command.spawn().unwrap())), address, log }
    }

    /// The answer to a request, with its head.
    pub(crate) async fn ask(&self, method: &str, page: &str) -> std::io::Result<String> {
        let mut stream = tokio::net::TcpStream::connect(&self.address).await?;
        let request = format!(
            "{method} {page} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Waits until `/readyz` answers 200 with this word.
    pub(crate) async fn is_ready(&self, word: &str, limit: Duration) {
        let start = Instant::now();
        loop {
            let answer = self.ask("GET", "/readyz").await.unwrap_or_default();
            if answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&format!("\r\n\r\n{word}\n")) {
                return;
            }
            assert!(start.elapsed() < limit, "not {word:?} within {limit:?}: {answer}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Log of the replica so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The value of a counter or gauge.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let page = self.ask("GET", "/metrics").await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("slipstream_controller_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.0.kill().unwrap();
        process.0.wait().unwrap();
    }

    /// Sends it SIGTERM.
    pub(crate) fn terminate(&self) {
        signal(&self.process.lock().unwrap().0);
    }

    /// Waits for its end; returns its exit status.
    pub(crate) async fn ended(&self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.lock().unwrap().0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "the controller does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn signal(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
}

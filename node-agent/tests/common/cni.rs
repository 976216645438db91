//! A node with everything that ADD needs, and the container runtime's side, which runs the real executable.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::common::{Pod, lo_up};
use crate::kube::FakeApi;
use crate::ovs::OvsNode;

/// Makes this test binary run as the agent: the agent's command line, one argument per line.
pub(crate) const AGENT: &str = "SLIPSTREAM_TEST_AGENT";

pub(crate) struct Bed {
    pub(crate) ovs: OvsNode,
    pub(crate) api: FakeApi,
    agent: Option<Child>,
    pub(crate) datapath: &'static str,
    /// Whether the agent's pods have the cluster's network.
    default_network: bool,
}

/// Output and exit code of the executable.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// The specification's error code; 0 for success.
    pub(crate) fn error(&self) -> u64 {
        if self.code == 0 { 0 } else { self.json()["code"].as_u64().unwrap() }
    }

    pub(crate) fn message(&self) -> String {
        self.json()["msg"].as_str().unwrap().to_owned()
    }
}

/// One call of the executable.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) command: &'a str,
    pub(crate) id: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) netns: Option<&'a Path>,
    pub(crate) pod: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) version: &'a str,
    pub(crate) extra: Value,
}

impl Default for Call<'_> {
    fn default() -> Self {
        let (ifname, version) = ("eth0", "1.1.0");
        Self { command: "ADD", id: "", ifname, netns: None, pod: "", uid: "", version, extra: json!({}) }
    }
}

/// The controller's annotation for the pod with the n-th address.
pub(crate) fn networks(n: u8) -> String {
    let via = "10.244.0.1";
    let routes: Vec<Value> = ["10.244.0.0/16", "10.96.0.0/16", "169.254.169.5/32", "100.64.0.0/16"]
        .map(|dest| json!({ "dest": dest, "nextHop": via }))
        .into();
    json!({ "default": {
        "ip_addresses": [format!("10.244.0.{n}/24")], "mac_address": format!("0a:58:0a:f4:00:{n:02x}"),
        "gateway_ips": [via], "routes": routes, "ip_address": format!("10.244.0.{n}/24"), "gateway_ip": via, "role": "primary",
    }})
    .to_string()
}

/// A container id as runtimes make them. The number comes first, as links are named by the beginning of the id.
pub(crate) fn id(n: u32) -> String {
    format!("{n:08x}{}", "0123456789abcdef".repeat(4))
}

impl Bed {
    /// OVS and the API; the agent comes with [`Bed::start_agent`].
    pub(crate) async fn new(datapath: &'static str) -> Self {
        lo_up().await;
        let ovs = OvsNode::start();
        let bpf = ovs.path("bpf");
        std::fs::create_dir(&bpf).unwrap();
        // Mounted in the test's own mount namespace: it is gone with the namespace, and so is what is pinned.
        nix::mount::mount(Some("bpf"), &bpf, Some("bpf"), nix::mount::MsFlags::empty(), None::<&str>)
            .unwrap();
        Self { ovs, api: FakeApi::start().await, agent: None, datapath, default_network: true }
    }

    /// An agent below Multus, by its configuration in the runtime's directory.
    pub(crate) async fn under_multus(datapath: &'static str, default_network: bool) -> Self {
        let mut bed = Self::new(datapath).await;
        bed.default_network = default_network;
        std::fs::create_dir(bed.conf_dir()).unwrap();
        std::fs::write(bed.conf_dir().join("00-multus.conf"), r#"{"type": "multus"}"#).unwrap();
        bed.start_agent().await;
        bed
    }

    /// The runtime's directory of configurations.
    pub(crate) fn conf_dir(&self) -> PathBuf {
        self.ovs.path("net.d")
    }

    pub(crate) async fn ready(datapath: &'static str) -> Self {
        let mut bed = Self::new(datapath).await;
        bed.start_agent().await;
        bed
    }

    pub(crate) fn bpf_dir(&self) -> String {
        self.ovs.path("bpf/slipstream").display().to_string()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.ovs.path("cni/cni.sock")
    }

    #[expect(clippy::disallowed_methods, reason = "the test starts the agent")]
    fn spawn_agent(&self) -> Child {
        let kubeconfig = self.api.write_kubeconfig(self.ovs.dir());
        let args = [
            "--node-name=n1".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--ovs-db={}", self.ovs.db()),
            format!("--cni-socket={}", self.socket().display()),
            format!("--datapath={}", self.datapath),
            format!("--bpf-dir={}", self.bpf_dir()),
            format!("--cni-conf-dir={}", self.conf_dir().display()),
            format!("--default-network={}", self.default_network),
        ];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_agent", "--nocapture"]).env(AGENT, args.join("\n"));
        let log =
            std::fs::File::options().create(true).append(true).open(self.ovs.path("agent.log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    pub(crate) async fn start_agent(&mut self) {
        self.agent = Some(self.spawn_agent());
        for _ in 0..400 {
            let status = self.call(Call { command: "STATUS", ..Call::default() }).await;
            if status.code == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("the agent does not get ready: {}", self.log());
    }

    /// Starts an agent that is expected to exit by itself, and returns the log.
    pub(crate) fn refused(&self) -> String {
        assert!(!self.spawn_agent().wait().unwrap().success());
        self.log()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.ovs.path("agent.log")).unwrap_or_default()
    }

    /// Sends SIGKILL, as the kernel does to a process that uses too much memory.
    pub(crate) fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the test plays the container runtime")]
    pub(crate) fn command(&self, call: &Call<'_>) -> (tokio::process::Command, String) {
        let mut conf = json!({ "cniVersion": call.version, "name": "slipstream", "type": "slipstream-cni", "socket": self.socket() });
        for (key, value) in call.extra.as_object().unwrap() {
            conf[key] = value.clone();
        }
        let mut command = tokio::process::Command::new(executable());
        command.env_clear().env("CNI_COMMAND", call.command).env("CNI_PATH", "/opt/cni/bin");
        if !call.id.is_empty() {
            command.env("CNI_CONTAINERID", call.id).env("CNI_IFNAME", call.ifname);
        }
        if let Some(netns) = call.netns {
            command.env("CNI_NETNS", netns);
        }
        if !call.pod.is_empty() {
            let args = format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={};K8S_POD_UID={}",
                call.pod, call.uid
            );
            command.env("CNI_ARGS", args);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        (command, conf.to_string())
    }

    pub(crate) async fn call(&self, call: Call<'_>) -> Answer {
        let (mut command, conf) = self.command(&call);
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(conf.as_bytes()).await.unwrap();
        let out = child.wait_with_output().await.unwrap();
        Answer { code: out.status.code().unwrap(), stdout: String::from_utf8(out.stdout).unwrap() }
    }

    pub(crate) async fn add(&self, id: &str, netns: &Pod, pod: &str, uid: &str) -> Answer {
        self.call(Call { id, netns: Some(netns.path()), pod, uid, ..Call::default() }).await
    }

    pub(crate) async fn del(&self, id: &str, netns: Option<&Path>) -> Answer {
        self.call(Call { command: "DEL", id, netns, ..Call::default() }).await
    }

    /// Names of the veths on the node, and of the ports on br-int.
    pub(crate) async fn left(&self) -> (Vec<String>, Vec<String>) {
        (self.left_links().await, self.ovs.ports())
    }

    pub(crate) async fn left_links(&self) -> Vec<String> {
        let links = node_agent::kernel::link::Netlink::open().unwrap().list().await.unwrap();
        links.into_iter().filter(|l| l.kind.as_deref() == Some("veth")).map(|l| l.name).collect()
    }

    pub(crate) async fn assert_clean(&self) {
        let left = self.left().await;
        assert_eq!(left, (vec![], vec![]), "left behind (links, ports); log:\n{}", self.log());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// The CNI executable, which another package of the workspace builds. It is built if necessary.
#[expect(clippy::disallowed_methods, reason = "cargo, once")]
fn executable() -> &'static Path {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT.get_or_init(|| {
        // The test program is in `target/debug/deps`.
        let own = std::env::current_exe().unwrap();
        let path = own.parent().and_then(Path::parent).unwrap().join("slipstream-cni");
        // `cargo xtask test` has built it.
        if std::env::var_os("SLIPSTREAM_PROGRAMS_BUILT").is_none() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../cni/Cargo.toml");
            let built = Command::new(cargo).args(["build", "--quiet", "--manifest-path", manifest]).status();
            assert!(built.is_ok_and(|status| status.success()), "slipstream-cni cannot be built");
        }
        assert!(path.exists(), "no {}", path.display());
        path
    })
}

//! The agent's programs by themselves: the kernel's own statistics of runs on packets in memory.
//!
//! Runs as a process of its own in new namespaces, with interfaces that are wired as in the test bed and stay down. OVS is
//! played: it makes of a packet what OVS would, once, so that it is learned.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::net::if_::if_nametoindex;
use node_agent::bpf::{Endpoint, Given, Mode, Options, PinnedCache, Programs, Verdict};
use node_agent::flow_cache::{FlowCache, Gate, Underlay};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::frames::{geneve, udp};

/// Bytes of payload of a datagram.
const PAYLOAD: usize = 18;
/// Bytes of a packet's headers for IPv4 and UDP.
const HEADERS: usize = 28;
/// Where bpffs is mounted, in a mount namespace of our own.
const BPFFS: &str = "/sys/fs/bpf";
/// Runs whose mean is one value, and how many values are taken.
const RUNS: u32 = 20_000;
const VALUES: usize = 9;
/// Runs on packets that are not cached: fewer than those that a pod may teach at once, as what comes beyond that costs less.
const MISSES: u32 = 500;
/// How long learning may take.
const PATIENCE: Duration = Duration::from_secs(5);

const POD: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 3];
const ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 1];
const FAR_POD: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 3];
const FAR_ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 1];
const UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 2];
const FAR_UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 3];
const NEAR_NODE: [u8; 4] = [172, 18, 0, 2];
const FAR_NODE: [u8; 4] = [172, 18, 0, 3];

/// Nanoseconds of a run, less those of a program that does nothing; one value for each time it was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Alone {
    /// `from_pod`, to another node, cached.
    pub(super) hit_tx: Vec<f64>,
    /// `from_uplink`, to a pod, cached.
    pub(super) hit_rx: Vec<f64>,
    /// `from_pod`, not cached, again and again.
    pub(super) miss: Vec<f64>,
}

/// Measures in a process of its own.
pub(super) fn measure(cpu: usize) -> Result<Alone> {
    let mut command = testbed::exec::command("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "--"]);
    command.args(["taskset", "-c", &cpu.to_string(), "nice", "-n", "-20"]).arg(std::env::current_exe()?);
    let text = testbed::exec::output(command.arg("alone"))?;
    // The agent's library may log before it.
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("result {line:?}"))
}

/// Measures, in namespaces that may be changed.
pub(crate) fn run() -> Result<Alone> {
    let none: Option<&str> = None;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none).context("bpffs")?;
    let node = Node::new()?;
    node.learn()?;
    let mut alone = Alone::default();
    let (sent, _) = out(40_000);
    let (arriving, _) = back();
    let (unknown, _) = out(40_001);
    for _ in 0..VALUES {
        // Kept young: an entry that is due for its refresh takes another way.
        node.learn()?;
        let floor = node.time("stop", &sent, node.pod, RUNS)?;
        for (values, program, packet, ifindex, runs) in [
            (&mut alone.hit_tx, "from_pod", &sent, node.pod, RUNS),
            (&mut alone.hit_rx, "from_uplink", &arriving, node.uplink, RUNS),
            (&mut alone.miss, "from_pod", &unknown, node.pod, MISSES),
        ] {
            node.learn()?;
            values.push(node.time(program, packet, ifindex, runs)? - floor);
        }
    }
    Ok(alone)
}

/// A node with one pod.
struct Node {
    datapath: Arc<Mutex<Programs>>,
    cache: PinnedCache,
    pod: u32,
    uplink: u32,
    /// Where OVS's packets to the pod and to the uplink come in.
    from_ovs: [u32; 2],
}

impl Node {
    fn new() -> Result<Self> {
        for pair in [("pod", "podx"), ("uplink", "uplinkx"), ("sp", "op"), ("su", "ou")] {
            let mut ip = testbed::exec::command("ip");
            testbed::exec::output(ip.args(["link", "add", pair.0, "type", "veth", "peer", "name", pair.1]))?;
        }
        let index = |name: &str| if_nametoindex(name).with_context(|| format!("interface {name}"));
        let (pod, uplink, from_ovs) = (index("pod")?, index("uplink")?, [index("sp")?, index("su")?]);
        let mode = |agent_end, ovs_end| Mode::Interposed { agent_end, ovs_end };
        let options = Options { udp_at_once: true, ..Options::default() };
        let mut datapath = Programs::load_with(&Path::new(BPFFS).join("slipstream"), options)?;
        datapath.set_uplink(uplink, mode(from_ovs[1], index("ou")?))?;
        datapath.add_endpoint(&Endpoint {
            id: "pod".into(),
            host_ifindex: pod,
            mode: mode(from_ovs[0], index("op")?),
            addresses: vec!["10.244.0.3".parse()?],
            mac: POD,
            shares_ingress: false,
        })?;
        let datapath = Arc::new(Mutex::new(datapath));
        let cache = PinnedCache::open(Arc::clone(&datapath))?;
        let underlay = Underlay { address: Ipv4Addr::from(NEAR_NODE), mac: api::MacAddr(UPLINK), mtu: 1500 };
        cache.set_underlay(Some(underlay))?;
        cache.set_remotes(&[Ipv4Addr::from(FAR_NODE)].into())?;
        cache.set_endpoint_fast("pod", true)?;
        Ok(Self { datapath, cache, pod, uplink, from_ovs })
    }

    /// Makes both directions of the flow learned again, and checks that they are used. What was missed before may have used up what the
    /// pod may teach for a while.
    fn learn(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.learn_now() {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                result => return result,
            }
        }
    }

    fn learn_now(&self) -> Result<()> {
        self.cache.heartbeat()?;
        self.cache.invalidate().map(drop)?;
        self.cache.set_gate(Gate { forward: true, learn: true, tcp: true, hold: false })?;
        let (sent, tunnelled) = out(40_000);
        let entered = self.pass("from_pod", &sent, self.pod)?;
        self.pass("to_uplink", &with_mark(&entered, &tunnelled), self.from_ovs[1])?;
        let (arriving, delivered) = back();
        let entered = self.pass("from_uplink", &arriving, self.uplink)?;
        self.pass("to_pod", &with_mark(&entered, &delivered), self.from_ovs[0])?;
        let out = self.pass("from_pod", &sent, self.pod)?;
        ensure!(out.len() > sent.len(), "a packet from the pod is not cached");
        let back = self.pass("from_uplink", &arriving, self.uplink)?;
        ensure!(back.len() < arriving.len(), "a packet to the pod is not cached");
        Ok(())
    }

    /// One run: the packet after it.
    fn pass(&self, program: &str, packet: &[u8], ifindex: u32) -> Result<Vec<u8>> {
        let passed = self.datapath.lock().pass(program, Given { packet, ifindex, tag: 0, gso_size: 0 })?;
        ensure!(passed.verdict == Verdict::Redirect, "{program}: {:?}", passed.verdict);
        Ok(passed.packet)
    }

    /// Mean time of a run in nanoseconds.
    fn time(&self, program: &str, packet: &[u8], ifindex: u32, runs: u32) -> Result<f64> {
        let given = Given { packet, ifindex, tag: 0, gso_size: 0 };
        Ok(self.datapath.lock().mean_time(program, given, runs)?.as_secs_f64() * 1e9)
    }
}

/// The packet that OVS makes of one that entered: it leaves alone what the programs put into the pod's IPv4 header, identification and
/// flags.
fn with_mark(entered: &[u8], out: &[u8]) -> Vec<u8> {
    let mut out = out.to_vec();
    // Everything behind the pod's header is as long in both.
    let [from, to] = [entered.len(), out.len()].map(|all| all - PAYLOAD - HEADERS);
    out[to + 4..to + 8].copy_from_slice(&entered[from + 4..from + 8]);
    out[to + 10..to + 12].fill(0);
    let words =
        out[to..to + 20].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !(sum + (sum >> 16)) & 0xffff;
    out[to + 10..to + 12].copy_from_slice(&checksum.to_be_bytes()[2..]);
    out
}

/// A packet to the other node's pod: as the pod sends it, and as OVS puts it on the wire.
fn out(port: u16) -> (Vec<u8>, Vec<u8>) {
    let sent = udp((POD, ROUTER), ([10, 244, 0, 3], port), ([10, 244, 1, 3], 80), 64, PAYLOAD);
    let inner = udp((FAR_ROUTER, FAR_POD), ([10, 244, 0, 3], port), ([10, 244, 1, 3], 80), 63, PAYLOAD);
    (sent, geneve((UPLINK, FAR_UPLINK), (NEAR_NODE, FAR_NODE), 7, [0, 3, 0, 5], &inner))
}

/// An answer: as it comes from the wire, and as OVS delivers it.
fn back() -> (Vec<u8>, Vec<u8>) {
    let inner = udp((ROUTER, POD), ([10, 244, 1, 3], 80), ([10, 244, 0, 3], 40_000), 63, PAYLOAD);
    (geneve((FAR_UPLINK, UPLINK), (FAR_NODE, NEAR_NODE), 9, [0, 5, 0, 3], &inner), inner)
}

//! Three pods, `a` and `c` on the first node and `b` on the second, each with a tap, whose own stacks neither answer nor send:
//! every packet is the test's. And what the agents say of the flow cache.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::tap::Tap;
use testbed::cluster::config::Datapath;
use testbed::cluster::{Agent, Bed, start_agent_in};
use testbed::exec;
use testbed::nodes::PodName;
use testbed::pod::{manifest, with_image};

/// Namespace of the pods.
pub(super) const NAMESPACE: &str = "exact";
/// How long a pod may take, or an agent.
const READY: Duration = Duration::from_secs(60);
/// The longest time between refreshes that the agent knows: between the first one of an entry, after a quarter of it, and the second one no packet
/// goes through OVS for a refresh.
const REFRESH: &str = "--refresh-ms=10000";
/// MTU that the sender believes in, so that it can send more than the 1400 of the network.
const MTU: &str = "1500";
/// The pods' stacks see and say nothing but neighbour discovery.
const SILENCE: &str = "table inet silence {
    chain in {
        type filter hook prerouting priority -500; policy accept;
        iifname eth0 icmpv6 type { 134, 135, 136 } accept
        iifname eth0 drop
    }
    chain out {
        type filter hook output priority -500; policy accept;
        oifname eth0 icmpv6 type { 135, 136 } accept
        oifname eth0 drop
    }
}";

/// A pod.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) ipv4: Ipv4Addr,
    pub(super) ipv6: IpAddr,
    pub(super) tap: Tap,
}

/// Which pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// On the first node.
    A,
    /// On the second.
    B,
    /// On the first.
    C,
}

impl Who {
    pub(super) const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    /// Name of the pod.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
        }
    }
}

/// The pods of a cluster.
pub(super) struct Scene<'a> {
    pub(super) bed: &'a Bed,
    pub(super) nodes: Vec<String>,
    members: BTreeMap<Who, Member>,
}

/// MAC of a pod or of a node's router port: OVN-Kubernetes takes it from the IPv4 address.
pub(super) fn mac(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x0a, 0x58, a, b, c, d]
}

impl<'a> Scene<'a> {
    /// Makes the pods. With eBPF the agents are restarted, with a long time between refreshes and `environment`.
    pub(super) fn new(bed: &'a Bed, environment: &[(&str, &str)]) -> Result<Self> {
        let nodes = bed.config().node_names();
        ensure!(nodes.len() >= 2, "two nodes are needed");
        let mut scene = Self { bed, nodes, members: BTreeMap::new() };
        if scene.fast() {
            for node in &scene.nodes {
                bed.host(node).kill("node-agent")?;
                start_agent_in(bed, node, &[REFRESH], environment)?;
            }
            scene.open()?;
        }
        let namespace =
            format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{NAMESPACE}"}}}}"#);
        scene.apply(&namespace)?;
        // One after another, so that each has the same address in every cluster.
        for who in [Who::A, Who::C, Who::B] {
            let node = scene.nodes[usize::from(who == Who::B)].clone();
            let member = scene.pod(who.name(), &node)?;
            scene.members.insert(who, member);
        }
        Ok(scene)
    }

    /// Whether packets may go by eBPF here.
    pub(super) fn fast(&self) -> bool {
        self.bed.config().datapath != Datapath::Ovs
    }

    /// Applies an object.
    pub(super) fn apply(&self, object: &str) -> Result<()> {
        self.bed.apply(object).map(drop)
    }

    fn pod(&self, name: &str, node: &str) -> Result<Member> {
        let bed = self.bed;
        self.apply(&with_image(bed, manifest(NAMESPACE, name, Some(node)))?.to_string())?;
        let ips = exec::retry(READY, "the pod runs", || bed.running_pod(NAMESPACE, name))?;
        let ipv4 = ips.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
        let ipv6 = ips.iter().copied().find(IpAddr::is_ipv6);
        let run = |program: &str| {
            bed.runtime().pod_command(bed, &PodName { node, namespace: NAMESPACE, name }, Path::new(program))
        };
        exec::input_output(run("nft")?.args(["-f", "-"]), SILENCE)?;
        if name == Who::A.name() {
            exec::output(run("ip")?.args(["link", "set", "eth0", "mtu", MTU]))?;
        }
        let own = bed.config().program("testbed").display().to_string();
        Ok(Member {
            ipv4: ipv4.with_context(|| format!("pod {name} has no IPv4 address"))?,
            ipv6: ipv6.with_context(|| format!("pod {name} has no IPv6 address"))?,
            tap: Tap::start(run(&own)?, "eth0", false).with_context(|| format!("pod {name}"))?,
        })
    }

    /// A pod.
    pub(super) fn member(&self, who: Who) -> &Member {
        &self.members[&who]
    }

    /// The tap of a pod.
    pub(super) fn tap(&mut self, who: Who) -> Result<&mut Tap> {
        Ok(&mut self.members.get_mut(&who).context("no such pod")?.tap)
    }

    /// Discards what the taps have seen.
    pub(super) fn forget(&self) {
        for member in self.members.values() {
            drop(member.tap.take());
        }
    }

    /// Waits until both nodes learn and forward.
    pub(super) fn open(&self) -> Result<()> {
        for node in &self.nodes {
            exec::retry(READY, "the fast path is open", || {
                let status = self.bed.agent(node).status()?;
                let gate = &status["cache"]["gate"];
                let open = gate["forward"] == true && gate["learn"] == true && gate["tcp"] == true;
                ensure!(status["path"] == "ebpf" && open, "{node}: {}: {gate}", status["reason"]);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Sets the path of both nodes.
    pub(super) fn path(&self, path: &str) -> Result<()> {
        for node in &self.nodes {
            self.bed.agent(node).slipctl(&["path", "node", path])?;
            let is = if path == "ovs" { "ovs" } else { "ebpf" };
            exec::retry(READY, "the path is set", || {
                let status = self.bed.agent(node).status()?;
                ensure!(status["path"] == is, "{node}: {}", status["path"]);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The agent of a node, by the node's number.
    pub(super) fn agent(&self, node: usize) -> Result<Agent<'_>> {
        Ok(self.bed.agent(self.nodes.get(node).context("no such node")?))
    }

    /// How often a reason was counted on a node.
    pub(super) fn reason(&self, node: usize, reason: &str) -> Result<u64> {
        let status = self.agent(node)?.status()?;
        Ok(status["packetReasons"][reason].as_u64().unwrap_or_default())
    }

    /// Packets that a node's cache took out of tunnels.
    pub(super) fn delivered_fast(&self, node: usize) -> Result<u64> {
        self.past_ovs(node, "in")
    }

    /// Packets that a node's cache put into tunnels.
    pub(super) fn sent_fast(&self, node: usize) -> Result<u64> {
        self.past_ovs(node, "out")
    }

    fn past_ovs(&self, node: usize, direction: &str) -> Result<u64> {
        let tunnels: Vec<Value> = self.agent(node)?.slipctl_json(&["tunnels"])?;
        Ok(tunnels.iter().filter_map(|tunnel| tunnel[direction]["fast"]["packets"].as_u64()).sum())
    }

    /// What a node's cache holds.
    pub(super) fn flows(&self, node: &str) -> Result<BTreeMap<FlowKey, Flow>> {
        let list: Vec<Flow> = self.bed.agent(node).slipctl_json(&["flows", "--limit", "100000"])?;
        // Where OVS lets packets with another option through there is an entry for each; the oldest one is the flow's own.
        let mut flows: BTreeMap<FlowKey, Flow> = BTreeMap::new();
        for flow in list {
            match flows.get(&flow.key()) {
                Some(other) if other.valid && (!flow.valid || other.age_ms >= flow.age_ms) => {}
                _ => drop(flows.insert(flow.key(), flow)),
            }
        }
        Ok(flows)
    }

    /// Connection tracking begins from scratch on all nodes: the same packets come again.
    pub(super) fn flush(&self) -> Result<()> {
        self.nodes
            .iter()
            .try_for_each(|node| self.bed.ovs(node, "ovs-appctl", &["dpctl/flush-conntrack"]).map(drop))
    }
}

/// What a node's cache knows a flow by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowKey {
    pub(super) udp: bool,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// From another node into a pod, not out of a pod.
    pub(super) delivers: bool,
}

/// As `slipctl flows -o json` has it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Flow {
    protocol: String,
    source: SocketAddr,
    destination: SocketAddr,
    action: Value,
    pub(super) valid: bool,
    pub(super) epoch: u32,
    pub(super) packets: u64,
    #[serde(rename = "ageMs")]
    age_ms: u64,
    #[serde(rename = "refreshInMs")]
    pub(super) refresh_in_ms: i64,
}

impl Flow {
    fn key(&self) -> FlowKey {
        FlowKey {
            udp: self.protocol == "udp",
            source: self.source,
            destination: self.destination,
            delivers: self.action["kind"] == "deliver",
        }
    }

    /// VNI and OVN's option of a flow across nodes.
    pub(super) fn tunnel(&self) -> Option<(u32, u32)> {
        let number = |name: &str| u32::try_from(self.action[name].as_u64()?).ok();
        Some((number("vni")?, number("option")?))
    }
}

//! The node whose flow cache has learned the node port: the agent's programs on a veth that stands for the uplink.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nix::net::if_::if_nametoindex;
use node_agent::bpf::{Given, Mode, Options, PinnedCache, Programs, Reason, Verdict, XdpWanted};
use node_agent::flow_cache::{FlowCache, Gate, GatewayEnd, Timing, Underlay};
use parking_lot::Mutex;

use super::frames::{FAR_NODE, NODE, UPLINK, answered, answered_in_tunnel, asked, asked_in_tunnel};
use super::{BPFFS, programs, sh};

/// A node with the programs attached to the uplink.
pub(super) struct Node {
    pub(super) programs: Arc<Mutex<Programs>>,
    cache: PinnedCache,
    pub(super) uplink: u32,
    _sink: Option<aya::Ebpf>,
}

impl Node {
    pub(super) fn new(through: bool) -> Result<Self> {
        let sink = wire("uplink", through)?;
        let uplink = if_nametoindex("uplink").context("interface uplink")?;
        let options = Options { flows: 4_096, xdp: XdpWanted::Native, ..Options::default() };
        let mut programs = Programs::load_with(&Path::new(BPFFS).join("slipstream"), options)?;
        programs.set_uplink(uplink, Mode::Direct)?;
        ensure!(programs.xdp().as_str() == "attached", "XDP program {}", programs.xdp());
        let programs = Arc::new(Mutex::new(programs));
        let cache = PinnedCache::open(Arc::clone(&programs))?;
        let mac = api::MacAddr(UPLINK);
        cache.set_underlay(Some(Underlay { address: Ipv4Addr::from(NODE), mac, mtu: 1_500 }))?;
        cache.set_gateway(Some(GatewayEnd { mac, mtu: 1_500 }))?;
        cache.set_remotes(&[Ipv4Addr::from(FAR_NODE)].into())?;
        cache.set_timing(Timing { refresh: std::time::Duration::from_secs(10), ..Timing::default() })?;
        let node = Self { programs, cache, uplink, _sink: sink };
        node.learn()?;
        Ok(node)
    }

    /// Makes both directions of the flow learned again.
    pub(super) fn learn(&self) -> Result<()> {
        self.cache.heartbeat()?;
        self.cache.invalidate().map(drop)?;
        self.cache.set_gate(Gate { forward: true, learn: true, tcp: true, hold: false })?;
        for (arriving, leaving) in [(asked(), asked_in_tunnel()), (answered_in_tunnel(), answered())] {
            // Of UDP the second packet is the first that may teach.
            self.pass("from_uplink", &arriving, 0, Verdict::Pass)?;
            let tag = self.pass("from_uplink", &arriving, 0, Verdict::Pass)?;
            self.pass("to_uplink", &leaving, tag, Verdict::Pass)?;
            self.pass("from_uplink", &arriving, 0, Verdict::Redirect).context("it is not cached")?;
        }
        Ok(())
    }

    /// One run: the packet's tag after it.
    fn pass(&self, program: &str, packet: &[u8], tag: u32, verdict: Verdict) -> Result<u32> {
        let given = Given { packet, ifindex: self.uplink, tag, gso_size: 0 };
        let passed = self.programs.lock().pass(program, given)?;
        ensure!(passed.verdict == verdict, "{program}: {:?}", passed.verdict);
        Ok(passed.tag)
    }

    /// Packets that the flow cache has forwarded: by XDP, and by TC.
    pub(super) fn forwarded(&self) -> Result<(u64, u64)> {
        let programs = self.programs.lock();
        let reasons = programs.reasons()?;
        let xdp = reasons.iter().find(|(reason, _)| *reason == Reason::XdpForwarded).map_or(0, |(_, n)| *n);
        let counters = programs.uplink_stats()?;
        Ok((xdp, counters.fast_from.packets.saturating_sub(xdp)))
    }
}

/// A veth that is up, in front of nothing, or of a program that drops what comes.
pub(super) fn wire(name: &str, through: bool) -> Result<Option<aya::Ebpf>> {
    let other = format!("{name}x");
    sh(&format!("ip link add {name} type veth peer name {other}"))?;
    sh(&format!("ip link set {name} up"))?;
    if !through {
        return Ok(None);
    }
    sh(&format!("ip link set {other} up"))?;
    programs::discarding(&other).map(Some)
}

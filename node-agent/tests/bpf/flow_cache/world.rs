//! A node for the tests of the flow cache, and the packets that its pods and its peer send.

use node_agent::{
    bpf::{Given, Mode, NodePort, Options, Passed, PinnedCache, Programs, Reason, XdpWanted},
    flow_cache::{FlowCache, Gate, GatewayEnd, PhysicalPort, Underlay},
};
use std::{net::Ipv4Addr, sync::Arc};

use etherparse::PacketBuilder;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    packets::{FAR, NEAR, patched},
    programs::endpoint,
    sandbox::{Node, Shell},
};

pub(super) const POD: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 3];
pub(super) const OTHER: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 4];
/// The logical router, as the pod sees it and as the peer's pod does.
pub(super) const ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 1];
pub(super) const FAR_ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 1];
pub(super) const FAR_POD: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 3];
pub(super) const UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 2];
pub(super) const FAR_UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 3];
/// A third node, to which OVS has a tunnel too.
pub(super) const OTHER_NODE: [u8; 4] = [172, 18, 0, 4];
/// An address that OVS has no tunnel to.
pub(super) const STRANGER: [u8; 4] = [172, 18, 0, 9];
pub(super) const OPEN: Gate = Gate { forward: true, learn: true, tcp: true, hold: false };

/// A node with two pods and an uplink, open.
pub(super) struct World {
    pub(super) datapath: Arc<Mutex<Programs>>,
    pub(super) cache: PinnedCache,
    pub(super) pods: [u32; 2],
    /// Where OVS's packets to the pods come in.
    pub(super) from_ovs: [u32; 2],
    pub(super) uplink: u32,
    pub(super) uplink_from_ovs: u32,
    /// The gateway bridge's own port, and the management port.
    pub(super) node: [u32; 2],
    /// In direct mode: the interface on a physical network, and the own port of its bridge.
    pub(super) physical: [u32; 2],
}

impl World {
    /// UDP is learned from the first packet, so that a test may see what comes of one.
    pub(super) fn run(interposed: bool, test: impl FnOnce(World) + Send + 'static) {
        Self::run_with(interposed, Options { udp_at_once: true, ..Options::default() }, test);
    }

    /// `options`: more of them.
    pub(super) fn run_with(interposed: bool, options: Options, test: impl FnOnce(World) + Send + 'static) {
        let node = Node::new();
        for pair in
            ["pod0 type veth peer name px0", "pod1 type veth peer name px1", "upl type veth peer name upx"]
        {
            node.sh(&format!("ip link add {pair}"));
        }
        for pair in
            ["sa0 type veth peer name so0", "sa1 type veth peer name so1", "sau type veth peer name sou"]
                .into_iter()
                .chain(["brx type veth peer name bry", "mpx type veth peer name mpy"])
                .chain(["phx type veth peer name phy", "phb type veth peer name phc"])
        {
            node.sh(&format!("ip link add {pair}"));
        }
        for end in ["upl", "upx"].into_iter().filter(|_| options.xdp != XdpWanted::Off) {
            // An XDP program runs on a packet of an interface only while that is up.
            let path = format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6");
            node.run(move || std::fs::write(path, "1").unwrap());
            node.sh(&format!("ethtool -K {end} gro on"));
            node.sh(&format!("ip link set {end} up"));
        }
        let [pod0, pod1, uplink, sa0, sa1, sau] =
            ["pod0", "pod1", "upl", "sa0", "sa1", "sau"].map(|name| node.ifindex(name));
        let [bridge, management, wire, own] = ["brx", "mpx", "phx", "phb"].map(|name| node.ifindex(name));
        let [so0, so1, sou] = ["so0", "so1", "sou"].map(|name| node.ifindex(name));
        let mode = |agent_end, ovs_end| match interposed {
            true => Mode::Interposed { agent_end, ovs_end },
            false => Mode::Direct,
        };
        let modes = [mode(sa0, so0), mode(sa1, so1), mode(sau, sou)];
        let dir = node.pins();
        node.run(move || {
            let options = Options { flows: 4096, pod_mtu: 1442, ..options };
            let mut datapath = Programs::load_with(&dir, options).unwrap();
            datapath.set_uplink(uplink, modes[2]).unwrap();
            for (id, host, mode, last) in [("a", pod0, modes[0], 3), ("b", pod1, modes[1], 4)] {
                let mut config = endpoint(id, host, mode);
                config.addresses = vec![
                    format!("10.244.0.{last}").parse().unwrap(),
                    format!("fd00:10:244::{last}").parse().unwrap(),
                ];
                config.mac = [0x0a, 0x58, 10, 244, 0, last];
                datapath.add_endpoint(&config).unwrap();
            }
            let ports = [(bridge, NodePort::Bridge), (management, NodePort::Management)];
            datapath.set_host_interfaces(&ports.into(), interposed).unwrap();
            if !interposed {
                let ports = [(wire, PhysicalPort::Interface { fast: true }), (own, PhysicalPort::Own)];
                datapath.set_physical(&ports.into()).unwrap();
            }
            let datapath = Arc::new(Mutex::new(datapath));
            let cache = PinnedCache::open(Arc::clone(&datapath)).unwrap();
            cache
                .set_underlay(Some(Underlay {
                    address: Ipv4Addr::from(NEAR),
                    mac: api::MacAddr(UPLINK),
                    mtu: 1500,
                }))
                .unwrap();
            cache.set_gateway(Some(GatewayEnd { mac: api::MacAddr(UPLINK), mtu: 1500 })).unwrap();
            cache.set_remotes(&[FAR, OTHER_NODE].map(Ipv4Addr::from).into()).unwrap();
            cache.set_gate(OPEN).unwrap();
            cache.heartbeat().unwrap();
            for id in ["a", "b"] {
                cache.set_endpoint_fast(id, true).unwrap();
            }
            let [a, b, up] = if interposed { [sa0, sa1, sau] } else { [pod0, pod1, uplink] };
            test(World {
                datapath,
                cache,
                pods: [pod0, pod1],
                from_ovs: [a, b],
                uplink,
                uplink_from_ovs: up,
                node: [bridge, management],
                physical: [wire, own],
            });
        });
    }

    /// In both attach modes.
    pub(super) fn both(test: impl Fn(World) + Send + Clone + 'static) {
        for interposed in [false, true] {
            let test = test.clone();
            Self::run(interposed, test);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Programs> {
        self.datapath.lock()
    }

    pub(super) fn pass(&self, program: &str, packet: &[u8], ifindex: u32, tag: u32) -> Passed {
        self.lock().pass(program, Given { packet, ifindex, tag, gso_size: 0 }).unwrap()
    }

    pub(super) fn sends(&self, packet: &[u8]) -> Passed {
        self.pass("from_pod", packet, self.pods[0], 0)
    }

    /// The pod sends `packet`, and OVS makes `geneve` of it.
    pub(super) fn through_ovs(&self, packet: &[u8], geneve: &[u8]) -> Passed {
        let entered = self.sends(packet);
        assert_eq!(unmarked(&entered.packet), unmarked(packet), "the slow path changes nothing");
        let passed = self.comes_out("to_uplink", geneve, self.uplink_from_ovs, &entered);
        assert_eq!(passed.packet, geneve, "what OVS sends is sent");
        passed
    }

    /// OVS makes `packet` of the one that entered, and keeps what it carries: its tag, or its mark.
    pub(super) fn comes_out(&self, program: &str, packet: &[u8], ifindex: u32, entered: &Passed) -> Passed {
        let mut packet = packet.to_vec();
        if self.from_ovs != self.pods {
            carry_mark(&entered.packet, &mut packet);
        }
        self.pass(program, &packet, ifindex, entered.tag)
    }

    /// `packet` comes from the wire.
    pub(super) fn arrives(&self, packet: &[u8]) -> Passed {
        self.pass("from_uplink", packet, self.uplink, 0)
    }

    /// `geneve` comes from the wire, and OVS delivers `packet` to the pod.
    pub(super) fn delivered_by_ovs(&self, geneve: &[u8], packet: &[u8]) -> Passed {
        let entered = self.arrives(geneve);
        assert_eq!(unmarked(&entered.packet), unmarked(geneve), "the slow path changes nothing");
        let passed = self.comes_out("to_pod", packet, self.from_ovs[0], &entered);
        assert_eq!(passed.packet, packet, "what OVS delivers is delivered");
        passed
    }

    pub(super) fn count(&self, reason: Reason) -> u64 {
        self.lock().reasons().unwrap().into_iter().find(|(r, _)| *r == reason).unwrap().1
    }

    pub(super) fn reasons(&self) -> Vec<(Reason, u64)> {
        self.lock().reasons().unwrap().into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// A packet of the pod to a pod of the other node, or back.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) six: bool,
    /// TCP flags, or UDP.
    pub(super) tcp: Option<&'static str>,
    pub(super) payload: usize,
    pub(super) ttl: u8,
    pub(super) ecn: u8,
}

pub(super) const UDP: Shape = Shape { six: false, tcp: None, payload: 18, ttl: 64, ecn: 0 };
pub(super) const TCP: Shape = Shape { tcp: Some("A"), ..UDP };

pub(super) const SIX_NEAR: [u8; 16] = [0xfd, 0, 0, 0x10, 2, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
pub(super) const SIX_FAR: [u8; 16] = [0xfd, 0, 0, 0x10, 2, 0x44, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3];

impl Shape {
    pub(super) fn frame(self, macs: ([u8; 6], [u8; 6]), out: bool, ttl_step: u8) -> Vec<u8> {
        let (source, destination) = macs;
        let (near, far) = ([10, 244, 0, 3], [10, 244, 1, 3]);
        let (sport, dport) = if out { (40_000, 80) } else { (80, 40_000) };
        let mut bytes = Vec::new();
        let payload: Vec<u8> = (0..self.payload).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let ethernet = PacketBuilder::ethernet2(source, destination);
        let ip = if self.six {
            let (from, to) = if out { (SIX_NEAR, SIX_FAR) } else { (SIX_FAR, SIX_NEAR) };
            ethernet.ipv6(from, to, self.ttl - ttl_step)
        } else {
            let (from, to) = if out { (near, far) } else { (far, near) };
            ethernet.ipv4(from, to, self.ttl - ttl_step)
        };
        match self.tcp {
            None => ip.udp(sport, dport).write(&mut bytes, &payload).unwrap(),
            Some(flags) => {
                let mut tcp = ip.tcp(sport, dport, 1, 1000);
                for flag in flags.chars() {
                    tcp = match flag {
                        'A' => tcp.ack(7),
                        'S' => tcp.syn(),
                        'F' => tcp.fin(),
                        'R' => tcp.rst(),
                        'P' => tcp.psh(),
                        other => panic!("{other}"),
                    };
                }
                tcp.write(&mut bytes, &payload).unwrap();
            }
        }
        if self.ecn != 0 {
            match self.six {
                true => bytes[15] |= self.ecn << 4,
                false => {
                    bytes[15] |= self.ecn;
                    fix_checksum(&mut bytes[14..34]);
                }
            }
        }
        bytes
    }

    /// A mark of congestion stays inside.
    fn outer_ecn(self) -> u8 {
        if self.ecn == 3 { 2 } else { self.ecn }
    }

    /// The packet as the pod sends it, and as OVS puts it on the wire.
    pub(super) fn out(self) -> (Vec<u8>, Vec<u8>) {
        let sent = self.frame((POD, ROUTER), true, 0);
        let inner = self.frame((FAR_ROUTER, FAR_POD), true, 1);
        (sent, geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, self.outer_ecn(), &inner))
    }

    /// The answer as it comes from the wire, and as OVS delivers it.
    pub(super) fn back(self) -> (Vec<u8>, Vec<u8>) {
        let inner = self.frame((ROUTER, POD), false, 1);
        let delivered = self.frame((ROUTER, POD), false, 1);
        (geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, self.outer_ecn(), &inner), delivered)
    }
}

/// Offset of the IP header of the pods' packet.
fn inner_ip(packet: &[u8]) -> usize {
    if packet[12..14] == [0x08, 0] && packet[23] == 17 && packet[36..38] == 6081_u16.to_be_bytes() {
        72
    } else {
        14
    }
}

/// Identification and flags of IPv4, or the flow label of IPv6, and the checksum: where a mark is.
fn marked(packet: &[u8]) -> [std::ops::Range<usize>; 2] {
    let at = inner_ip(packet);
    match packet[at] >> 4 {
        4 => [at + 4..at + 8, at + 10..at + 12],
        _ => [at + 1..at + 2, at + 2..at + 4],
    }
}

/// The packet with zeros where a mark is.
pub(super) fn unmarked(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for range in marked(&packet) {
        packet[range].fill(0);
    }
    packet
}

/// Puts the mark of the packet that entered into the one that comes out, as OVS does by leaving it alone.
fn carry_mark(entered: &[u8], out: &mut [u8]) {
    let (from, to) = (inner_ip(entered), inner_ip(out));
    if entered[from] >> 4 == 4 {
        out[to + 4..to + 8].copy_from_slice(&entered[from + 4..from + 8]);
        fix_checksum(&mut out[to..to + 20]);
    } else {
        // The upper half of the first byte is of the traffic class, which OVS may set.
        out[to + 1] = out[to + 1] & 0xf0 | entered[from + 1] & 0xf;
        out[to + 2..to + 4].copy_from_slice(&entered[from + 2..from + 4]);
    }
}

/// A packet of the tunnel with other bytes in its outer headers, and the checksum right.
pub(super) fn outer(packet: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = patched(packet.to_vec(), at, bytes);
    fix_checksum(&mut packet[14..34]);
    packet
}

/// `packet` from another outer source.
pub(super) fn from_node(packet: &[u8], source: [u8; 4]) -> Vec<u8> {
    outer(packet, 26, &source)
}

pub(super) fn fix_checksum(header: &mut [u8]) {
    header[10..12].copy_from_slice(&[0, 0]);
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

#[expect(clippy::too_many_arguments, reason = "the fields of a header")]
pub(super) fn geneve(
    from: [u8; 6],
    to: [u8; 6],
    source: [u8; 4],
    destination: [u8; 4],
    option: [u8; 4],
    vni: u8,
    ecn: u8,
    inner: &[u8],
) -> Vec<u8> {
    let mut payload = vec![2, 0x40, 0x65, 0x58, 0, 0, vni, 0, 0x01, 0x02, 0x80, 0x01];
    payload.extend(option);
    payload.extend(inner);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(from, to)
        .ipv4(source, destination, 64)
        .udp(51_000, 6081)
        .write(&mut bytes, &payload)
        .unwrap();
    // OVS: do not fragment, no UDP checksum, ECN as given.
    bytes[15] |= ecn;
    bytes[18..22].copy_from_slice(&[0, 0, 0x40, 0]);
    bytes[40..42].copy_from_slice(&[0, 0]);
    fix_checksum(&mut bytes[14..34]);
    bytes
}

/// Whether a packet of this kind leaves on the fast path now.
pub(super) fn is_fast(world: &World, shape: Shape) -> bool {
    world.sends(&shape.out().0).packet.len() > shape.out().0.len()
}

pub(super) fn learn(world: &World, shape: Shape) {
    let (sent, geneve) = shape.out();
    world.through_ovs(&sent, &geneve);
}

pub(super) fn learn_back(world: &World, shape: Shape) {
    let (geneve, delivered) = shape.back();
    world.delivered_by_ovs(&geneve, &delivered);
}

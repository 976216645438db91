//! The flow cache, program by program: what goes in and what comes out, byte by byte. OVS is played by the test: it
//! makes of a packet what OVS would.

use node_agent::{
    bpf::{Datapath, FlowCache, Given, Mode, Options, Passed, Reason, Verdict},
    fast_path::{Action, FastPath, Gate, Timing, Underlay},
};
use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use etherparse::PacketBuilder;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    packets::{FAR, NEAR, patched},
    programs::endpoint,
    sandbox::Node,
};

const POD: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 3];
const OTHER: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 4];
/// The logical router, as the pod sees it and as the peer's pod does.
const ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 0, 1];
const FAR_ROUTER: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 1];
const FAR_POD: [u8; 6] = [0x0a, 0x58, 10, 244, 1, 3];
const UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 2];
const FAR_UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 3];
const OPEN: Gate = Gate { forward: true, learn: true, tcp: true, hold: false };

/// A node with two pods and an uplink, open.
struct World {
    datapath: Arc<Mutex<Datapath>>,
    cache: FlowCache,
    pods: [u32; 2],
    /// Where OVS's packets to the pods come in.
    from_ovs: [u32; 2],
    uplink: u32,
    uplink_from_ovs: u32,
}

impl World {
    fn run(interposed: bool, test: impl FnOnce(World) + Send + 'static) {
        let node = Node::new();
        for pair in
            ["pod0 type veth peer name px0", "pod1 type veth peer name px1", "upl type veth peer name upx"]
        {
            node.sh(&format!("ip link add {pair}"));
        }
        for pair in
            ["sa0 type veth peer name so0", "sa1 type veth peer name so1", "sau type veth peer name sou"]
        {
            node.sh(&format!("ip link add {pair}"));
        }
        let [pod0, pod1, uplink, sa0, sa1, sau] =
            ["pod0", "pod1", "upl", "sa0", "sa1", "sau"].map(|name| node.ifindex(name));
        let [so0, so1, sou] = ["so0", "so1", "sou"].map(|name| node.ifindex(name));
        let mode = |agent_end, ovs_end| match interposed {
            true => Mode::Interposed { agent_end, ovs_end },
            false => Mode::Direct,
        };
        let modes = [mode(sa0, so0), mode(sa1, so1), mode(sau, sou)];
        let dir = node.pins();
        node.run(move || {
            let options = Options { flows: 4096, ..Options::default() };
            let mut datapath = Datapath::load_with(&dir, options).unwrap();
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
            let datapath = Arc::new(Mutex::new(datapath));
            let cache = FlowCache::open(Arc::clone(&datapath)).unwrap();
            cache
                .set_underlay(Some(Underlay {
                    address: Ipv4Addr::from(NEAR),
                    mac: api::MacAddr(UPLINK),
                    mtu: 1500,
                }))
                .unwrap();
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
            });
        });
    }

    /// In both attach modes.
    fn both(test: impl Fn(World) + Send + Clone + 'static) {
        for interposed in [false, true] {
            let test = test.clone();
            Self::run(interposed, test);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Datapath> {
        self.datapath.lock()
    }

    fn pass(&self, program: &str, packet: &[u8], ifindex: u32, tag: u32) -> Passed {
        self.lock().pass(program, Given { packet, ifindex, tag, gso_size: 0 }).unwrap()
    }

    fn sends(&self, packet: &[u8]) -> Passed {
        self.pass("from_pod", packet, self.pods[0], 0)
    }

    /// The pod sends `packet`, and OVS makes `geneve` of it.
    fn through_ovs(&self, packet: &[u8], geneve: &[u8]) -> Passed {
        let entered = self.sends(packet);
        assert_eq!(entered.packet, packet, "the slow path changes nothing");
        self.pass("to_uplink", geneve, self.uplink_from_ovs, entered.tag)
    }

    /// `geneve` comes from the wire, and OVS delivers `packet` to the pod.
    fn delivered_by_ovs(&self, geneve: &[u8], packet: &[u8]) -> Passed {
        let entered = self.pass("from_uplink", geneve, self.uplink, 0);
        assert_eq!(entered.packet, geneve, "the slow path changes nothing");
        self.pass("to_pod", packet, self.from_ovs[0], entered.tag)
    }

    fn count(&self, reason: Reason) -> u64 {
        self.lock().reasons().unwrap().into_iter().find(|(r, _)| *r == reason).unwrap().1
    }

    fn reasons(&self) -> Vec<(Reason, u64)> {
        self.lock().reasons().unwrap().into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// A packet of the pod to a pod of the other node, or back.
#[derive(Clone, Copy)]
struct Shape {
    six: bool,
    /// TCP flags, or UDP.
    tcp: Option<&'static str>,
    payload: usize,
    ttl: u8,
    ecn: u8,
}

const UDP: Shape = Shape { six: false, tcp: None, payload: 18, ttl: 64, ecn: 0 };
const TCP: Shape = Shape { tcp: Some("A"), ..UDP };

const SIX_NEAR: [u8; 16] = [0xfd, 0, 0, 0x10, 2, 0x44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
const SIX_FAR: [u8; 16] = [0xfd, 0, 0, 0x10, 2, 0x44, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3];

impl Shape {
    fn frame(self, macs: ([u8; 6], [u8; 6]), out: bool, ttl_step: u8) -> Vec<u8> {
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

    /// As the pod sends it, and as OVS puts it on the wire.
    fn out(self) -> (Vec<u8>, Vec<u8>) {
        let sent = self.frame((POD, ROUTER), true, 0);
        let inner = self.frame((FAR_ROUTER, FAR_POD), true, 1);
        (sent, geneve(UPLINK, FAR_UPLINK, NEAR, FAR, [0, 3, 0, 5], 7, self.ecn, &inner))
    }

    /// As it comes from the wire, and as OVS delivers it.
    fn back(self) -> (Vec<u8>, Vec<u8>) {
        let inner = self.frame((ROUTER, POD), false, 1);
        let delivered = self.frame((ROUTER, POD), false, 1);
        (geneve(FAR_UPLINK, UPLINK, FAR, NEAR, [0, 5, 0, 3], 9, self.ecn, &inner), delivered)
    }
}

fn fix_checksum(header: &mut [u8]) {
    header[10..12].copy_from_slice(&[0, 0]);
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

#[expect(clippy::too_many_arguments, reason = "the fields of a header")]
fn geneve(
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
    // OVS: do not fragment, no UDP checksum, ECN of the inner packet.
    bytes[15] |= ecn;
    bytes[18..22].copy_from_slice(&[0, 0, 0x40, 0]);
    bytes[40..42].copy_from_slice(&[0, 0]);
    fix_checksum(&mut bytes[14..34]);
    bytes
}

#[test]
fn the_second_packet_leaves_exactly_as_ovs_sent_the_first() {
    World::both(|world| {
        for (number, shape) in
            [UDP, Shape { six: true, ..UDP }, Shape { ttl: 9, payload: 400, ecn: 1, ..UDP }]
                .into_iter()
                .enumerate()
        {
            world.cache.bump().unwrap();
            let (sent, geneve) = shape.out();
            assert_ne!(world.through_ovs(&sent, &geneve).verdict, Verdict::Drop);
            // Another length and ECN than the one that was learned.
            let next = Shape { payload: shape.payload + 33, ecn: 2, ..shape };
            let (sent, geneve) = next.out();
            let passed = world.sends(&sent);
            assert_eq!(passed.verdict, Verdict::Redirect, "{number}: {:?}", world.reasons());
            assert_eq!(passed.packet, geneve, "{number}");
        }
    });
}

#[test]
fn the_second_packet_is_delivered_exactly_as_ovs_delivered_the_first() {
    World::both(|world| {
        for shape in [UDP, Shape { six: true, ..UDP }] {
            let (geneve, delivered) = shape.back();
            world.delivered_by_ovs(&geneve, &delivered);
            let next = Shape { payload: 77, ecn: 1, ttl: 33, ..shape };
            let (geneve, delivered) = next.back();
            let passed = world.pass("from_uplink", &geneve, world.uplink, 0);
            assert_eq!(passed.verdict, Verdict::Redirect, "{:?}", world.reasons());
            assert_eq!(passed.packet, delivered);
        }
        let flows = world.cache.flows(10).unwrap();
        assert_eq!(flows.len(), 2);
        assert!(
            flows.iter().all(|flow| flow.packets == 1 && flow.endpoint == "a" && flow.valid),
            "{flows:?}"
        );
        let remote = Ipv4Addr::from(FAR);
        assert_eq!(flows[0].action, Action::Deliver { remote, vni: 9, option: 0x0005_0003 });
    });
}

#[test]
fn a_pod_of_the_same_node_gets_what_ovs_gave_it_before() {
    World::both(|world| {
        let frame = |macs: ([u8; 6], [u8; 6]), ttl, payload: usize| {
            let mut bytes = Vec::new();
            PacketBuilder::ethernet2(macs.0, macs.1)
                .ipv4([10, 244, 0, 3], [10, 244, 0, 4], ttl)
                .udp(1, 2)
                .write(&mut bytes, &vec![9; payload])
                .unwrap();
            bytes
        };
        let entered = world.sends(&frame((POD, OTHER), 64, 1));
        world.pass("to_pod", &frame((POD, OTHER), 64, 1), world.from_ovs[1], entered.tag);
        let sent = frame((POD, OTHER), 64, 50);
        let passed = world.sends(&sent);
        assert_eq!((passed.verdict, &passed.packet), (Verdict::Redirect, &sent), "{:?}", world.reasons());
        let amounts = world.cache.endpoints().unwrap();
        assert_eq!((amounts[0].fast_from.packets, amounts[1].fast_to.packets), (1, 1));
        // The receiver is taken off: the entry is not used any more.
        world.cache.set_endpoint_fast("b", false).unwrap();
        assert_eq!(world.sends(&sent).packet, sent);
        assert_eq!(world.cache.endpoints().unwrap()[0].fast_from.packets, 1);
    });
}

/// Whether a packet of this kind leaves on the fast path now.
fn is_fast(world: &World, shape: Shape) -> bool {
    world.sends(&shape.out().0).packet.len() > shape.out().0.len()
}

fn learn(world: &World, shape: Shape) {
    let (sent, geneve) = shape.out();
    world.through_ovs(&sent, &geneve);
}

fn learn_back(world: &World, shape: Shape) {
    let (geneve, delivered) = shape.back();
    world.delivered_by_ovs(&geneve, &delivered);
}

#[test]
fn a_packet_that_ovs_marked_teaches_nothing() {
    World::both(|world| {
        for six in [false, true] {
            let shape = Shape { six, ..UDP };
            let (sent, geneve) = shape.out();
            // OVN's QoS sets the DSCP of the inner packet: type of service, or traffic class.
            let marked = match six {
                false => patched(geneve, 58 + 15, &[46 << 2]),
                true => patched(geneve, 58 + 14, &[0x6b, 0x80]),
            };
            world.through_ovs(&sent, &marked);
            assert!(!is_fast(&world, shape));
        }
        assert_eq!(world.count(Reason::Learned), 0);
    });
}

#[test]
fn a_new_epoch_makes_every_entry_invalid() {
    World::both(|world| {
        learn(&world, UDP);
        assert!(is_fast(&world, UDP));
        world.cache.bump().unwrap();
        assert!(!is_fast(&world, UDP));
        assert_eq!(world.count(Reason::Stale), 1);
    });
}

#[test]
fn a_packet_that_entered_before_a_change_and_leaves_after_it_teaches_nothing() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let entered = world.sends(&sent);
        world.cache.bump().unwrap();
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, entered.tag);
        assert!(!is_fast(&world, UDP), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::Learned), 0);
        assert_eq!(world.count(Reason::NoteOldEpoch), 1);
    });
}

#[test]
fn a_younger_packet_does_not_lend_its_epoch_to_one_that_is_still_inside_ovs() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let first = world.sends(&sent);
        world.cache.bump().unwrap();
        // The younger one enters in the new epoch, and OVS drops it: what comes out is the older one.
        world.sends(&sent);
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, first.tag);
        assert_eq!(world.count(Reason::Learned), 0, "{:?}", world.reasons());
        assert!(!is_fast(&world, UDP));
    });
}

#[test]
fn one_verdict_teaches_one_entry() {
    World::both(|world| {
        let (sent, geneve) = UDP.out();
        let entered = world.sends(&sent);
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, entered.tag);
        world.pass("to_uplink", &geneve, world.uplink_from_ovs, entered.tag);
        assert_eq!((world.count(Reason::Learned), world.count(Reason::NoteMissing)), (1, 1));
    });
}

#[test]
fn tcp_is_fast_when_both_directions_were_seen_and_not_before() {
    World::both(|world| {
        for six in [false, true] {
            let tcp = Shape { six, ..TCP };
            learn(&world, tcp);
            assert!(!is_fast(&world, tcp), "one direction only");
            learn_back(&world, tcp);
            assert!(is_fast(&world, tcp), "{:?}", world.reasons());
        }
    });
}

#[test]
fn syn_fin_and_rst_take_both_directions_out_of_the_cache() {
    World::both(|world| {
        let in_from_wire =
            |shape: Shape| world.pass("from_uplink", &shape.back().0, world.uplink, 0).packet.len();
        for flags in ["S", "SA", "FA", "R", "RA"] {
            for from_peer in [false, true] {
                learn(&world, Shape { tcp: Some("S"), ..TCP });
                learn(&world, TCP);
                learn_back(&world, TCP);
                assert!(is_fast(&world, TCP), "{flags} {:?}", world.reasons());
                let end = Shape { tcp: Some(flags), ..TCP };
                if from_peer {
                    assert_eq!(in_from_wire(end), end.back().0.len(), "{flags} itself goes to OVS");
                } else {
                    assert!(!is_fast(&world, end), "{flags} itself goes to OVS");
                }
                assert!(!is_fast(&world, TCP), "{flags}");
                assert_eq!(in_from_wire(TCP), TCP.back().0.len(), "{flags}");
                world.cache.bump().unwrap();
                std::thread::sleep(Duration::from_millis(270));
            }
        }
    });
}

#[test]
fn after_a_fin_nothing_is_learned_before_the_next_syn() {
    World::both(|world| {
        learn(&world, TCP);
        learn_back(&world, TCP);
        assert!(is_fast(&world, TCP));
        learn(&world, Shape { tcp: Some("FA"), ..TCP });
        learn(&world, TCP);
        learn_back(&world, TCP);
        assert!(!is_fast(&world, TCP));
        assert!(world.count(Reason::Closing) > 0);
    });
}

#[test]
fn a_pod_cannot_use_another_pods_entry_nor_send_as_somebody_else() {
    World::both(|world| {
        learn(&world, UDP);
        let (sent, geneve) = UDP.out();
        // From the other pod's port, as it is; then with the other pod's own MAC.
        for packet in [sent.clone(), patched(sent.clone(), 6, &OTHER)] {
            let passed = world.pass("from_pod", &packet, world.pods[1], 0);
            assert_eq!(passed.packet, packet);
            // Even if OVS let it through, nothing is learned.
            world.pass("to_uplink", &geneve, world.uplink_from_ovs, passed.tag);
        }
        assert_eq!(world.count(Reason::SourceMismatch), 2);
        assert_eq!((world.count(Reason::Learned), world.cache.flows(10).unwrap().len()), (1, 1));
        // The right address with a wrong MAC.
        let wrong = patched(sent, 6, &OTHER);
        assert_eq!(world.sends(&wrong).packet, wrong);
    });
}

#[test]
fn another_next_hop_than_the_learned_one_is_for_ovs() {
    World::both(|world| {
        learn(&world, UDP);
        let other = patched(UDP.out().0, 0, &OTHER);
        assert_eq!(world.sends(&other).packet, other);
        assert_eq!(world.count(Reason::MacMismatch), 1);
    });
}

#[test]
fn a_geneve_packet_from_elsewhere_or_with_another_vni_or_option_does_not_reach_a_pod() {
    World::both(|world| {
        learn_back(&world, UDP);
        let (good, delivered) = UDP.back();
        assert_eq!(world.pass("from_uplink", &good, world.uplink, 0).packet, delivered);
        let with = |at: usize, bytes: &[u8]| {
            let mut packet = patched(good.clone(), at, bytes);
            fix_checksum(&mut packet[14..34]);
            packet
        };
        let table = [
            (with(26, &[172, 18, 0, 9]), Reason::Miss, "an unknown outer source"),
            (with(48, &[8]), Reason::Miss, "another VNI"),
            (with(54, &[0, 6, 0, 3]), Reason::Miss, "another option"),
            (with(50, &[0x01, 0x03]), Reason::OtherOptions, "another option class"),
            (with(43, &[0xc0]), Reason::OtherOptions, "an OAM packet"),
            (with(30, &[172, 18, 0, 9]), Reason::OtherDestination, "another outer destination"),
            (with(0, &[2, 2, 2, 2, 2, 2]), Reason::OtherDestination, "another outer MAC"),
            (with(40, &[1, 1]), Reason::OuterChecksum, "an outer UDP checksum"),
            (patched(good.clone(), 24, &[1, 2]), Reason::OuterHeader, "a wrong outer checksum"),
            (with(15, &[3]), Reason::CongestionMark, "congestion experienced"),
            (with(15, &[1]), Reason::CongestionMark, "another ECN outside than inside"),
            (with(38, &[0, 60]), Reason::OddLength, "a wrong UDP length"),
        ];
        for (packet, reason, what) in table {
            let before = world.count(reason);
            let passed = world.pass("from_uplink", &packet, world.uplink, 0);
            assert_eq!(passed.packet, packet, "{what}");
            assert_eq!(world.count(reason), before + 1, "{what}: {:?}", world.reasons());
        }
    });
}

#[test]
fn what_the_cache_does_not_carry_goes_to_ovs_unchanged_with_its_reason() {
    World::both(|world| {
        learn(&world, UDP);
        learn(&world, TCP);
        learn_back(&world, TCP);
        assert!(is_fast(&world, UDP) && is_fast(&world, TCP));
        let (udp, tcp) = (UDP.out().0, TCP.out().0);
        let with = |packet: &[u8], at: usize, bytes: &[u8]| {
            let mut packet = patched(packet.to_vec(), at, bytes);
            fix_checksum(&mut packet[14..34]);
            packet
        };
        let mut options = udp.clone();
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 0]);
        let mut padded = udp.clone();
        padded.extend([0; 6]);
        let mut tagged = udp.clone();
        tagged.splice(12..12, [0x81, 0x00, 0, 9]);
        let table = [
            (options, Reason::Options),
            (with(&udp, 20, &[0x20, 0]), Reason::PodFragment),
            (with(&udp, 20, &[0, 9]), Reason::PodFragment),
            (with(&udp, 22, &[1]), Reason::LowTtl),
            (with(&udp, 22, &[2]), Reason::LowTtl),
            (with(&udp, 23, &[132]), Reason::OtherProtocol),
            (with(&udp, 23, &[1]), Reason::OtherProtocol),
            (padded, Reason::OddLength),
            (with(&udp, 38, &[0, 9]), Reason::BadUdpLength),
            (with(&tcp, 46, &[0x40]), Reason::BadTcpHeader),
            (with(&tcp, 46, &[0xf0]), Reason::BadTcpHeader),
            (with(&tcp, 47, &[0]), Reason::TcpFlags),
            (with(&udp, 0, &[1, 0, 0x5e, 1, 1, 1]), Reason::Multicast),
            (Shape { payload: 1415, ..UDP }.out().0, Reason::TooLong),
        ];
        for (packet, reason) in table {
            let before = world.count(reason);
            let passed = world.sends(&packet);
            assert_eq!(passed.packet, packet, "{reason:?}");
            assert_eq!(world.count(reason), before + 1, "{reason:?}: {:?}", world.reasons());
        }
        assert_eq!(world.sends(&tagged).packet, tagged);
        // One byte less fits: 1414 of payload, 42 of headers without Ethernet's, 58 around.
        assert!(is_fast(&world, Shape { payload: 1414, ..UDP }));
        // A UDP packet of one byte is no short TCP packet.
        assert!(is_fast(&world, Shape { payload: 1, ..UDP }));
        assert!(is_fast(&world, Shape { payload: 0, ..UDP }));
    });
}

#[test]
fn ipv6_with_extension_headers_goes_to_ovs() {
    World::both(|world| {
        let six = Shape { six: true, ..UDP };
        learn(&world, six);
        assert!(is_fast(&world, six));
        for (next, reason) in [(0, Reason::Options), (44, Reason::PodFragment), (60, Reason::Options)] {
            let packet = patched(six.out().0, 20, &[next]);
            assert_eq!(world.sends(&packet).packet, packet);
            assert_eq!(world.count(reason), if next == 60 { 2 } else { 1 });
        }
    });
}

/// A node whose entries are due after `refresh`.
fn timed(world: &World, refresh: u64, grace: u64) {
    let timing = Timing {
        refresh: Duration::from_millis(refresh),
        grace: Duration::from_millis(grace),
        ..Timing::default()
    };
    world.cache.set_timing(timing).unwrap();
}

#[test]
fn an_entry_asks_ovs_again_and_lives_on_when_the_answer_is_the_same() {
    World::both(|world| {
        timed(&world, 50, 10_000);
        learn(&world, UDP);
        std::thread::sleep(Duration::from_millis(80));
        let (sent, geneve) = UDP.out();
        let probe = world.sends(&sent);
        assert_eq!(probe.packet, sent, "the refresh packet goes to OVS");
        assert_eq!(world.count(Reason::Probe), 1, "{:?}", world.reasons());
        assert!(is_fast(&world, UDP), "the others do not wait for it");
        // OVS may choose another source port; the entry follows.
        let moved = patched(geneve, 34, &[0xc9, 0x01]);
        world.pass("to_uplink", &moved, world.uplink_from_ovs, probe.tag);
        assert_eq!((world.count(Reason::Refreshed), world.count(Reason::PortChanged)), (1, 1));
        assert_eq!(world.sends(&sent).packet, moved);
        assert_eq!(world.count(Reason::Diverged), 0);
    });
}

#[test]
fn an_entry_whose_refresh_packet_does_not_come_out_dies() {
    World::both(|world| {
        timed(&world, 20, 60);
        learn(&world, UDP);
        learn_back(&world, UDP);
        std::thread::sleep(Duration::from_millis(40));
        assert!(!is_fast(&world, UDP), "the refresh packet");
        world.pass("from_uplink", &UDP.back().0, world.uplink, 0);
        std::thread::sleep(Duration::from_millis(80));
        assert!(!is_fast(&world, UDP));
        let geneve = UDP.back().0;
        assert_eq!(world.pass("from_uplink", &geneve, world.uplink, 0).packet, geneve);
        assert_eq!(world.count(Reason::Dead), 2, "{:?}", world.reasons());
    });
}

#[test]
fn another_answer_in_the_same_epoch_is_told_with_both_and_takes_the_endpoint_off() {
    World::both(|world| {
        timed(&world, 0, 10_000);
        learn(&world, UDP);
        learn(&world, Shape { six: true, ..UDP });
        let (sent, geneve) = UDP.out();
        // The same flow, to another node.
        let other = patched(geneve, 30, &[172, 18, 0, 9]);
        world.through_ovs(&sent, &other);
        assert_eq!(world.count(Reason::Diverged), 1, "{:?}", world.reasons());
        let told = world.cache.divergences().unwrap();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].endpoint.as_str(), told[0].protocol), ("a", 17));
        assert_ne!(told[0].remembered.header, told[0].ovs.header);
        assert_eq!(&told[0].ovs.header[60..68], "ac120009");
        assert_eq!(world.cache.divergences().unwrap(), []);
        // Every flow of the endpoint is slow, until the epoch moves.
        timed(&world, 10_000, 10_000);
        assert!(!is_fast(&world, Shape { six: true, ..UDP }));
        assert!(world.count(Reason::EndpointDiverged) > 0);
        assert_eq!(world.cache.endpoints().unwrap()[0].diverged, Some(world.cache.epoch().unwrap()));
        world.cache.bump().unwrap();
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
    });
}

#[test]
fn a_delivery_that_ovs_changed_is_a_divergence_too() {
    World::both(|world| {
        timed(&world, 0, 10_000);
        learn_back(&world, UDP);
        let (geneve, delivered) = UDP.back();
        world.delivered_by_ovs(&geneve, &patched(delivered, 6, &OTHER));
        assert_eq!(world.count(Reason::Diverged), 1, "{:?}", world.reasons());
        assert_eq!(world.cache.divergences().unwrap()[0].ovs.kind, "deliver");
    });
}

#[test]
fn each_gate_keeps_out_what_it_is_for() {
    World::both(|world| {
        learn(&world, UDP);
        learn(&world, TCP);
        learn_back(&world, TCP);
        world.cache.set_gate(Gate { tcp: false, ..OPEN }).unwrap();
        assert!(is_fast(&world, UDP) && !is_fast(&world, TCP));
        assert_eq!(world.count(Reason::TcpGateClosed), 1);
        world.cache.set_gate(Gate { forward: false, ..OPEN }).unwrap();
        assert!(!is_fast(&world, UDP));
        world.cache.set_gate(Gate { learn: false, ..OPEN }).unwrap();
        assert!(is_fast(&world, UDP), "what is known is used");
        world.cache.bump().unwrap();
        let before = world.count(Reason::Learned);
        learn(&world, UDP);
        assert_eq!(world.count(Reason::Learned), before);
        assert!(world.count(Reason::LearningOff) > 0);
    });
}

#[test]
fn while_ovs_is_away_entries_are_not_sent_to_it() {
    World::both(|world| {
        timed(&world, 10, 10_000);
        learn(&world, UDP);
        world.cache.set_gate(Gate { hold: true, ..OPEN }).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        world.cache.set_gate(OPEN).unwrap();
        assert!(!is_fast(&world, UDP), "now it is asked");
    });
}

#[test]
fn without_a_heartbeat_for_five_seconds_nothing_new_is_learned_and_nothing_known_is_lost() {
    World::both(|world| {
        timed(&world, 60_000, 200);
        learn(&world, UDP);
        std::thread::sleep(Duration::from_millis(5_100));
        assert!(is_fast(&world, UDP), "{:?}", world.reasons());
        let six = Shape { six: true, ..UDP };
        learn(&world, six);
        assert!(!is_fast(&world, six));
        assert_eq!(world.count(Reason::NoHeartbeat), 1);
        world.cache.heartbeat().unwrap();
        // The note of the packet before has to be forgotten.
        std::thread::sleep(Duration::from_millis(1_100));
        learn(&world, six);
        assert!(is_fast(&world, six), "{:?}", world.reasons());
    });
}

#[test]
fn a_scan_uses_up_its_budget_and_what_is_busy_stays() {
    World::both(|world| {
        world.cache.set_timing(Timing { budget: 8, ..Timing::default() }).unwrap();
        learn(&world, UDP);
        let end = Instant::now() + Duration::from_secs(10);
        let mut port = 1000_u16;
        while world.count(Reason::OverBudget) == 0 && Instant::now() < end {
            port += 1;
            let (sent, geneve) = UDP.out();
            let mut sent = patched(sent, 34, &port.to_be_bytes());
            let mut geneve = patched(geneve, 58 + 34, &port.to_be_bytes());
            // No UDP checksum.
            sent[40..42].copy_from_slice(&[0, 0]);
            geneve[58 + 40..58 + 42].copy_from_slice(&[0, 0]);
            world.through_ovs(&sent, &geneve);
        }
        assert!(world.count(Reason::OverBudget) > 0, "{:?}", world.reasons());
        assert!(is_fast(&world, UDP));
    });
}

//! Every program on a table of packets (BPF_PROG_TEST_RUN): what it returns and what it counts.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use node_agent::bpf::{
    Count, Endpoint, Mode, Options, PinnedCache, PortCounters, Programs, Reason, TunnelCounters, Verdict,
    tunnel_remote,
};
use node_agent::flow_cache::FlowCache as _;

use crate::{
    packets::{FAR, NEAR, arp, from_peer, from_peer6, outer4, ovn, patched, tagged, tcp, to_peer, udp},
    sandbox::{Node, Shell},
};

/// Tunnels that can be counted (`ebpf::layout::maps::TUNNEL_SLOTS`, less the one for all others).
const TUNNELS: u32 = 8191;

/// A node with one pod and an uplink whose interfaces are down, so that nothing but the test's packets is counted.
struct Bench {
    node: Node,
    pod: u32,
    uplink: u32,
    nobody: u32,
}

impl Bench {
    fn new() -> Self {
        let node = Node::new();
        for pair in [
            "pod type veth peer name podx",
            "sa type veth peer name so",
            "upl type veth peer name upx",
            "sau type veth peer name sou",
        ] {
            node.sh(&format!("ip link add {pair}"));
        }
        let [pod, uplink, nobody] = ["pod", "upl", "podx"].map(|name| node.ifindex(name));
        Self { node, pod, uplink, nobody }
    }

    /// Runs `test` with a loaded datapath whose port and uplink are attached in a mode.
    fn with(&self, interposed: bool, test: impl FnOnce(&mut Programs, u32, u32, u32) + Send + 'static) {
        let mode = |agent_end: &str, ovs_end: &str| match interposed {
            true => Mode::Interposed {
                agent_end: self.node.ifindex(agent_end),
                ovs_end: self.node.ifindex(ovs_end),
            },
            false => Mode::Direct,
        };
        let (pod_mode, uplink_mode) = (mode("sa", "so"), mode("sau", "sou"));
        let (pod, uplink, nobody, dir) = (self.pod, self.uplink, self.nobody, self.node.pins());
        self.node.run(move || {
            let datapath = Arc::new(parking_lot::Mutex::new(Programs::load(&dir).unwrap()));
            PinnedCache::open(Arc::clone(&datapath)).unwrap().set_remotes(&[FAR.into()].into()).unwrap();
            let mut datapath = Arc::into_inner(datapath).unwrap().into_inner();
            datapath.set_uplink(uplink, uplink_mode).unwrap();
            datapath.add_endpoint(&endpoint("pod0", pod, pod_mode)).unwrap();
            test(&mut datapath, pod, uplink, nobody);
        });
    }
}

pub(crate) fn endpoint(id: &str, host_ifindex: u32, mode: Mode) -> Endpoint {
    Endpoint {
        id: id.into(),
        host_ifindex,
        mode,
        addresses: vec!["10.244.0.3".parse().unwrap()],
        mac: [0x0a, 0x58, 10, 244, 0, 3],
        shares_ingress: false,
    }
}

fn run(datapath: &mut Programs, program: &str, packet: &[u8], ifindex: u32) -> Verdict {
    datapath.dry_run(program, packet, ifindex, 0, 1).unwrap().0
}

/// The reasons counted so far that are not zero, of those that have nothing to do with the flow cache.
fn counted(datapath: &Programs) -> Vec<(Reason, u64)> {
    let ours = |reason: Reason| reason <= Reason::TunnelMapFull;
    datapath.reasons().unwrap().into_iter().filter(|(reason, count)| *count > 0 && ours(*reason)).collect()
}

fn tunnels(datapath: &Programs) -> Vec<(String, u32, TunnelCounters)> {
    let stats = datapath.tunnel_stats().unwrap();
    stats.into_iter().map(|(key, counters)| (tunnel_remote(&key).to_string(), key.vni, counters)).collect()
}

fn len(packet: &[u8]) -> u64 {
    u64::try_from(packet.len()).unwrap()
}

#[test]
fn the_programs_pass_in_direct_mode_and_redirect_in_interposed_mode() {
    for (interposed, expected) in [(false, Verdict::Pass), (true, Verdict::Redirect)] {
        Bench::new().with(interposed, move |datapath, pod, uplink, _| {
            for packet in [tcp(10), udp(0), arp(), from_peer(&ovn(5, &tcp(10))), from_peer(&[])] {
                assert_eq!(run(datapath, "from_pod", &packet, pod), expected);
                assert_eq!(run(datapath, "to_pod", &packet, pod), expected);
                assert_eq!(run(datapath, "from_uplink", &packet, uplink), expected);
                assert_eq!(run(datapath, "to_uplink", &packet, uplink), expected);
                assert_eq!(run(datapath, "stop", &packet, pod), Verdict::Drop);
            }
        });
    }
}

#[test]
fn both_ends_of_a_shim_count_for_the_same_port() {
    let bench = Bench::new();
    let agent_end = bench.node.ifindex("sa");
    bench.with(true, move |datapath, pod, _, _| {
        run(datapath, "from_pod", &tcp(10), pod);
        run(datapath, "to_pod", &udp(20), agent_end);
        let expected = PortCounters {
            slow_from: Count { packets: 1, bytes: len(&tcp(10)) },
            slow_to: Count { packets: 1, bytes: len(&udp(20)) },
            ..PortCounters::default()
        };
        assert_eq!(datapath.endpoint_stats().unwrap(), [("pod0".to_owned(), expected)]);
        assert_eq!(datapath.uplink_stats().unwrap(), PortCounters::default());
    });
}

#[test]
fn geneve_is_counted_by_peer_and_vni_in_both_directions() {
    Bench::new().with(false, |datapath, _, uplink, _| {
        let inner = tcp(100);
        let (rx, tx) = (from_peer(&ovn(5, &inner)), to_peer(&ovn(6, &inner)));
        for _ in 0..3 {
            run(datapath, "from_uplink", &rx, uplink);
        }
        run(datapath, "from_uplink", &tagged(rx.clone()), uplink);
        run(datapath, "to_uplink", &tx, uplink);
        let six = from_peer6(&ovn(0xff_ffff, &inner));
        run(datapath, "from_uplink", &six, uplink);
        // Not Geneve: counted for the uplink only.
        run(datapath, "from_uplink", &tcp(0), uplink);

        let rx_bytes = 4 * len(&rx) + 4;
        let received = |packets, bytes| TunnelCounters {
            slow_rx: Count { packets, bytes },
            ..TunnelCounters::default()
        };
        assert_eq!(
            tunnels(datapath),
            [
                ("172.18.0.3".to_owned(), 5, received(4, rx_bytes)),
                (
                    "172.18.0.3".to_owned(),
                    6,
                    TunnelCounters { slow_tx: Count { packets: 1, bytes: len(&tx) }, ..Default::default() }
                ),
                ("fd00::3".to_owned(), 0xff_ffff, received(1, len(&six))),
            ]
        );
        let total = PortCounters {
            slow_from: Count { packets: 6, bytes: rx_bytes + len(&six) + len(&tcp(0)) },
            slow_to: Count { packets: 1, bytes: len(&tx) },
            ..PortCounters::default()
        };
        assert_eq!(datapath.uplink_stats().unwrap(), total);
        assert_eq!(counted(datapath), []);
    });
}

#[test]
fn an_aggregate_counts_as_the_packets_it_stands_for() {
    Bench::new().with(true, |datapath, pod, uplink, _| {
        let inner = tcp(3000);
        let geneve = to_peer(&ovn(5, &inner));
        datapath.dry_run("to_uplink", &geneve, uplink, 1000, 1).unwrap();
        // 58 bytes outside, 54 inside, on each of three packets.
        let (_, _, counters) = tunnels(datapath).remove(0);
        assert_eq!((counters.tx().packets, counters.tx().bytes), (3, 3000 + 3 * (58 + 54)));
        datapath.dry_run("from_pod", &inner, pod, 1400, 1).unwrap();
        let (_, port) = datapath.endpoint_stats().unwrap().remove(0);
        assert_eq!((port.from().packets, port.from().bytes), (3, 3000 + 3 * 54));
    });
}

#[test]
fn a_malformed_packet_is_counted_by_reason_and_still_goes_to_ovs() {
    let good = from_peer(&ovn(5, &tcp(100)));
    let table = [
        (patched(good.clone(), 14, &[0x65]), Reason::BadIpVersion),
        (patched(good.clone(), 14, &[0x44]), Reason::BadIpHeaderLength),
        (patched(good.clone(), 16, &[0, 19]), Reason::BadIpLength),
        (patched(good.clone(), 16, &[0xff, 0xff]), Reason::TruncatedIp),
        (patched(good.clone(), 16, &[0, 27]), Reason::TruncatedUdp),
        (patched(good.clone(), 38, &[0, 7]), Reason::BadUdpLength),
        (patched(good.clone(), 38, &[0, 15]), Reason::TruncatedGeneve),
        (patched(good.clone(), 42, &[0x42]), Reason::BadGeneveVersion),
        (patched(good.clone(), 42, &[0x3f]), Reason::OptionsBeyondPacket),
        (patched(good.clone(), 44, &[0x08, 0x00]), Reason::BadProtocolType),
        (patched(good.clone(), 53, &[0x1f]), Reason::OptionOverrun),
        (from_peer(&ovn(5, &[0; 13])), Reason::TruncatedInner),
        (patched(good.clone(), 20, &[0x20, 0]), Reason::Fragment),
        (tagged(good)[..16].to_vec(), Reason::TruncatedEthernet),
    ];
    Bench::new().with(true, move |datapath, _, uplink, _| {
        let mut expected = std::collections::BTreeMap::new();
        for (packet, reason) in &table {
            assert_eq!(run(datapath, "from_uplink", packet, uplink), Verdict::Redirect, "{reason:?}");
            *expected.entry(*reason).or_insert(0) += 1;
            assert_eq!(counted(datapath), expected.clone().into_iter().collect::<Vec<_>>(), "{reason:?}");
        }
        assert_eq!(tunnels(datapath), []);
        let packets = u64::try_from(table.len()).unwrap();
        assert_eq!(datapath.uplink_stats().unwrap().from().packets, packets);
    });
}

#[test]
fn a_packet_cut_at_any_length_is_counted_as_cut_and_passed_on() {
    Bench::new().with(false, |datapath, pod, uplink, _| {
        // Tagged, as the kernel takes no untagged test packet without a whole IP header; none of less than 15 bytes.
        let mut expected = [(Reason::TruncatedEthernet, 0), (Reason::TruncatedIp, 0)];
        for (program, ifindex, packet) in [
            ("from_uplink", uplink, from_peer(&ovn(5, &tcp(20)))),
            ("from_uplink", uplink, from_peer6(&ovn(5, &tcp(20)))),
            ("from_pod", pod, tcp(20)),
            ("from_pod", pod, udp(20)),
        ] {
            let packet = tagged(packet);
            for cut in 15..packet.len() {
                assert_eq!(run(datapath, program, &packet[..cut], ifindex), Verdict::Pass, "cut at {cut}");
                expected[usize::from(cut >= 18)].1 += 1;
            }
        }
        assert_eq!(counted(datapath), expected);
        assert_eq!(tunnels(datapath), []);
    });
}

#[test]
fn an_interface_that_is_not_ours_is_left_alone_and_said_so() {
    Bench::new().with(true, |datapath, _, _, nobody| {
        for program in ["from_pod", "to_pod", "from_uplink", "to_uplink"] {
            assert_eq!(run(datapath, program, &tcp(0), nobody), Verdict::Pass);
        }
        assert_eq!(counted(datapath), [(Reason::UnknownPort, 4)]);
        assert_eq!(datapath.uplink_stats().unwrap(), PortCounters::default());
    });
}

#[test]
fn an_interface_whose_index_is_beyond_the_array_is_a_port_like_any_other() {
    let node = Node::new();
    node.sh("ip link add high index 70000 type veth peer name highx");
    node.sh("ip link add sa index 70002 type veth peer name so");
    let (dir, mode) = (node.pins(), Mode::Interposed { agent_end: 70002, ovs_end: node.ifindex("so") });
    node.run(move || {
        let mut datapath = Programs::load(&dir).unwrap();
        datapath.add_endpoint(&endpoint("pod0", 70000, mode)).unwrap();
        assert_eq!(run(&mut datapath, "from_pod", &tcp(0), 70000), Verdict::Redirect);
        assert_eq!(run(&mut datapath, "to_pod", &tcp(0), 70002), Verdict::Redirect);
        drop(datapath);
        let mut datapath = Programs::load(&dir).unwrap();
        assert!(datapath.endpoints()[0].alive);
        let (_, counters) = datapath.endpoint_stats().unwrap().remove(0);
        assert_eq!((counters.from().packets, counters.to().packets), (1, 1));
        datapath.remove_endpoint("pod0").unwrap();
        assert_eq!(run(&mut datapath, "from_pod", &tcp(0), 70000), Verdict::Pass);
        assert_eq!(counted(&datapath), [(Reason::UnknownPort, 1)]);
    });
}

#[test]
fn a_stranger_takes_no_place_from_the_nodes_tunnels() {
    Bench::new().with(false, |datapath, _, uplink, _| {
        for n in 1..=100_u8 {
            let packet = outer4([172, 18, 1, n], NEAR, &ovn(n.into(), &tcp(0)));
            run(datapath, "from_uplink", &packet, uplink);
        }
        assert_eq!(tunnels(datapath).len(), 0);
        assert_eq!(datapath.uplink_stats().unwrap().from().packets, 100, "counted for the uplink");
        run(datapath, "from_uplink", &from_peer(&ovn(7, &tcp(0))), uplink);
        assert_eq!(tunnels(datapath).len(), 1);
    });
}

#[test]
fn a_sender_of_made_up_vnis_fills_the_tunnel_map_only_until_it_is_pruned() {
    Bench::new().with(false, |datapath, _, uplink, _| {
        let real = to_peer(&ovn(1, &tcp(0)));
        run(datapath, "to_uplink", &real, uplink);
        let extra = 10;
        for vni in 2..=TUNNELS + extra {
            run(datapath, "from_uplink", &from_peer(&ovn(vni, &tcp(0))), uplink);
        }
        assert_eq!(tunnels(datapath).len(), usize::try_from(TUNNELS).unwrap());
        assert_eq!(counted(datapath), [(Reason::TunnelMapFull, u64::from(extra))]);

        assert_eq!(datapath.prune_tunnels().unwrap(), 0, "nothing is known to be idle yet");
        run(datapath, "to_uplink", &real, uplink);
        assert_eq!(datapath.prune_tunnels().unwrap(), usize::try_from(TUNNELS - 1).unwrap());
        let left = tunnels(datapath);
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!((left[0].1, left[0].2.tx().packets), (1, 2));
    });
}

#[test]
fn malformed_packets_are_logged_a_few_of_many_when_asked_for() {
    let bench = Bench::new();
    let (uplink, dir) = (bench.uplink, bench.node.pins());
    let log = bench.node.run(move || {
        let mut datapath =
            Programs::load_with(&dir, Options { log_malformed: true, ..Options::default() }).unwrap();
        datapath.set_uplink(uplink, Mode::Direct).unwrap();
        let log = datapath.take_log().unwrap();
        assert!(datapath.take_log().is_err(), "there is one log");
        let bad = patched(from_peer(&ovn(5, &tcp(0))), 42, &[0x42]);
        datapath.dry_run("from_uplink", &bad, uplink, 0, 1000).unwrap();
        captured(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // The log runs until it is dropped; what is there is handed on first.
            let reading = async { tokio::time::timeout(Duration::from_secs(1), log.run()).await };
            assert!(runtime.block_on(reading).is_err(), "the log ended");
        })
    });
    let wanted = format!("reason {}, interface {uplink}", Reason::BadGeneveVersion.index());
    let lines = log.lines().filter(|line| line.contains(&wanted)).count();
    assert_eq!(lines, 1, "{log}");
}

/// What `tracing` was told during `job`.
fn captured(job: impl FnOnce()) -> String {
    let text = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&text);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || Sink(Arc::clone(&sink)))
        .finish();
    tracing::subscriber::with_default(subscriber, job);
    let text = text.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

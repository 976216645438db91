//! Interposed mode with real packets: a pod, its shim, a stand-in for OVS, the uplink's shim, and a host outside.
//!
//! ```text
//! pod eth0 ── host0 ⇄ sa0 ── so0 ⇄ forwarder ⇄ sou ── sau ⇄ up0 ── x0 outside
//! ```
//! `──` is a veth pair, `⇄` what the programs or the forwarder carry.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    thread,
    time::Duration,
};

use node_agent::bpf::{Endpoint, Mode, Options, PortCounters, Programs};

use crate::{
    forwarder::Forwarder,
    programs::endpoint,
    sandbox::{Netns, Node, PATIENCE, Shell, eventually},
};

pub(crate) const POD: &str = "10.9.0.2";
pub(crate) const OUTSIDE: &str = "10.9.0.1";

/// A node in interposed mode, wired as the agent's link code wires it, programs not yet attached.
pub(crate) struct Wired {
    pub(crate) node: Node,
    pub(crate) pod: Netns,
    pub(crate) outside: Netns,
    _forwarder: Forwarder,
}

impl Wired {
    pub(crate) fn new() -> Self {
        let (node, pod, outside) = (Node::new(), Netns::new("pod"), Netns::new("outside"));
        node.sh("ip link add host0 type veth peer name eth0");
        node.sh(&format!("ip link set eth0 netns {}", pod.tid()));
        node.sh("ip link add up0 type veth peer name x0");
        node.sh(&format!("ip link set x0 netns {}", outside.tid()));
        node.sh("ip link add sa0 type veth peer name so0");
        node.sh("ip link add sau type veth peer name sou");
        for name in ["host0", "up0", "sa0", "so0", "sau", "sou"] {
            let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            node.run(move || std::fs::write(path, "1").unwrap());
            node.sh(&format!("ip link set {name} up"));
        }
        for agent_end in ["sa0", "sau"] {
            node.sh(&format!("ethtool -K {agent_end} tx off tso off gso off"));
        }
        node.sh("ip link set up0 promisc on");
        for (net, link, address) in [(&pod, "eth0", POD), (&outside, "x0", OUTSIDE)] {
            let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
            net.run(move || std::fs::write(path, "1").unwrap());
            net.sh(&format!("ip addr add {address}/24 dev {link}"));
            net.sh(&format!("ip link set {link} up"));
        }
        let forwarder = Forwarder::between(&node, "so0", "sou");
        Self { node, pod, outside, _forwarder: forwarder }
    }

    /// How to attach the pod and the uplink.
    pub(crate) fn config(&self) -> Config {
        let mode = |agent_end, ovs_end| Mode::Interposed {
            agent_end: self.node.ifindex(agent_end),
            ovs_end: self.node.ifindex(ovs_end),
        };
        Config {
            dir: self.node.pins(),
            options: Options::default(),
            uplink: (self.node.ifindex("up0"), mode("sau", "sou")),
            endpoint: endpoint("pod0", self.node.ifindex("host0"), mode("sa0", "so0")),
        }
    }

    /// Loads, attaches, and runs `job` with the datapath, which is dropped then.
    pub(crate) fn attached<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Programs) -> T + Send + 'static,
    ) -> T {
        let config = self.config();
        self.node.run(move || {
            let mut datapath = config.attach();
            job(&mut datapath)
        })
    }

    /// Runs `job` with what a new agent finds, nothing attached by it.
    pub(crate) fn reloaded<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Programs) -> T + Send + 'static,
    ) -> T {
        let dir = self.node.pins();
        self.node.run(move || job(&mut Programs::load(&dir).unwrap()))
    }

    /// Whether the pod reaches the host outside, and hears from it.
    pub(crate) fn ping(&self) -> bool {
        self.pod.try_sh(&format!("ping -n -c 3 -i 0.05 -W 1 {OUTSIDE}"))
    }

    /// Counters of the pod and of the uplink, from a fresh load: nothing but the pinned maps is asked.
    pub(crate) fn counters(&self) -> (PortCounters, PortCounters) {
        self.reloaded(|datapath| {
            (datapath.endpoint_stats().unwrap().remove(0).1, datapath.uplink_stats().unwrap())
        })
    }
}

/// What the agent would attach.
pub(crate) struct Config {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) uplink: (u32, Mode),
    pub(crate) endpoint: Endpoint,
}

impl Config {
    pub(crate) fn attach(&self) -> Programs {
        let mut datapath = Programs::load_with(&self.dir, self.options).unwrap();
        datapath.set_uplink(self.uplink.0, self.uplink.1).unwrap();
        datapath.add_endpoint(&self.endpoint).unwrap();
        datapath
    }
}

/// Sends `amount` bytes from the pod to an echo server outside and reads them back.
fn tcp_echo(wired: &Wired, amount: usize) {
    let port = wired.outside.run(|| {
        let listener = TcpListener::bind((OUTSIDE, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut copy = stream.try_clone().unwrap();
            std::io::copy(&mut stream, &mut copy).unwrap();
        };
        thread::Builder::new().spawn(serve).unwrap();
        port
    });
    wired.pod.run(move || {
        let mut stream = TcpStream::connect((OUTSIDE, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent: Vec<u8> = (0..amount).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut writer = stream.try_clone().unwrap();
        let to_send = sent.clone();
        let writing = thread::Builder::new().spawn(move || writer.write_all(&to_send).unwrap()).unwrap();
        let mut received = vec![0; amount];
        stream.read_exact(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == sent, "what came back is not what was sent");
    });
}

/// Sends a datagram from the pod and has it sent back.
fn udp_echo(wired: &Wired) {
    let server = wired.outside.run(|| UdpSocket::bind((OUTSIDE, 0)).unwrap());
    let port = server.local_addr().unwrap().port();
    let client = wired.pod.run(move || {
        let client = UdpSocket::bind((POD, 0)).unwrap();
        client.connect((OUTSIDE, port)).unwrap();
        client
    });
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    // Larger than the MTU: fragments go the same way.
    let sent = [9; 4000];
    client.send(&sent).unwrap();
    let mut buffer = [0; 8000];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(from.ip().to_string(), POD);
    server.send_to(&buffer[..length], from).unwrap();
    let length = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], &sent);
}

#[test]
fn packets_cross_the_shims_both_ways_and_are_counted_on_both_ports() {
    let wired = Wired::new();
    assert!(!wired.ping(), "nothing joins the veth pairs before the programs are attached");
    wired.attached(|_| ());
    // The pod may just be giving up asking for the neighbour that it found nobody to ask for before.
    assert!(eventually(|| wired.ping()));
    udp_echo(&wired);
    let amount = 1 << 20;
    tcp_echo(&wired, amount);

    let (pod, _) = wired.counters();
    let amount = u64::try_from(amount).unwrap();
    assert!(pod.from().bytes > amount && pod.to().bytes > amount, "{pod:?}");
    // At most 1,460 bytes of payload a packet: aggregates of the pod count as what they became on the wire.
    assert!(pod.from().packets > amount / 1460 && pod.to().packets > amount / 1460, "{pod:?}");
    // The pod's side was counted before the kernel cut the aggregates, the uplink's side after.
    let same = || {
        let (pod, uplink) = wired.counters();
        (pod.from().packets, pod.from().bytes) == (uplink.to().packets, uplink.to().bytes)
            && (pod.to().packets, pod.to().bytes) == (uplink.from().packets, uplink.from().bytes)
    };
    assert!(eventually(same), "{:?}", wired.counters());
}

#[test]
fn the_nodes_own_stack_does_not_see_what_ovs_reads() {
    let wired = Wired::new();
    wired.attached(|_| ());
    // The stack would answer for this address at the OVS end of the shim.
    wired.node.sh("ip addr add 10.9.0.99/24 dev so0");
    let answers = || wired.pod.try_sh("ping -n -c 1 -W 1 10.9.0.99");
    assert!(!answers(), "the stack answered a packet that belongs to OVS");
    wired.node.sh("tc filter del dev so0 ingress");
    assert!(eventually(answers), "without the program the stack answers, so the check above can fail");
    // The next reconciliation sees that it is gone and puts it back.
    let endpoint = wired.config().endpoint;
    wired.reloaded(move |datapath| {
        assert!(!datapath.endpoints()[0].alive);
        datapath.add_endpoint(&endpoint).unwrap();
        assert!(datapath.endpoints()[0].alive);
    });
    assert!(!answers());
}

#[test]
fn a_kernel_without_tcx_links_is_wired_the_same() {
    let wired = Wired::new();
    let config = Config { options: Options { without_tcx: true, ..Options::default() }, ..wired.config() };
    let uplink = config.uplink;
    wired.node.run(move || {
        assert_eq!(config.attach().uplink(), Some((uplink.0, uplink.1, true)));
    });
    assert!(wired.ping());
    wired.reloaded(move |datapath| assert_eq!(datapath.uplink(), Some((uplink.0, uplink.1, true))));
    assert!(wired.ping());
    let dir = wired.node.pins();
    wired.node.run(move || Programs::cleanup(&dir).unwrap());
    assert!(!wired.ping());
}

/// Does what the `bandwidth` plugin does for `kubernetes.io/egress-bandwidth`, with a filter that is easier to see than a rate.
#[test]
fn an_ingress_qdisc_of_others_has_room_beside_the_programs_and_takes_effect() {
    for shares_ingress in [true, false] {
        let (node, pod) = (Node::new(), Netns::new("pod"));
        node.sh("ip link add host0 type veth peer name eth0");
        node.sh(&format!("ip link set eth0 netns {}", pod.tid()));
        node.sh("ip addr add 10.9.0.1/24 dev host0");
        node.sh("ip link set host0 up");
        pod.sh(&format!("ip addr add {POD}/24 dev eth0"));
        pod.sh("ip link set eth0 up");
        let answers = || pod.try_sh("ping -n -c 1 -W 1 10.9.0.1");
        assert!(eventually(answers));
        let (dir, host) = (node.pins(), node.ifindex("host0"));
        let config = Endpoint { shares_ingress, ..endpoint("pod0", host, Mode::Direct) };
        node.run(move || {
            let mut datapath = Programs::load(&dir).unwrap();
            datapath.add_endpoint(&config).unwrap();
            assert!(datapath.endpoints()[0].alive);
        });
        assert!(answers());
        let there = node.try_sh("tc qdisc add dev host0 ingress");
        assert_eq!(there, shares_ingress, "a clsact qdisc takes its place");
        if shares_ingress {
            // One instruction of classic BPF: the verdict 2 (TC_ACT_SHOT).
            let bytecode = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(bytecode.path(), "1,6 0 0 2,").unwrap();
            let file = bytecode.path().display();
            node.sh(&format!("tc filter add dev host0 ingress bpf da bytecode-file {file}"));
            assert!(!answers(), "the filter sees the packets");
        }
        let dir = node.pins();
        node.run(move || Programs::cleanup(&dir).unwrap());
    }
}

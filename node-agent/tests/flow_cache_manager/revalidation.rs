//! With thousands of datapath flows OVS needs some time to bring them in line with its tables. It reports the end of every round,
//! also of one that began before the change.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_agent::kernel::link::{Netlink, Veth, ethtool};
use tokio::time::sleep;

use crate::bed::Bed;
use crate::common::{Pod, on_a_node};

/// Number of datapath flows: a round over them takes OVS some tenths of a second.
const FLOWS: u32 = 8_000;
/// Number of datapath flows that the changed rule concerns. They are spread over OVS's table, so a round has passed some of them and
/// not yet others.
const TARGETS: u32 = 100;
const PORT: u16 = 7777;
const TARGET: &str = "table=0,udp,nw_dst=198.18.0.0/25";

fn destination(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + n)
}

#[expect(clippy::disallowed_methods, reason = "the test plays an operator")]
fn ip(arguments: &str) {
    let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Number of packets by the number in their payload.
type Came = BTreeMap<usize, u32>;

/// A sender behind one port of br-int, and a receiver behind another.
struct Wire {
    sender: Arc<UdpSocket>,
    receiver: UdpSocket,
    _pod: Pod,
}

impl Wire {
    async fn new(bed: &Bed) -> Self {
        let pod = Pod::new();
        let netns = std::fs::File::open(pod.path()).unwrap();
        let netlink = Netlink::open().unwrap();
        for (name, peer, peer_netns) in [("a0", "a1", Some(netns.as_raw_fd())), ("b0", "b1", None)] {
            let peer_mac =
                Some(format!("0a:58:00:00:00:0{}", if name == "a0" { 1 } else { 2 }).parse().unwrap());
            let veth =
                Veth { name, mac: None, group: 0, peer, peer_mac, peer_group: 0, peer_netns, mtu: 1500 };
            netlink.create_veth(&veth).await.unwrap();
            ip(&format!("link set {name} up"));
            let request = format!("ofport_request={}", if name == "a0" { 1 } else { 2 });
            bed.ovs.vsctl(&["add-port", "br-int", name, "--", "set", "interface", name, &request]);
        }
        let set_up = move || {
            nix::sched::setns(&netns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set a1 up");
            ip("addr add 192.0.2.1/24 dev a1");
            ip("route add 198.18.0.0/15 via 192.0.2.2");
            ip("neigh add 192.0.2.2 lladdr 0a:58:00:00:00:02 dev a1 nud permanent");
            ethtool::disable_tx_offloads("a1").unwrap();
            UdpSocket::bind(("192.0.2.1", 0)).unwrap()
        };
        let sender = Arc::new(
            std::thread::Builder::new().name("sender".to_owned()).spawn(set_up).unwrap().join().unwrap(),
        );
        ip("link set lo up");
        ip("link set b1 up");
        ip("route add 192.0.2.0/24 dev b1");
        ip("route add local 198.18.0.0/15 dev b1");
        let receiver = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        receiver.set_nonblocking(true).unwrap();
        Self { sender, receiver, _pod: pod }
    }

    /// Packets received since the last call.
    fn came(&self) -> Came {
        let mut came = Came::new();
        let mut payload = [0; 8];
        while let Ok(8) = self.receiver.recv(&mut payload) {
            *came.entry(usize::from_be_bytes(payload)).or_default() += 1;
        }
        came
    }

    /// Packets received until there was no invalidation for longer than OVS's longest time between two rounds.
    async fn until_quiet(&self, bed: &Bed) -> Came {
        let (mut came, mut invalidations, mut since) =
            (Came::new(), bed.cache.invalidations(), Instant::now());
        while since.elapsed() < Duration::from_millis(600) {
            sleep(Duration::from_millis(5)).await;
            // Frequently, as a socket's buffer has room for about 250.
            for (number, count) in self.came() {
                *came.entry(number).or_default() += count;
            }
            if std::mem::replace(&mut invalidations, bed.cache.invalidations()) != invalidations {
                since = Instant::now();
            }
        }
        came
    }

    /// Creates the datapath flows.
    async fn fill(&self) {
        for n in 0..FLOWS {
            let _ = self.sender.send_to(&0_usize.to_be_bytes(), (destination(n), PORT));
            if n % 100 == 99 {
                sleep(Duration::from_millis(10)).await;
                self.came();
            }
        }
    }
}

/// Sends a packet to each target.
fn ask(sender: &UdpSocket, number: usize) {
    for n in 0..TARGETS {
        let _ = sender.send_to(&number.to_be_bytes(), (destination(n), PORT));
    }
}

#[test]
fn no_old_datapath_flow_is_left_when_everything_is_made_invalid_for_the_last_time() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        let wire = Wire::new(&bed).await;
        // So that none expires before the next change, however long a trial takes.
        bed.ovs.vsctl(&["set", "Open_vSwitch", ".", "other_config:max-idle=600000"]);
        // Copying a field makes a separate datapath flow for each address. OVN has many tables, and the lookups in them take time.
        let tables = ",resubmit(,8)".repeat(40);
        let actions = format!("move:NXM_OF_IP_DST[]->NXM_NX_REG0[]{tables},output:2");
        bed.ovs.ofctl("add-flow", &format!("table=0,priority=10,udp,in_port=1,actions={actions}"));
        wire.fill().await;
        bed.rest().await;
        println!("{}", bed.ovs.appctl(&["upcall/show"]));

        // Of old flows forwarded after all rounds, after all but one, and after more than one of them.
        let (mut old_at_last, mut old_before, mut old_late, mut trial) = (0, Vec::new(), 0, 0_u64);
        while old_before.len() < 2 && trial < 20 {
            bed.cache.forget();
            let sender = Arc::clone(&wire.sender);
            *bed.cache.probe.lock().unwrap() = Some(Box::new(move |number| ask(&sender, number)));
            // The round that this change starts is under way when the next change comes.
            bed.ovs.ofctl("add-flow", "table=9,priority=1,actions=drop");
            sleep(Duration::from_millis(trial % 8 * 5)).await;
            bed.ovs.ofctl("add-flow", &format!("{TARGET},priority=20,actions=drop"));
            let came = wire.until_quiet(&bed).await;
            *bed.cache.probe.lock().unwrap() = None;
            let invalidations = bed.cache.invalidations();
            println!(
                "trial {trial}: {invalidations} times invalid; of {TARGETS} old ones forwarded after each: {came:?}"
            );
            let after = |invalidation: usize| came.get(&invalidation).copied().unwrap_or(0);
            assert!(invalidations > 2 && after(1) > 0, "the packets that ask do not reach OVS");
            old_at_last += after(invalidations);
            old_late += usize::from(after(2) > 0);
            old_before.extend(Some(after(invalidations - 1)).filter(|old| *old > 0));
            bed.ovs.ofctl("del-flows", TARGET);
            wire.until_quiet(&bed).await;
            ask(&wire.sender, 0);
            sleep(Duration::from_millis(100)).await;
            assert_eq!(wire.came(), Came::from([(0, TARGETS)]), "all are forwarded again");
            trial += 1;
        }
        println!(
            "forwarded by an old flow: {old_before:?} after the last but one, {old_at_last} after the last"
        );
        assert_eq!(old_at_last, 0, "packets that OVS forwarded by what it had before the change");
        // Whether the last but one is enough is a race of a few milliseconds, which a busy machine may not show.
        assert!(old_late > 0, "one round would have been enough: the test has lost its point");
    });
}

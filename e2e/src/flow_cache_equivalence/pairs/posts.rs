//! Where packets of the ways are sent and caught: in the pods, on the first node's two ports, on the host outside, and on the nodes' wires.
//!
//! What a node gets by its own ports is caught behind the programs, where its netfilter would see it first: a packet socket on the
//! port itself sees a packet before the program that takes the number off it. An nftables rule passes the test's packets on to a
//! veth pair made for that, and the node's stack does not get them.

use anyhow::{Context, Result};

use super::super::scene::{Scene, Who};
use super::super::tap::Tap;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::tools::packets::{Capture, Frame};

/// The ports that packets of the ways go to: what they are sent to, and what is answered to.
pub(super) const PORTS: &str = "7100, 7300, 21000-21255, 30181-30183";
/// The node whose own ports are tried.
const NODE: &str = "n1";
/// The bridge's own port, and the management port.
const BRIDGE: &str = "breth0";
const MANAGEMENT: &str = "ovn-k8s-mp0";
/// The pair that gets what the node would get.
const SINK: [&str; 2] = ["eq0", "eq1"];

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::flow_cache_equivalence) enum Sender {
    /// A pod.
    Pod(Who),
    /// The first node, by the bridge's own port.
    Bridge,
    /// The first node, by the management port.
    Management,
    /// The host outside.
    Outside,
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::flow_cache_equivalence) enum Place {
    /// It came to a pod.
    Pod(Who),
    /// It came to the first node itself.
    Node,
    /// It came to the host outside.
    Outside,
    /// A node sent it: the first, or the second.
    Wire(u8),
}

/// The taps besides those of the pods.
#[derive(Debug)]
pub(in crate::flow_cache_equivalence) struct Posts {
    bridge: Tap,
    management: Tap,
    node: Tap,
    outside: Tap,
    wires: [Tap; 2],
}

impl Posts {
    /// Makes what they need and starts them.
    pub(in crate::flow_cache_equivalence) fn start(bed: &Bed) -> Result<Self> {
        let program = bed.config().program("testbed");
        let tap = |host: &str, interface: &str| {
            Tap::start(bed.host(host).network_command(&program)?, interface, false)
                .with_context(|| format!("{interface} of {host}"))
        };
        let ip = |args: &str| {
            let words = args.split_whitespace();
            exec::output(bed.host(NODE).network_command("ip")?.args(words)).map(drop)
        };
        let [sink, end] = SINK;
        // It may be there from an earlier trial on the cluster.
        if ip(&format!("link show dev {sink}")).is_err() {
            ip(&format!("link add {sink} type veth peer name {end}"))?;
        }
        ip(&format!("link set dev {sink} addrgenmode none up"))?;
        ip(&format!("link set dev {end} addrgenmode none up"))?;
        exec::input_output(bed.host(NODE).network_command("nft")?.args(["-f", "-"]), &passed_on(PORTS))?;
        exec::input_output(bed.host("ext").network_command("nft")?.args(["-f", "-"]), &silence(PORTS))?;
        Ok(Self {
            bridge: tap(NODE, BRIDGE)?,
            management: tap(NODE, MANAGEMENT)?,
            node: tap(NODE, end)?,
            outside: tap("ext", "eth0")?,
            wires: [tap("switch", "n1")?, tap("switch", "n2")?],
        })
    }

    /// The tap that sends by an interface of the first node; none if packets of the ways never leave by it.
    pub(in crate::flow_cache_equivalence) fn sender(interface: &str) -> Option<Sender> {
        match interface {
            BRIDGE => Some(Sender::Bridge),
            MANAGEMENT => Some(Sender::Management),
            _ => None,
        }
    }

    /// Sends packets with a pause after each.
    pub(in crate::flow_cache_equivalence) fn send(
        &mut self,
        scene: &mut Scene<'_>,
        sender: Sender,
        frames: Vec<Frame>,
        pause: std::time::Duration,
    ) -> Result<()> {
        let tap = match sender {
            Sender::Pod(who) => scene.tap(who)?,
            Sender::Bridge => &mut self.bridge,
            Sender::Management => &mut self.management,
            Sender::Outside => &mut self.outside,
        };
        tap.send(frames, pause).with_context(|| format!("{sender:?}"))
    }

    /// Takes out what has been seen so far.
    pub(in crate::flow_cache_equivalence) fn take(&self, scene: &Scene<'_>) -> Vec<(Place, Capture)> {
        // These only send; what they see has its numbers still.
        drop((self.bridge.take(), self.management.take()));
        let mut all = Vec::new();
        let mut add = |place, tap: &Tap| all.extend(tap.take().into_iter().map(|one| (place, one)));
        for who in Who::ALL {
            add(Place::Pod(who), &scene.member(who).tap);
        }
        add(Place::Node, &self.node);
        add(Place::Outside, &self.outside);
        add(Place::Wire(1), &self.wires[0]);
        add(Place::Wire(2), &self.wires[1]);
        all
    }
}

/// The rules by which the node's packets to these ports go to the pair instead of the node's stack.
fn passed_on(ports: &str) -> String {
    let chain = |name: &str, port: &str| {
        format!(
            "chain {name} {{
                type filter hook ingress device \"{port}\" priority 0; policy accept;
                tcp dport {{ {ports} }} fwd to \"{}\"
                udp dport {{ {ports} }} fwd to \"{}\"
            }}",
            SINK[0], SINK[0]
        )
    };
    let chains = [chain("of_bridge", BRIDGE), chain("of_management", MANAGEMENT)].join("\n");
    renewed("netdev", &chains)
}

/// The rules by which the host outside neither sees nor answers packets to these ports.
fn silence(ports: &str) -> String {
    let chain = format!(
        "chain of_all {{
            type filter hook prerouting priority -500; policy accept;
            tcp dport {{ {ports} }} drop
            udp dport {{ {ports} }} drop
        }}"
    );
    renewed("inet", &chain)
}

/// The table of the test with these chains, in place of one of an earlier trial.
fn renewed(family: &str, chains: &str) -> String {
    let table = format!("table {family} equivalence");
    format!("{table} {{}}\ndelete {table}\n{table} {{\n{chains}\n}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_the_ways_leave_a_node_by_its_two_ports_alone() {
        assert_eq!(Posts::sender("breth0"), Some(Sender::Bridge));
        assert_eq!(Posts::sender("ovn-k8s-mp0"), Some(Sender::Management));
        assert_eq!(Posts::sender("eth0"), None);
    }

    #[test]
    fn both_ports_of_the_node_have_their_rules() {
        let rules = passed_on("7100");
        for port in [BRIDGE, MANAGEMENT] {
            assert!(rules.contains(&format!("device \"{port}\"")), "{rules}");
        }
        assert_eq!(rules.matches("fwd to \"eq0\"").count(), 4);
    }
}

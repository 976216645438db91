//! Parser of `dpctl/dump-conntrack -m` (ovs-dpctl(8)): connection tracking state of a flow's packets.

use api::admin::{CachedProtocol, FlowSpec};

use crate::ovs::tracked::{ends, field};

/// State for `--ct-next`: new connection.
pub(super) const NEW: &str = "trk,new";
const ESTABLISHED: &str = "trk,est";
const ESTABLISHED_REPLY: &str = "trk,est,rpl";

/// Connection tracking state of a packet in one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// Value for `--ct-next`.
    pub(super) ct_next: &'static str,
    /// `ct_mark` of the connection.
    pub(super) mark: u32,
    /// Description for output.
    pub(super) words: String,
}

impl State {
    /// No line is of a connection of the flow.
    pub(super) fn none() -> Self {
        Self { ct_next: NEW, mark: 0, words: format!("no connection, {NEW}") }
    }
}

/// State of `flow` by a line of the dump of one zone, if the line is of its connection. `kernel`: the dump is from the kernel datapath,
/// which marks UDP connections whose reply was seen; the userspace datapath treats UDP as established from the third packet on, with or
/// without a reply (OVS, lib/conntrack-other.c).
pub(super) fn state(line: &str, flow: &FlowSpec, kernel: bool) -> Option<State> {
    let forward = (flow.source, flow.destination);
    let (protocol, rest) = line.trim().split_once(',')?;
    if protocol != flow.protocol.name() {
        return None;
    }
    let (original, reply) = (ends(rest, "orig=("), ends(rest, "reply=("));
    let answered = match flow.protocol {
        CachedProtocol::Tcp => !["SYN_SENT", "SYN_RECV"].contains(&tcp_state(rest)),
        CachedProtocol::Udp => !kernel || field(rest, "status=").is_some_and(|s| s.contains("SEEN_REPLY")),
    };
    let (ct_next, side) = match answered {
        true if original == Some(forward) => (ESTABLISHED, "original"),
        true if reply == Some(forward) => (ESTABLISHED_REPLY, "reply"),
        // A reply always belongs to an established connection.
        false if reply == Some(forward) => (ESTABLISHED_REPLY, "reply"),
        false if original == Some(forward) => (NEW, "original"),
        _ => return None,
    };
    let mark = field(rest, "mark=").and_then(super::actions::number).unwrap_or(0);
    Some(State { ct_next, mark, words: format!("{side} direction of a connection, {ct_next}") })
}

/// State of a TCP connection; of two states, the earlier one.
fn tcp_state(text: &str) -> &str {
    let one = field(text, "(state=");
    let (original, reply) = (field(text, "(state_orig="), field(text, ",state_reply="));
    let young = [one, original, reply].into_iter().flatten().find(|s| s.starts_with("SYN"));
    young.or(one).or(original).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of OVS 3.5's userspace datapath, and one of the kernel's.
    const DUMP: &str = "\
tcp,orig=(src=10.244.0.3,dst=10.244.1.3,sport=40000,dport=9000),reply=(src=10.244.1.3,dst=10.244.0.3,sport=9000,dport=40000),id=0,zone=6,status=0,protoinfo=(state_orig=ESTABLISHED,state_reply=ESTABLISHED,wscale_orig=10)
tcp,orig=(src=10.244.0.3,dst=10.244.1.3,sport=40001,dport=9000),reply=(src=10.244.1.3,dst=10.244.0.3,sport=9000,dport=40001),zone=6,mark=1,protoinfo=(state=SYN_SENT)
udp,orig=(src=10.244.0.3,dst=10.244.1.3,sport=5000,dport=53),reply=(src=10.244.1.3,dst=10.244.0.3,sport=53,dport=5000),id=0,zone=6,status=0
udp,orig=(src=fd00::3,dst=fd00::4,sport=1,dport=2),reply=(src=fd00::4,dst=fd00::3,sport=2,dport=1),zone=6,status=SEEN_REPLY|CONFIRMED,mark=0x2
";

    fn look(words: [&str; 3], kernel: bool) -> (&'static str, u32) {
        let flow = FlowSpec::parse(words[0], words[1], words[2]).unwrap();
        let state = DUMP.lines().find_map(|line| state(line, &flow, kernel)).unwrap_or_else(State::none);
        (state.ct_next, state.mark)
    }

    #[test]
    fn the_direction_is_that_of_the_packet_against_the_first_one() {
        let (a, b) = ("10.244.0.3:40000", "10.244.1.3:9000");
        assert_eq!(look(["tcp", a, b], false), (ESTABLISHED, 0));
        assert_eq!(look(["tcp", b, a], false), (ESTABLISHED_REPLY, 0));
    }

    #[test]
    fn a_connection_without_an_answer_is_new_and_an_unknown_one_too() {
        assert_eq!(look(["tcp", "10.244.0.3:40001", "10.244.1.3:9000"], false), (NEW, 1));
        assert_eq!(look(["tcp", "10.244.0.3:40000", "10.244.1.3:9001"], false), (NEW, 0));
        assert_eq!(look(["udp", "10.244.0.3:40000", "10.244.1.3:9000"], false), (NEW, 0));
    }

    #[test]
    fn the_kernel_says_whether_udp_was_answered_and_the_userspace_datapath_does_not_ask() {
        let udp = ["udp", "10.244.0.3:5000", "10.244.1.3:53"];
        assert_eq!((look(udp, false).0, look(udp, true).0), (ESTABLISHED, NEW));
        assert_eq!(look(["udp", "[fd00::3]:1", "[fd00::4]:2"], true), (ESTABLISHED, 2));
    }
}

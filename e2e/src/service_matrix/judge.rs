//! Whether what came of a cell is what must come of it. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use api::admin::{CachedProtocol, Flow};
use testbed::tools::Answer;
use testbed::tools::survey::{Outcome, Talk};

use super::cell::{Cell, Node};
use super::oracle::{Leg, Side, Way};

/// Round trips on a connection that should be fast.
pub(super) const ROUND_TRIPS: u32 = 150;
/// Packets of them that each direction's entry carries on each node at least: all but the first ones and refreshes, and what a loaded
/// machine's OVS takes its time for.
const CARRIED: u64 = 60;

/// What the cache of each node holds.
pub(super) type Caches = BTreeMap<Node, Vec<Flow>>;

/// Who answered on the last connection: its way, its client's end, and what the server saw of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answered<'w> {
    pub(super) way: &'w Way,
    client: SocketAddr,
    seen: SocketAddr,
}

/// Judges the answers. None answered where the connection had to be refused, and was.
pub(super) fn answers<'w>(
    cell: &Cell,
    ways: &'w [Way],
    outcome: &Outcome,
    round_trips: u32,
) -> Result<Option<Answered<'w>>, String> {
    if ways.is_empty() {
        let refused = |talk: &Talk| talk.answer == Answer::Err("refused".into());
        let good = !outcome.talks.is_empty() && outcome.talks.iter().all(refused);
        return if good { Ok(None) } else { Err(format!("{}, not refused", said(outcome))) };
    }
    let expected = || {
        let ways = ways.iter().map(|way| format!("{} {}", way.endpoint.name(), way.seen));
        ways.collect::<Vec<_>>().join(" or ")
    };
    let mut answered: Vec<Answered<'_>> = Vec::new();
    for talk in &outcome.talks {
        let found = one(ways, talk).ok_or_else(|| format!("{}, not {}", said(outcome), expected()))?;
        answered.push(found);
    }
    if cell.kind.affinity && answered.windows(2).any(|pair| pair[0].way != pair[1].way) {
        return Err(format!("{}, not always the same", said(outcome)));
    }
    let Outcome { same, other, lost, last_other, .. } = outcome;
    // A datagram may be lost.
    let enough = if cell.udp { round_trips - round_trips / 10 } else { round_trips };
    if *same < enough || *other > 0 {
        let another = last_other.as_ref().map(|last| format!(" ({last})")).unwrap_or_default();
        return Err(format!(
            "{}: of {round_trips} round trips {same} had the same answer, {other} another{another}, {lost} none",
            said(outcome)
        ));
    }
    answered.pop().map(Some).ok_or_else(|| "no connection".to_owned())
}

/// The way that an answer tells.
fn one<'w>(ways: &'w [Way], talk: &Talk) -> Option<Answered<'w>> {
    let (Answer::Reply(text), Some(client)) = (&talk.answer, talk.from) else { return None };
    let (name, seen) = text.split_once(' ')?;
    let seen: SocketAddr = seen.parse().ok()?;
    let way = ways.iter().find(|way| way.endpoint.name() == name && way.seen == seen.ip())?;
    Some(Answered { way, client, seen })
}

/// The answers in words.
fn said(outcome: &Outcome) -> String {
    let words = outcome.talks.iter().map(|talk| match &talk.answer {
        Answer::Reply(text) => text.clone(),
        Answer::Err(why) => format!("{why} after {} tries", talk.tries),
    });
    let mut words: Vec<String> = words.collect();
    words.dedup();
    words.join(", then ")
}

impl Answered<'_> {
    /// Why the caches did not carry the last connection as they must, on any of its nodes.
    pub(super) fn wrong_speed(&self, udp: bool, caches: &Caches) -> Option<String> {
        self.wrong_from(0, None, udp, caches)
    }

    /// The same for this leg and those after it. `port`: the source's port after the leg before, where it is known.
    fn wrong_from(&self, number: usize, port: Option<u16>, udp: bool, caches: &Caches) -> Option<String> {
        let legs = &self.way.legs;
        let leg = legs.get(number)?;
        // The management port's client may have got another port from the node.
        let before = match number {
            0 if leg.from != Side::Management => Some(self.client.port()),
            _ if leg.anew => None,
            _ => port,
        };
        let after = (number + 1 == legs.len()).then_some(self.seen.port());
        let flows = caches.get(&leg.node).map(Vec::as_slice).unwrap_or_default();
        // Where the port is not known there may be several connections; that of this client has all the legs after this one.
        let candidates = match before {
            Some(_) => vec![before],
            None => Carried::ports(leg, udp, after, flows),
        };
        let mut wrong = None;
        for before in candidates {
            let carried = Carried::find(leg, udp, before, after, flows);
            let judged = if self.is_starved(leg) { None } else { carried.wrong(leg) };
            wrong = judged.or_else(|| self.wrong_from(number + 1, carried.port, udp, caches));
            if wrong.is_none() {
                break;
            }
        }
        wrong
    }
}

impl Answered<'_> {
    /// Whether all packets of the connection, which OVS sends back by the bridge's port, may use up that port's share of notes on this leg.
    fn is_starved(&self, leg: &Leg) -> bool {
        let by_bridge = leg.from == Side::Bridge || leg.to == Side::Bridge;
        by_bridge && !leg.back && self.way.legs.iter().any(|other| other.back && other.node == leg.node)
    }
}

/// What a node's cache carried of a leg.
struct Carried {
    there: u64,
    back: u64,
    /// The source's port afterwards.
    port: Option<u16>,
}

impl Carried {
    /// The source's ports of all connections that are carried there; unknown if there is none.
    fn ports(leg: &Leg, udp: bool, after: Option<u16>, flows: &[Flow]) -> Vec<Option<u16>> {
        let of_leg = |flow: &&Flow| {
            let (source, destination) = translated(flow);
            (flow.flow.protocol == CachedProtocol::Udp) == udp
                && flow.flow.source.ip() == leg.before.source
                && flow.flow.destination == leg.before.destination
                && (source.ip(), destination) == (leg.after.source, leg.after.destination)
                && after.is_none_or(|port| source.port() == port)
        };
        let ports: Vec<Option<u16>> =
            flows.iter().filter(of_leg).map(|flow| Some(flow.flow.source.port())).collect();
        if ports.is_empty() { vec![None] } else { ports }
    }

    /// Why the leg is not as fast as it must be, or not as slow.
    fn wrong(&self, leg: &Leg) -> Option<String> {
        let wrong = if leg.back {
            (self.there > 0 || self.back > 0).then_some("fast, though sent back,")
        } else {
            (self.there < CARRIED || self.back < CARRIED).then_some("not fast")
        };
        let place = format!("{} {:?} to {:?}", leg.node.name(), leg.from, leg.to);
        wrong.map(|wrong| format!("{wrong} on {place}: {} packets there and {} back", self.there, self.back))
    }

    /// `before` and `after`: the source's port, where it is known.
    fn find(leg: &Leg, udp: bool, before: Option<u16>, after: Option<u16>, flows: &[Flow]) -> Self {
        let matches = |end: SocketAddr, ip: IpAddr, port: Option<u16>| {
            end.ip() == ip && port.is_none_or(|port| end.port() == port)
        };
        let of_protocol = |flow: &&Flow| (flow.flow.protocol == CachedProtocol::Udp) == udp;
        let there = flows.iter().filter(of_protocol).filter(|flow| {
            let (source, destination) = translated(flow);
            matches(flow.flow.source, leg.before.source, before)
                && flow.flow.destination == leg.before.destination
                && matches(source, leg.after.source, after)
                && destination == leg.after.destination
        });
        let back = flows.iter().filter(of_protocol).filter(|flow| {
            let (source, destination) = translated(flow);
            flow.flow.source == leg.after.destination
                && matches(flow.flow.destination, leg.after.source, after)
                && source == leg.before.destination
                && matches(destination, leg.before.source, before)
        });
        let there = there.max_by_key(|flow| flow.packets);
        Self {
            there: there.map_or(0, |flow| flow.packets),
            back: back.map(|flow| flow.packets).max().unwrap_or_default(),
            port: there.map(|flow| translated(flow).0.port()),
        }
    }
}

/// Source and destination after OVS.
fn translated(flow: &Flow) -> (SocketAddr, SocketAddr) {
    flow.translated.map_or((flow.flow.source, flow.flow.destination), |to| (to.source, to.destination))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cell::{Backends, Client, Kind, Target};
    use super::super::oracle::ways;
    use super::super::world::tests::world;
    use super::*;

    const FREE: Kind =
        Kind { backends: Backends::Pod, external_local: false, internal_local: false, affinity: false };

    fn cell(kind: Kind) -> Cell {
        Cell { client: Client::Outside, target: Target::NodePort(Node::N1), kind, udp: false, six: false }
    }

    fn outcome(answers: &[&str]) -> Outcome {
        let talk = |text: &&str| Talk {
            from: Some("172.18.0.1:4000".parse().unwrap()),
            answer: match text.strip_prefix("ERR ") {
                Some(why) => Answer::Err(why.into()),
                None => Answer::Reply((*text).into()),
            },
            tries: 1,
        };
        Outcome { talks: answers.iter().map(talk).collect(), same: 100, ..Outcome::default() }
    }

    const A: &str = "pod-n1:7300 100.64.0.2:4001";
    const B: &str = "pod-n1:7301 100.64.0.2:4001";

    #[test]
    fn each_endpoint_may_answer_and_with_affinity_one_alone() {
        let free = cell(FREE);
        let free_ways = ways(&free, &world());
        assert!(answers(&free, &free_ways, &outcome(&[A, B]), 100).is_ok());
        let sticky = cell(Kind { affinity: true, ..FREE });
        let sticky_ways = ways(&sticky, &world());
        assert!(answers(&sticky, &sticky_ways, &outcome(&[A, A]), 100).is_ok());
        let error = answers(&sticky, &sticky_ways, &outcome(&[A, B]), 100).unwrap_err();
        assert!(error.contains("not always the same"), "{error}");
    }

    #[test]
    fn another_client_another_backend_and_no_answer_are_wrong() {
        let cell = cell(FREE);
        let ways = ways(&cell, &world());
        for wrong in [
            "pod-n1:7300 172.18.0.1:4001",
            "pod-n1:7302 100.64.0.2:4001",
            "pod-n2:7300 100.64.0.2:4001",
            "ERR timed out",
            "ERR refused",
        ] {
            let error = answers(&cell, &ways, &outcome(&[A, wrong]), 100).unwrap_err();
            assert!(error.contains("pod-n1:7300 100.64.0.2 or pod-n1:7301"), "{error}");
        }
        let strayed = Outcome { same: 99, other: 1, ..outcome(&[A]) };
        assert!(answers(&cell, &ways, &strayed, 100).is_err());
        assert!(answers(&cell, &ways, &outcome(&[]), 100).is_err(), "nothing is not good");
    }

    #[test]
    fn refused_is_neither_silence_nor_an_answer() {
        let kind = Kind { external_local: true, ..FREE };
        let cell = Cell { target: Target::NodePort(Node::N2), ..cell(kind) };
        let ways = ways(&cell, &world());
        assert_eq!(answers(&cell, &ways, &outcome(&["ERR refused"]), 0), Ok(None));
        for wrong in [A, "ERR timed out", "ERR reset"] {
            assert!(answers(&cell, &ways, &outcome(&[wrong]), 0).is_err(), "{wrong}");
        }
    }

    fn flow(protocol: &str, from: [&str; 2], to: [&str; 2], packets: u64) -> Flow {
        serde_json::from_value(json!({
            "endpoint": "breth0", "pod": null, "protocol": protocol, "source": from[0], "destination": from[1],
            "translated": {"source": to[0], "destination": to[1]},
            "action": {"kind": "local", "to": "x", "pod": null}, "ttlStep": 1, "epoch": 1, "valid": true,
            "waiting": false, "diverged": false, "probing": false, "ageMs": 1, "refreshInMs": 1, "packets": packets,
        }))
        .unwrap()
    }

    fn caches(protocol: &str, packets: [u64; 2]) -> Caches {
        let outer = ["172.18.0.1:4000", "172.18.0.2:31300"];
        let inner = ["100.64.0.2:4001", "10.244.0.3:7300"];
        let back = |pair: [&'static str; 2]| [pair[1], pair[0]];
        let flows = vec![
            flow(protocol, outer, inner, packets[0]),
            flow(protocol, back(inner), back(outer), packets[1]),
            // Another connection's.
            flow(protocol, ["172.18.0.1:4009", outer[1]], ["100.64.0.2:4009", inner[1]], 900),
        ];
        [(Node::N1, flows)].into()
    }

    #[test]
    fn fast_is_both_directions_of_this_connection() {
        let cell = cell(FREE);
        let ways = ways(&cell, &world());
        let answered = answers(&cell, &ways, &outcome(&[A]), 100).unwrap().unwrap();
        assert_eq!(answered.wrong_speed(false, &caches("tcp", [95, 95])), None);
        for packets in [[95, 0], [0, 95], [95, 40]] {
            let wrong = answered.wrong_speed(false, &caches("tcp", packets)).unwrap();
            assert!(wrong.contains("not fast on n1"), "{wrong}");
        }
        assert!(answered.wrong_speed(false, &caches("udp", [95, 95])).is_some(), "the other protocol's");
        assert!(answered.wrong_speed(false, &Caches::new()).is_some());
    }

    #[test]
    fn what_is_never_learned_must_not_be_fast() {
        let cell = Cell { udp: true, ..cell(FREE) };
        let mut ways = ways(&cell, &world());
        ways.iter_mut().flat_map(|way| &mut way.legs).for_each(|leg| leg.back = true);
        let answered = answers(&cell, &ways, &outcome(&[A]), 100).unwrap().unwrap();
        assert_eq!(answered.wrong_speed(true, &caches("udp", [0, 0])), None);
        let wrong = answered.wrong_speed(true, &caches("udp", [95, 95])).unwrap();
        assert!(wrong.contains("fast, though sent back, on n1"), "{wrong}");
    }

    #[test]
    fn behind_a_port_that_the_node_chose_the_connection_is_the_one_that_has_all_legs() {
        let local = super::super::world::World { local_gateway: true, ..world() };
        let cell = Cell {
            client: Client::FarPod,
            target: Target::ClusterIp,
            ..cell(Kind { backends: Backends::Host, ..FREE })
        };
        let ways = ways(&cell, &local);
        let mut seen = outcome(&["host-n1:7300 172.18.0.3:5001"]);
        seen.talks[0].from = Some("10.244.1.4:4000".parse().unwrap());
        let answered = answers(&cell, &ways, &seen, 100).unwrap().unwrap();
        let one = |client: &str, packets| {
            let ends = [client, "172.18.0.2:7300"];
            [flow("tcp", ends, ends, packets), flow("tcp", [ends[1], client], [ends[1], client], packets)]
        };
        // The other connection has more packets, and is not the one that the server saw.
        let service = local.cluster(&cell).to_string();
        let (asked, sent) = (["10.244.1.4:4000", service.as_str()], ["10.244.1.4:4000", "172.18.0.2:7300"]);
        let back = |ends: [&'static str; 2]| [ends[1], ends[0]];
        let pod = [flow("tcp", asked, sent, 95), flow("tcp", back(sent), [service.as_str(), asked[0]], 95)];
        let n2 = [pod, one("172.18.0.3:5002", 900), one("172.18.0.3:5001", 95)].concat();
        let n1 = one("172.18.0.3:5001", 95).to_vec();
        let all: Caches = [(Node::N1, n1), (Node::N2, n2.clone())].into();
        assert_eq!(answered.wrong_speed(false, &all), None);
        let lacking: Caches = [(Node::N1, one("172.18.0.3:5002", 900).to_vec()), (Node::N2, n2)].into();
        assert!(answered.wrong_speed(false, &lacking).is_some());
    }
}

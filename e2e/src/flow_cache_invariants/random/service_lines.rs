//! What was to be of one flow to a service when, and whether its arrivals were so. Pure. Times are nanoseconds of one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::model::{Model, Protocol};
use super::services::{Client, Expect, ServiceFlow};
use super::timeline::{Outcome, Rule, Timeline, Times, Violation, Window};
use super::{packet_times, times};
use crate::flow_cache_invariants::nanos;
use testbed::tools::load::{Arrival, PORTS};

/// A pod by its number, and the port there.
pub(super) type Backend = (usize, u16);

/// How late a UDP packet may reach a backend that is gone. Nothing ends a UDP connection but OVN, and the agent after it in rounds
/// of which the second comes after 2 s, and the third after 4 s.
const STALE: Duration = Duration::from_secs(5);
/// As [`STALE`], where OVS has followed late, as ovn-controller or vswitchd was away, or an agent was.
const STALE_RESTART: Duration = Duration::from_secs(10);
/// A connection attempt lasts so long at most, and is begun before its packets are sent.
const ATTEMPT: Duration = Duration::from_millis(300);

/// What the oracle says of a flow at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdicts {
    expects: Expect,
    /// Where a new connection may be given to.
    serves: BTreeSet<Backend>,
    /// The pods that policies let it reach.
    admits: BTreeSet<usize>,
    /// Which client each of them may see.
    shows: BTreeSet<IpAddr>,
}

impl Verdicts {
    pub(super) fn of(model: &Model, flow: &ServiceFlow, addresses: &[String]) -> Self {
        let port = model.backend_port(flow.service);
        Self {
            expects: model.expects(flow),
            serves: model.serves(flow).into_iter().map(|pod| (pod, port)).collect(),
            admits: (0..model.pods.len()).filter(|&pod| model.admits(flow, pod)).collect(),
            shows: model.shows(flow, addresses),
        }
    }
}

/// How verdicts are carried out now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// After a change of policies.
    pub(super) bound: u64,
    pub(super) recover: u64,
    /// Every agent sees what changes.
    pub(super) well: bool,
    /// OVS or an agent was away since the last change.
    pub(super) late: bool,
}

impl Bounds {
    pub(super) fn new(bound: Duration, recover: Duration, well: bool) -> Self {
        Self { bound: nanos(bound), recover: nanos(recover), well, late: false }
    }
}

/// The rules for a flow over time.
#[derive(Clone, Debug)]
pub(super) struct ServiceLines {
    udp: bool,
    /// The client, if it is a pod. To itself it has an address of OVN's (`hairpin_snat_ip`).
    client: Option<usize>,
    pods: usize,
    goes_on: Timeline,
    serves: BTreeMap<Backend, Timeline>,
    admits: BTreeMap<usize, Timeline>,
    /// From when on a new connection shows which client; none: either of two.
    shows: Vec<(u64, Option<BTreeSet<IpAddr>>)>,
}

/// Where something arrived: number of the pod, and what.
pub(super) type Arrived = (usize, Arrival);

impl ServiceLines {
    pub(super) fn new(flow: &ServiceFlow, pods: usize) -> Self {
        Self {
            udp: flow.protocol == Protocol::Udp,
            client: if let Client::Pod(pod) = flow.client { Some(pod) } else { None },
            pods,
            goes_on: Timeline::default(),
            serves: BTreeMap::new(),
            admits: BTreeMap::new(),
            shows: Vec::new(),
        }
    }

    /// Moves its times to another clock.
    pub(super) fn retime(&mut self, clock: &impl Fn(u64) -> u64) {
        self.goes_on.retime(clock);
        self.serves.values_mut().chain(self.admits.values_mut()).for_each(|line| line.retime(clock));
        self.shows.iter_mut().for_each(|(from, _)| *from = clock(*from));
    }

    fn backends(&self) -> impl Iterator<Item = Backend> + use<> {
        (0..self.pods).flat_map(|pod| PORTS.map(|port| (pod, port)))
    }

    /// An agent goes away: until it is back, UDP may stay with any backend that goes, or went just now.
    pub(super) fn leave_alone(&mut self, at: u64, change: usize) {
        if !self.udp {
            return;
        }
        self.goes_on.set(at, Rule::Either, change);
        for backend in self.backends() {
            self.serves.entry(backend).or_default().set(at, Rule::Either, change);
        }
    }

    /// A change begins: what may be different after it is open until then. `disturbed`: everything may.
    pub(super) fn open(
        &mut self,
        at: u64,
        before: &Verdicts,
        after: &Verdicts,
        disturbed: bool,
        change: usize,
    ) {
        // TCP stays where it is; UDP is to leave a backend that is gone.
        let moves = self.udp && !before.serves.is_subset(&after.serves);
        if disturbed || before.expects != after.expects || moves {
            self.goes_on.set(at, Rule::Either, change);
        }
        // A connection that was begun before may send its first packet after.
        let from = if self.udp { at } else { at.saturating_sub(nanos(ATTEMPT)) };
        for backend in self.backends() {
            if disturbed || before.serves.contains(&backend) != after.serves.contains(&backend) {
                self.serves.entry(backend).or_default().set(from, Rule::Either, change);
            }
        }
        for pod in 0..self.pods {
            if disturbed || before.admits.contains(&pod) != after.admits.contains(&pod) {
                self.admits.entry(pod).or_default().set(at, Rule::Either, change);
            }
        }
        if disturbed || before.shows != after.shows {
            let from = at.saturating_sub(nanos(ATTEMPT));
            // What was to hold from later on is open too; they stay in order of time.
            while self.shows.pop_if(|(since, _)| *since > from).is_some() {}
            self.shows.push((from, None));
        }
    }

    /// From now on this holds.
    pub(super) fn settle(&mut self, at: u64, verdicts: &Verdicts, bounds: Bounds, change: usize) {
        let Bounds { bound, recover, well, late } = bounds;
        let stale = nanos(if late { STALE_RESTART } else { STALE });
        // Only the agent ends UDP connections to what is gone when OVN could not.
        let may_stay = self.udp && !well;
        match verdicts.expects {
            Expect::GoesOn if may_stay && self.goes_on.is_open() => {}
            Expect::GoesOn => {
                let recover = if self.udp { recover.max(stale + recover / 2) } else { recover };
                self.goes_on.set(at, Rule::Allowed { recover }, change);
            }
            // Established TCP connections may stay with a backend that is gone.
            Expect::Nothing | Expect::Depends => self.goes_on.set(at, Rule::Either, change),
        }
        let by = if self.udp { stale } else { bound + nanos(ATTEMPT) };
        for backend in self.backends() {
            let line = self.serves.entry(backend).or_default();
            if verdicts.serves.contains(&backend) {
                line.set(at, Rule::Either, change);
            } else if !(may_stay && line.is_open()) {
                line.set(at, Rule::Denied { bound: by }, change);
            }
        }
        for pod in 0..self.pods {
            let denied = Rule::Denied { bound };
            let rule = if verdicts.admits.contains(&pod) { Rule::Either } else { denied };
            self.admits.entry(pod).or_default().set(at, rule, change);
        }
        if self.shows.last().is_none_or(|(_, last)| last.as_ref() != Some(&verdicts.shows)) {
            // On a node's own port, what came before the service was made goes by the gateway router until it is ended.
            let after = if self.udp { stale } else { bound };
            let from = if self.shows.is_empty() { 0 } else { at.saturating_add(after) };
            self.shows.push((from, Some(verdicts.shows.clone())));
        }
    }

    /// Judges arrivals, in order of time.
    pub(super) fn judge(&self, arrived: &[Arrived], end: u64, gap: u64, windows: &[Window]) -> Judged {
        let all: Vec<Arrival> = arrived.iter().map(|(_, arrival)| *arrival).collect();
        let mut judged = Judged::default();
        judged.add(self.goes_on.judge(&packet_times(&all, self.udp), end, gap, windows), "it", None);
        for (&(pod, port), line) in &self.serves {
            let there = arrived.iter().filter(|(at, arrival)| (*at, arrival.port) == (pod, port));
            let seen: Times = if self.udp {
                times(&there.map(|(_, arrival)| *arrival).collect::<Vec<_>>(), true)
            } else {
                let began: BTreeSet<u64> = there.map(|(_, arrival)| arrival.began).collect();
                began.into_iter().collect::<Vec<_>>().into()
            };
            judged.add(line.judge(&seen, end, gap, windows), "no backend", Some(pod));
        }
        for (&pod, line) in &self.admits {
            let there: Vec<Arrival> =
                arrived.iter().filter(|(at, _)| *at == pod).map(|(_, arrival)| *arrival).collect();
            judged.add(
                line.judge(&packet_times(&there, self.udp), end, gap, windows),
                "denied by policy",
                Some(pod),
            );
        }
        let strangers = arrived.iter().filter(|(at, _)| Some(*at) != self.client);
        judged.strangers = strangers.filter_map(|(_, arrival)| self.stranger(arrival)).collect();
        judged.packets = all.len();
        judged
    }

    /// If the client's address is not as it should be.
    fn stranger(&self, arrival: &Arrival) -> Option<Stranger> {
        // UDP may be translated anew while its socket lives, as when its service is deleted and made again.
        let time = if self.udp { arrival.at } else { arrival.began };
        let at = self.shows.partition_point(|(from, _)| *from <= time);
        let (_, wanted) = self.shows.get(at.checked_sub(1)?)?;
        let wanted = wanted.as_ref().filter(|wanted| !wanted.contains(&arrival.from))?;
        let wanted = *wanted.first()?;
        Some(Stranger { began: arrival.began, at: arrival.at, seen: arrival.from, wanted })
    }
}

/// A message that shows another client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    /// Times of its connection's beginning, and of its arrival.
    pub(super) began: u64,
    pub(super) at: u64,
    pub(super) seen: IpAddr,
    pub(super) wanted: IpAddr,
}

/// What came of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    /// With the pod, and what it was to the flow.
    pub(super) violations: Vec<(&'static str, Option<usize>, Violation)>,
    pub(super) strangers: Vec<Stranger>,
    pub(super) packets: usize,
    pub(super) slipped: usize,
    pub(super) denied: u64,
    pub(super) allowed: u64,
}

impl Judged {
    fn add(&mut self, outcome: Outcome, what: &'static str, pod: Option<usize>) {
        self.violations.extend(outcome.violations.into_iter().map(|violation| (what, pod, violation)));
        self.slipped += outcome.slipped;
        self.denied += outcome.denied;
        self.allowed += outcome.allowed;
    }
}

#[cfg(test)]
mod tests {
    use super::super::services::Way;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn verdicts(serves: &[usize]) -> Verdicts {
        Verdicts {
            expects: Expect::GoesOn,
            serves: serves.iter().map(|&pod| (pod, PORTS[0])).collect(),
            admits: [0, 1, 2].into(),
            shows: [[10, 0, 0, 1].into()].into(),
        }
    }

    fn lines(protocol: Protocol, well: bool) -> ServiceLines {
        let flow = ServiceFlow { client: Client::Outside, service: 0, way: Way::ClusterIp, protocol };
        let mut lines = ServiceLines::new(&flow, 3);
        let bounds = |well| Bounds { bound: SECOND, recover: 2 * SECOND, well, late: false };
        let (before, after) = (verdicts(&[0, 1]), verdicts(&[1]));
        lines.settle(0, &before, bounds(true), 0);
        lines.open(10 * SECOND, &before, &after, false, 1);
        lines.settle(11 * SECOND, &after, bounds(well), 1);
        lines
    }

    fn arrived(pod: usize, began: u64, from: u64, to: u64) -> impl Iterator<Item = Arrived> {
        (from..to).map(move |tenth| {
            let at = tenth * SECOND / 10;
            let from = IpAddr::from([10, 0, 0, 1]);
            (pod, Arrival { flow: 0, number: 0, sent: at, began: began * SECOND, at, from, port: PORTS[0] })
        })
    }

    fn judge(lines: &ServiceLines, arrived: impl Iterator<Item = Arrived>) -> Judged {
        lines.judge(&arrived.collect::<Vec<_>>(), 30 * SECOND, SECOND, &[])
    }

    #[test]
    fn what_a_node_lets_pass_between_the_end_of_its_ovn_controller_and_its_next_start_is_open() {
        let judged = |ended: bool| {
            let mut lines = lines(Protocol::Udp, true);
            let after = Verdicts { admits: [0, 2].into(), ..verdicts(&[0, 1]) };
            lines.open(12 * SECOND, &verdicts(&[1]), &after, false, 2);
            lines.settle(
                13 * SECOND,
                &after,
                Bounds { bound: SECOND, recover: 2 * SECOND, well: true, late: false },
                2,
            );
            if ended {
                // It is noticed with the next change, at 22 s, and may have been at any time since this one began.
                lines.open(20 * SECOND, &after, &after, true, 3);
                lines.settle(
                    22 * SECOND,
                    &after,
                    Bounds { bound: SECOND, recover: 2 * SECOND, well: true, late: true },
                    3,
                );
            }
            let denied = judge(&lines, arrived(1, 0, 204, 215)).violations;
            denied.iter().filter(|(what, pod, _)| (*what, *pod) == ("denied by policy", Some(1))).count()
        };
        assert_eq!((judged(false), judged(true)), (1, 0));
    }

    #[test]
    fn an_established_tcp_connection_may_stay_and_a_new_one_may_not() {
        let lines = lines(Protocol::Tcp, true);
        assert!(judge(&lines, arrived(0, 0, 10, 300)).violations.is_empty());
        let new = judge(&lines, arrived(0, 20, 10, 300));
        assert_eq!(new.violations.len(), 1);
        assert_eq!(new.violations[0].1, Some(0));
    }

    #[test]
    fn udp_leaves_a_backend_that_is_gone_unless_no_agent_is_there_to_end_it() {
        let stays = || arrived(0, 0, 10, 300);
        assert_eq!(judge(&lines(Protocol::Udp, true), stays()).violations.len(), 1);
        assert!(judge(&lines(Protocol::Udp, false), stays()).violations.is_empty());
        let moves = arrived(0, 0, 10, 120).chain(arrived(1, 0, 125, 300));
        assert!(judge(&lines(Protocol::Udp, true), moves).violations.is_empty());
    }

    #[test]
    fn an_arrival_at_a_pod_that_is_no_backend_and_a_wrong_client_are_seen() {
        let lines = lines(Protocol::Udp, true);
        let good = || arrived(1, 0, 10, 300);
        assert!(judge(&lines, good()).violations.is_empty());
        let mut wrong: Vec<Arrived> = good().chain(arrived(2, 0, 200, 201)).collect();
        wrong.sort_by_key(|(_, arrival)| arrival.at);
        let seen = judge(&lines, wrong.into_iter());
        assert_eq!(seen.violations.len(), 1);
        let other = good().map(|(pod, arrival)| (pod, Arrival { from: [10, 0, 0, 2].into(), ..arrival }));
        assert!(!judge(&lines, other).strangers.is_empty());
    }

    #[test]
    fn a_silence_is_seen() {
        let lines = lines(Protocol::Tcp, true);
        let silent = arrived(1, 0, 10, 200).chain(arrived(1, 0, 250, 300));
        assert_eq!(judge(&lines, silent).violations.len(), 1);
    }
}

//! Flows to services under random changes: what is to be of them, and what came of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::change::Change;
use super::model::{Model, OPEN, Protocol};
use super::service_lines::{Arrived, Backend, Bounds, ServiceLines, Stranger, Verdicts};
use super::services::{Client, LOCAL, SERVICES, ServiceFlow, Way};
use super::timeline::{Violation, Window};
use super::{SERVICE_FLOWS, verdict};
use crate::flow_cache_invariants::{Stage, ms};
use crate::random::Random;
use testbed::loader::Received;
use testbed::tools::load::{Arrival, now};
use testbed::ui::say;

/// How long affinity takes to be learned.
const SETTLED: u64 = 700_000_000;

/// One of so many connections may be given to another backend than affinity says.
const MOVED: usize = 20;

/// Random clients, services and ways.
pub(super) fn draw_flows(random: &mut Random, model: &Model, nodes: usize) -> Vec<ServiceFlow> {
    let pods: Vec<usize> = (0..model.pods.len()).filter(|&pod| model.pods[pod].role.is_some()).collect();
    let open: Vec<usize> = pods.iter().copied().filter(|&pod| model.pods[pod].role == Some(OPEN)).collect();
    let mut flows: Vec<ServiceFlow> = Vec::new();
    let mut protocol = Protocol::Tcp;
    while flows.len() < SERVICE_FLOWS {
        let (service, node) = (random.below(SERVICES), random.below(nodes));
        let client = match random.below(8) {
            0 | 1 => Client::Pod(random.pick(&open).copied().unwrap_or_default()),
            2 | 3 => Client::Pod(random.pick(&pods).copied().unwrap_or_default()),
            4 | 5 => Client::Node(random.below(nodes)),
            _ => Client::Outside,
        };
        let way = match (client, random.below(3)) {
            // With policy Local the node asks as nftables has it: elsewhere if there is nothing here.
            (Client::Node(_), _) if service == LOCAL => Way::ClusterIp,
            // And a pod at another node is outside to that one.
            (Client::Pod(_), 2) if service == LOCAL => Way::ExternalIp,
            (Client::Node(own), 2) => Way::NodePort(own),
            (Client::Outside, 0) | (_, 2) => Way::NodePort(node),
            (Client::Outside, _) | (_, 1) => Way::ExternalIp,
            _ => Way::ClusterIp,
        };
        let flow = ServiceFlow { client, service, way, protocol };
        if !flows.contains(&flow) {
            flows.push(flow);
            protocol = if protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
        }
    }
    flows
}

/// A stretch of time in which nothing happened to a service with affinity.
#[derive(Clone, Copy, Debug)]
struct Still {
    service: usize,
    from: u64,
    to: u64,
}

/// The flows, and what is to be of them.
pub(super) struct ServicePlay<'a> {
    flows: &'a [ServiceFlow],
    /// Number of the first of them.
    first: usize,
    lines: Vec<ServiceLines>,
    last: Vec<Verdicts>,
    /// Every agent saw what changed, at the last change.
    well: bool,
    /// Since when nothing happened to each service that has affinity.
    still_since: Vec<Option<u64>>,
    still: Vec<Still>,
}

impl<'a> ServicePlay<'a> {
    pub(super) fn new(flows: &'a [ServiceFlow], first: usize, model: &Model, addresses: &[String]) -> Self {
        Self {
            flows,
            first,
            lines: flows.iter().map(|flow| ServiceLines::new(flow, model.pods.len())).collect(),
            last: flows.iter().map(|flow| Verdicts::of(model, flow, addresses)).collect(),
            still_since: vec![None; model.services.len()],
            still: Vec::new(),
            well: true,
        }
    }

    /// A change begins.
    pub(super) fn open(
        &mut self,
        before: &Model,
        after: &Model,
        addresses: &[String],
        change: &Change,
        number: usize,
    ) {
        let at = now();
        for ((flow, line), last) in self.flows.iter().zip(&mut self.lines).zip(&self.last) {
            let disturbed = change.disturbs_service(flow, before) || change.disturbs_service(flow, after);
            line.open(at, last, &Verdicts::of(after, flow, addresses), disturbed, number);
        }
        if matches!(change, Change::AgentDown { .. }) {
            self.lines.iter_mut().for_each(|line| line.leave_alone(at, number));
        }
        let restart = matches!(change, Change::RestartController { .. } | Change::RestartSwitch { .. });
        for service in 0..self.still_since.len() {
            let touched = change.service() == Some(service)
                || restart
                || matches!(change, Change::ReplacePod { pod, .. }
                    if before.services[service].backends.contains(pod));
            if touched {
                self.stir(service, at);
            }
        }
    }

    fn stir(&mut self, service: usize, to: u64) {
        if let Some(from) = self.still_since[service].take() {
            self.still.push(Still { service, from, to });
        }
    }

    /// Everything on these nodes may have been different since `at`, when the last change began.
    pub(super) fn disturb(&mut self, nodes: &BTreeSet<usize>, model: &Model, at: u64, number: usize) {
        for ((flow, line), last) in self.flows.iter().zip(&mut self.lines).zip(&self.last) {
            let hit = nodes.iter().any(|&node| model.goes_through(flow, node));
            line.open(at, last, last, hit, number);
        }
        for service in 0..self.still_since.len() {
            self.stir(service, at);
        }
    }

    /// From now on this holds.
    pub(super) fn settle(&mut self, model: &Model, addresses: &[String], bounds: Bounds, number: usize) {
        let at = now();
        let bounds = Bounds { late: bounds.late || !self.well, ..bounds };
        self.well = bounds.well;
        self.last = self.flows.iter().map(|flow| Verdicts::of(model, flow, addresses)).collect();
        for (line, verdicts) in self.lines.iter_mut().zip(&self.last) {
            line.settle(at, verdicts, bounds, number);
        }
        for (service, since) in self.still_since.iter_mut().enumerate() {
            let state = &model.services[service];
            if state.live && state.affinity && since.is_none() {
                *since = Some(at);
            }
        }
    }

    /// Moves its times to another clock.
    pub(super) fn retime(&mut self, clock: &impl Fn(u64) -> u64) {
        self.lines.iter_mut().for_each(|line| line.retime(clock));
        self.still_since.iter_mut().flatten().for_each(|from| *from = clock(*from));
        for still in &mut self.still {
            (still.from, still.to) = (clock(still.from), clock(still.to));
        }
    }

    /// Judges what arrived. The flows' numbers come after those of the flows between pods.
    pub(super) fn judge(
        &self,
        model: &Model,
        arrivals: &BTreeMap<u32, Vec<Received>>,
        (end, gap): (u64, u64),
        windows: &[Window],
        change: impl Fn(usize) -> String,
    ) -> Result<Report> {
        let mut report = Report::default();
        let pod = |name: &str| model.pods.iter().position(|pod| pod.name == name);
        // By stretch and flow: when connections were begun, and where they came.
        let mut sticky: BTreeMap<(usize, ServiceFlow), (BTreeSet<u64>, BTreeSet<Backend>)> = BTreeMap::new();
        let mut still = self.still.clone();
        let open = self.still_since.iter().enumerate();
        still.extend(open.filter_map(|(service, from)| Some(Still { service, from: (*from)?, to: end })));
        for (number, (flow, line)) in self.flows.iter().zip(&self.lines).enumerate() {
            let number = u32::try_from(self.first + number)?;
            let list = arrivals.get(&number).map(Vec::as_slice).unwrap_or_default();
            let arrived: Vec<Arrived> =
                list.iter().filter_map(|(by, arrival)| Some((pod(by)?, *arrival))).collect();
            if arrived.len() < list.len() {
                report.leaks.push(format!("{flow}: something arrived on a host"));
            }
            let judged = line.judge(&arrived, end, gap, windows);
            for (what, at, violation) in judged.violations {
                let place =
                    at.map_or_else(String::new, |pod| format!(" at {}, {what}", model.pods[pod].name));
                match violation {
                    Violation::Leak { change: by, packets, first, last, .. } => report.leaks.push(format!(
                        "{flow}: {packets} arrived{place} {} to {} ms after {}",
                        ms(first),
                        ms(last),
                        change(by)
                    )),
                    Violation::Silence { change: by, at, lasted } => report.silences.push(format!(
                        "{flow}: nothing for {} ms from {} ms after {}",
                        ms(lasted),
                        ms(at),
                        change(by)
                    )),
                }
            }
            report.strangers.extend(strange(flow, &judged.strangers, windows, &change));
            report.packets += judged.packets;
            report.slipped += judged.slipped;
            report.denied += judged.denied;
            report.allowed += judged.allowed;
            // To OVN every packet of UDP that is never answered is a new connection's, and may learn another backend.
            let asks = |still: &Still| flow.protocol == Protocol::Tcp && still.service == flow.service;
            for (at, still) in still.iter().enumerate().filter(|(_, still)| asks(still)) {
                // OVN learns by the first, and does so beside the packets.
                let begun =
                    arrived.iter().map(|(_, arrival)| arrival.began).filter(|began| *began >= still.from);
                let inside = begun.min().map_or(still.to, |first| first + SETTLED)..still.to;
                let of = |arrival: &Arrival| inside.contains(&arrival.began) && arrival.at < still.to;
                let to = arrived.iter().filter(|(_, arrival)| of(arrival));
                let (connections, backends) = sticky.entry((at, *flow)).or_default();
                for (pod, arrival) in to {
                    connections.insert(arrival.began);
                    backends.insert((*pod, arrival.port));
                }
            }
        }
        for ((_, flow), (connections, backends)) in &sticky {
            report.sticky += connections.len().saturating_sub(1);
            report.moved += backends.len().saturating_sub(1);
            if backends.len() > 1 {
                report.unfaithful.push(format!("{flow}: went to {backends:?}"));
            }
        }
        Ok(report)
    }
}

/// What there is to say of messages that show another client than they should.
fn strange(
    flow: &ServiceFlow,
    all: &[Stranger],
    windows: &[Window],
    change: &impl Fn(usize) -> String,
) -> Option<String> {
    let (first, last) = (all.first()?, all.last()?);
    let before = windows.partition_point(|window| window.from <= first.at);
    Some(format!(
        "{flow}: {} from {}, not {}: a connection that was {} ms old, and the last {} ms later; the change before: {}",
        all.len(),
        first.seen,
        first.wanted,
        ms(first.at.saturating_sub(first.began)),
        ms(last.at.saturating_sub(first.at)),
        change(before)
    ))
}

/// What came of all flows to services.
#[derive(Debug, Default)]
pub(super) struct Report {
    packets: usize,
    slipped: usize,
    denied: u64,
    allowed: u64,
    /// Connections that had to be given to the backend of the one before.
    sticky: usize,
    /// How often they were not.
    moved: usize,
    leaks: Vec<String>,
    silences: Vec<String>,
    strangers: Vec<String>,
    unfaithful: Vec<String>,
}

impl Report {
    pub(super) fn report(self, stage: &mut Stage<'_>) {
        say(format_args!(
            "services: {} packets arrived, {} slipped; backends were watched for {} s while denied, flows for {} s while allowed, \
             {} connections that affinity holds",
            self.packets,
            self.slipped,
            self.denied / 1_000_000_000,
            self.allowed / 1_000_000_000,
            self.sticky
        ));
        let seed = stage.seed;
        let enough = (self.packets > 0 && self.denied > 0 && self.allowed > 0).then(String::new);
        stage.checks.check("services: packets reach backends only", verdict(self.leaks, seed));
        stage.checks.check("services: what has a backend goes on", verdict(self.silences, seed));
        stage.checks.check("services: backends see the right client", verdict(self.strangers, seed));
        // OVN 25.03 learns beside the packets, and learns anew when ovn-controller rewrites its flows: with any datapath, now and then a
        // client gets another backend.
        let text = format!("{} of {} connections went to another backend", self.moved, self.sticky);
        let kept = self.moved * MOVED <= self.sticky || self.moved <= 1;
        let outcome = if kept { Ok(text) } else { verdict(self.unfaithful, seed).and(Err(text)) };
        stage.checks.check("services: affinity keeps clients", outcome);
        stage.checks.check("services: there was traffic", enough.ok_or("there was nothing to see".into()));
    }
}

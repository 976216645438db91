//! Law 1 and 3: pods with long-lived flows between them, and one random change after another. An oracle says of each flow whether it
//! may pass. Nothing that it denies arrives later than a bound after the change was in force, and everything that it allows continues.
//!
//! A change is in force when the rows that it leads to are in the northbound database and every ovn-controller has
//! reported that its OVS carries them out. So the bound is about the data path, and not about the API server.

mod act;
mod change;
mod model;
mod nb;
mod nb_services;
mod service_act;
mod service_lines;
mod service_play;
mod services;
mod stalls;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::load_pods::LoadPods;
use super::{Stage, ms, nanos};
use crate::random::Random;
use act::Act;
use change::{Change, KINDS, Source};
use model::{Flow, Model, Protocol};
use service_lines::Bounds;
use service_play::ServicePlay;
use stalls::{Stalls, Watch};
use testbed::loader::Received;
use testbed::tools::load::{Arrival, now};
use testbed::ui::say;
use timeline::{Outcome, Rule, Tail, Timeline, Times, Transit, Violation, Window};

/// How late a packet may arrive after a change that denies it is in force. The agent takes a few milliseconds (the no-learn
/// window is 20), OVS's own revalidation as long, and this machine's load the rest.
const BOUND: Duration = Duration::from_millis(300);
/// The bound while an agent is down: refresh 2 s, slack 200 ms, grace 200 ms, and the machine's load.
const BOUND_WITHOUT_AGENT: Duration = Duration::from_millis(2400 + 300);
/// How long after a change a packet may slip through between two flows that OVN rewrites, and how many.
const SLIP: Duration = Duration::from_millis(100);
const SLIPPED: usize = 6;
/// A message that waited for so long was lost before, and what TCP sends after a loss is one burst. The tail loss probe
/// comes two round trips and two jiffies after the last segment (RFC 8985, section 7), long before `TCP_RTO_MIN`.
const LOST: Duration = Duration::from_millis(40);
/// A datagram that was read so much later than it was sent was held by OVS or OVN, and not by a reader that got no processor.
const READ: Duration = Duration::from_millis(500);
/// How soon an allowed flow must be there after a change. A connection that was cut is given up after 0.9 s.
const RECOVER: Duration = Duration::from_millis(3500);
/// As [`RECOVER`], after a process of OVS or OVN was killed.
const RECOVER_RESTART: Duration = Duration::from_secs(8);
/// How long an allowed flow may stall without a cause in the flow itself: a machine with few cores is shared by many processes.
const GAP: Duration = Duration::from_millis(2500);
/// Longest pause after a change.
const DWELL: Duration = Duration::from_millis(350);
/// How long a change may take until it is in force.
const FORCE: Duration = Duration::from_secs(60);
/// Milliseconds between two messages of a flow.
const PAUSE_MS: u64 = 10;
/// This machine may stand still for one part in so many of the time.
const STILL: u32 = 20;
/// Pods on each node, one of each role, and flows between them.
const PODS: usize = 5;
const FLOWS: usize = 16;
/// Flows to services.
const SERVICE_FLOWS: usize = 16;

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut random = Random::new(stage.seed);
    let nodes = stage.bed.config().node_names();
    let mut model = act::pods(&nodes);
    let flows = draw_flows(&mut random, &model);
    let service_flows = service_play::draw_flows(&mut random, &model, nodes.len());
    let pods = LoadPods::new(stage.bed, PAUSE_MS).await?;
    let mut act = Act::new(pods, nodes.clone(), (&flows, &service_flows), &model).await?;
    act.in_force(&model).await?;
    let (pods, direct, to_services) = (model.pods.len(), flows.len(), service_flows.len());
    stage.progress.done(format_args!("{pods} pods, {direct} flows between them, {to_services} to services"));
    let mut play = Play {
        services: ServicePlay::new(&service_flows, flows.len(), &model, &act.addresses),
        flows: &flows,
        lines: vec![Timeline::default(); flows.len()],
        log: Vec::new(),
        windows: Vec::new(),
        crashes: 0,
    };
    play.verdicts(&model, 0, (BOUND, RECOVER), |_| true);
    play.services.settle(&model, &act.addresses, Bounds::new(BOUND, RECOVER, true), 0);
    sleep(RECOVER).await;
    let mut source = Source::new(random.fork(), &flows, nodes.len());
    let mut done = [0_usize; KINDS.len()];
    let watch = Watch::start()?;
    let begin = now();
    for number in 1..=stage.changes {
        let change = source.next(&model);
        done[change.kind()] += 1;
        play.change(&mut act, &mut model, change, number, stage.verbose).await?;
        if number % 100 == 0 {
            stage.progress.done(format_args!("{number} changes"));
        }
        sleep(random.duration(DWELL)).await;
    }
    let took = now() - begin;
    act.all_up().await?;
    act.in_force(&model).await?;
    let hit = play.crashed(&mut act, &model, stage.changes, None)?;
    let crashed = |flow: &Flow| hit.iter().any(|&node| on(flow, node, &model));
    play.verdicts(&model, stage.changes, (BOUND_WITHOUT_AGENT, RECOVER_RESTART), crashed);
    let bounds = Bounds { late: true, ..Bounds::new(BOUND_WITHOUT_AGENT, RECOVER_RESTART, true) };
    play.services.settle(&model, &act.addresses, bounds, stage.changes);
    // What is denied now is watched for its bound as well, and what is allowed for its gap.
    sleep(BOUND_WITHOUT_AGENT + GAP).await;
    let end = now();
    sleep(Duration::from_millis(300)).await;
    let arrivals = act.pods.log.take_received();
    let stalls = watch.end()?;
    let took_all = Duration::from_nanos(now() - begin);
    say(format_args!("changes: {} in {:.0} s", stage.changes, Duration::from_nanos(took).as_secs_f64()));
    for (kind, count) in KINDS.iter().zip(done) {
        say(format_args!("  {count:>5} x {kind}"));
    }
    let (stood, times) = (stalls.total(), stalls.count());
    let text = format!("{times} times, {} ms of {} s", stood.as_millis(), took_all.as_secs());
    let outcome = if stood * STILL <= took_all { Ok(text) } else { Err(text) };
    stage.checks.check("this machine did not stand still too long to judge anything", outcome);
    let arrivals = play.retime(&stalls, arrivals);
    play.report(stage, &model, &arrivals, stalls.running(end))
}

/// Random pairs of pods, on one node and on two, and flows to the pod that moves: from its own switch, and one way from
/// another's. (Where it is not at home, its own gateway does not answer it.)
fn draw_flows(random: &mut Random, model: &Model) -> Vec<Flow> {
    let managed: Vec<usize> = (0..model.pods.len()).filter(|&pod| model.pods[pod].role.is_some()).collect();
    let mut flows: Vec<Flow> = Vec::new();
    let mut protocol = Protocol::Tcp;
    while flows.len() < FLOWS {
        let (from, to) = (random.pick(&managed), random.pick(&managed));
        let (Some(&from), Some(&to)) = (from, to) else { break };
        let flow = Flow { from, to, protocol };
        if from != to && !flows.contains(&flow) {
            flows.push(flow);
            protocol = if protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
        }
    }
    if let Some(to) = model.pods.iter().position(|pod| pod.role.is_none()) {
        let on = |node| managed.iter().copied().find(|&pod| model.pods[pod].node == node);
        if let (Some(near), Some(far)) = (on(0), on(1)) {
            flows.push(Flow { from: near, to, protocol: Protocol::Tcp });
            flows.push(Flow { from: near, to, protocol: Protocol::Udp });
            flows.push(Flow { from: far, to, protocol: Protocol::Udp });
        }
    }
    flows
}

/// Whether a flow begins or ends on a node.
fn on(flow: &Flow, node: usize, model: &Model) -> bool {
    [flow.from, flow.to].iter().any(|&pod| model.pods[pod].node == node)
}

struct Play<'a> {
    services: ServicePlay<'a>,
    flows: &'a [Flow],
    lines: Vec<Timeline>,
    /// What was changed, and how long that took.
    log: Vec<String>,
    /// When.
    windows: Vec<Window>,
    /// Times that an ovn-controller ended by itself: 25.03 does (`ofctrl.c`, `remove_flows_from_sb_to_flow`, an assertion).
    crashes: usize,
}

impl Play<'_> {
    /// Writes down from now on what the model says of the flows that are chosen.
    fn verdicts(
        &mut self,
        model: &Model,
        number: usize,
        (bound, recover): (Duration, Duration),
        chosen: impl Fn(&Flow) -> bool,
    ) {
        let (at, bound, recover) = (now(), nanos(bound), nanos(recover));
        for (flow, line) in self.flows.iter().zip(&mut self.lines).filter(|(flow, _)| chosen(flow)) {
            let rule = if model.allows(flow) { Rule::Allowed { recover } } else { Rule::Denied { bound } };
            line.set(at, rule, number);
        }
    }

    async fn change(
        &mut self,
        act: &mut Act<'_>,
        model: &mut Model,
        change: Change,
        number: usize,
        verbose: bool,
    ) -> Result<()> {
        let before = model.clone();
        change.apply(model);
        let open = |flow: &Flow| {
            before.allows(flow) != model.allows(flow)
                || change.disturbs(flow, &before)
                || change.disturbs(flow, model)
        };
        let begin = now();
        for (_, line) in self.flows.iter().zip(&mut self.lines).filter(|(flow, _)| open(flow)) {
            line.set(begin, Rule::Either, number);
        }
        self.services.open(&before, model, &act.addresses, &change, number);
        let done = async {
            act.carry_out(&change, model).await?;
            act.in_force(model).await
        };
        done.await.with_context(|| format!("change {number}: {change}"))?;
        let restart = matches!(change, Change::RestartController { .. } | Change::RestartSwitch { .. });
        let expected = if let Change::RestartController { node } = change { Some(node) } else { None };
        let hit = self.crashed(act, model, number, expected)?;
        let crashed = !hit.is_empty();
        let open = |flow: &Flow| open(flow) || hit.iter().any(|node| on(flow, *node, model));
        let begin = self.windows.last().filter(|_| crashed).map_or(begin, |last| last.from);
        if crashed {
            self.services.disturb(&hit, model, begin, number);
        }
        let well = act.agents_are_well();
        let bound = if well { BOUND } else { BOUND_WITHOUT_AGENT };
        let (slip, most) = if well { (SLIP, SLIPPED) } else { (BOUND_WITHOUT_AGENT, usize::MAX) };
        let apart = if change.moves_denials() { usize::MAX } else { most };
        self.windows.push(Window { from: begin, to: now() + nanos(slip), most, apart });
        let recover = if restart || crashed { RECOVER_RESTART } else { RECOVER };
        self.verdicts(model, number, (bound, recover), open);
        let late = restart || crashed;
        let bounds = Bounds { late, ..Bounds::new(bound, recover, well) };
        self.services.settle(model, &act.addresses, bounds, number);
        act.new_connections(model)?;
        let crash = if crashed { "; an ovn-controller ended by itself" } else { "" };
        let line = format!("{number}: {change} ({} ms{crash})", ms(now() - begin));
        if verbose {
            say(format_args!("  {line}"));
        }
        self.log.push(line);
        Ok(())
    }

    /// The nodes whose ovn-controller has ended by itself since the last change. OVS has half of that change until it is
    /// started again a second later, and lets pass whatever that half lets pass.
    fn crashed(
        &mut self,
        act: &mut Act<'_>,
        model: &Model,
        number: usize,
        expected: Option<usize>,
    ) -> Result<BTreeSet<usize>> {
        let mut nodes = act.crashed()?;
        if let Some(node) = expected {
            nodes.remove(&node);
        }
        self.crashes += nodes.len();
        let begin = self.windows.last().map_or_else(now, |last| last.from);
        for (flow, line) in self.flows.iter().zip(&mut self.lines) {
            if nodes.iter().any(|&node| on(flow, node, model)) {
                line.set(begin, Rule::Either, number);
            }
        }
        Ok(nodes)
    }

    /// Moves all times to a clock that stood still with this machine.
    fn retime(
        &mut self,
        stalls: &Stalls,
        arrivals: BTreeMap<u32, Vec<Received>>,
    ) -> BTreeMap<u32, Vec<Received>> {
        let clock = |time| stalls.running(time);
        self.lines.iter_mut().for_each(|line| line.retime(&clock));
        self.services.retime(&clock);
        self.windows.iter_mut().for_each(|window| *window = window.retimed(&clock));
        let one = |(by, arrival): Received| (by, stalls.arrival(arrival));
        arrivals.into_iter().map(|(flow, list)| (flow, list.into_iter().map(one).collect())).collect()
    }

    fn report(
        &self,
        stage: &mut Stage<'_>,
        model: &Model,
        arrivals: &BTreeMap<u32, Vec<Received>>,
        end: u64,
    ) -> Result<()> {
        let mut total = Outcome::default();
        let (mut leaks, mut silences, mut misled) = (Vec::new(), Vec::new(), Vec::new());
        let mut packets = 0;
        let between_nodes: Vec<_> = self.windows.iter().map(|window| window.between_nodes()).collect();
        for (number, (flow, line)) in self.flows.iter().zip(&self.lines).enumerate() {
            let list = arrivals.get(&u32::try_from(number)?).map(Vec::as_slice).unwrap_or_default();
            let wanted = &model.pods[flow.to].name;
            let astray = list.iter().find(|(by, _)| **by != **wanted);
            misled.extend(astray.map(|(by, _)| format!("a flow to {wanted} arrived at {by}")));
            let list: Vec<Arrival> = list.iter().map(|(_, arrival)| *arrival).collect();
            let times = packet_times(&list, flow.protocol == Protocol::Udp);
            packets += times.came.len();
            let apart = model.pods[flow.from].node != model.pods[flow.to].node;
            let windows = if apart { &between_nodes } else { &self.windows };
            let outcome = line.judge(&times, end, nanos(GAP), windows);
            let name = |pod: usize| format!("{} (n{})", model.pods[pod].name, model.pods[pod].node + 1);
            let flow = format!("{:?} {} to {}", flow.protocol, name(flow.from), name(flow.to));
            for violation in &outcome.violations {
                match violation {
                    Violation::Leak { .. } => leaks.push(self.tell(&flow, violation)),
                    Violation::Silence { .. } => silences.push(self.tell(&flow, violation)),
                }
            }
            total.tails.extend(outcome.tails);
            total.slipped += outcome.slipped;
            total.denied += outcome.denied;
            total.allowed += outcome.allowed;
        }
        let to_services = self.services.judge(model, arrivals, (end, nanos(GAP)), &self.windows, |at| {
            self.log.get(at.wrapping_sub(1)).map_or_else(|| "the beginning".to_owned(), Clone::clone)
        })?;
        let seconds = |time: u64| Duration::from_nanos(time).as_secs_f64();
        say(format_args!(
            "{packets} packets arrived; flows were watched for {:.0} s while denied and {:.0} s while allowed",
            seconds(total.denied),
            seconds(total.allowed)
        ));
        say(tails(total.tails));
        say(format_args!(
            "ovn-controllers ended by themselves {} times, and were started again",
            self.crashes
        ));
        say(format_args!(
            "{} packets slipped through while OVN rewrote the flows that denied them",
            total.slipped
        ));
        let seed = stage.seed;
        stage.checks.check("nothing arrives that is denied", verdict(leaks, seed));
        stage.checks.check("everything that is allowed goes on", verdict(silences, seed));
        stage.checks.check("nothing arrives at another pod", verdict(misled, seed));
        to_services.report(stage);
        let enough = (total.denied > 0 && total.allowed > 0 && packets > 0).then(String::new);
        stage.checks.check("flows were denied and allowed", enough.ok_or("there was nothing to see".into()));
        Ok(())
    }

    fn tell(&self, flow: &str, violation: &Violation) -> String {
        let name = |at: usize| self.log.get(at).map_or("the end", String::as_str);
        let (change, what, under_way) = match *violation {
            Violation::Leak { change, packets, from, first, last } => {
                let times = from + first..=from + last;
                let meets = |window: &Window| window.from <= *times.end() && *times.start() <= window.to;
                let under_way: Vec<&str> = (0..)
                    .zip(&self.windows)
                    .filter(|(_, window)| meets(window))
                    .map(|(at, _)| name(at))
                    .collect();
                (
                    change,
                    format!("{packets} packets arrived {} to {} ms after", ms(first), ms(last)),
                    under_way,
                )
            }
            Violation::Silence { change, at, lasted } => {
                (change, format!("nothing for {} ms from {} ms after", ms(lasted), ms(at)), Vec::new())
            }
        };
        let cause = change.checked_sub(1).map_or("the beginning", name);
        let meanwhile = if under_way.is_empty() { "" } else { "; under way then: " };
        format!("{flow}: {what} {cause}{meanwhile}{}", under_way.join(", "))
    }
}

/// When the packets of a flow came. Messages of one read are one burst of TCP, and count as one packet, if the first of them
/// had to be sent again; if not, the reader was late, and each is its own. A packet was on its way when its message was sent, unless TCP may have sent
/// it again since, or it was held.
fn packet_times(arrivals: &[Arrival], udp: bool) -> Times {
    let reads = arrivals.chunk_by(|one, next| one.at == next.at);
    let packets = reads.flat_map(|read| {
        let again = read.iter().any(|message| message.at.saturating_sub(message.sent) >= nanos(LOST));
        if again { &read[..1] } else { read }
    });
    times(&packets.copied().collect::<Vec<_>>(), udp)
}

/// When packets came, in order of that, and their transits.
fn times(packets: &[Arrival], udp: bool) -> Times {
    let longest = nanos(if udp { READ } else { LOST });
    let left = |packet: &Arrival| {
        let waited = packet.at.saturating_sub(packet.sent);
        if waited < longest { packet.sent } else { packet.at }
    };
    let transit = |packet: &Arrival| Transit { left: left(packet), came: packet.at };
    let mut transits: Vec<Transit> = packets.iter().map(transit).collect();
    transits.sort_unstable();
    Times { came: packets.iter().map(|packet| packet.at).collect(), transits }
}

fn verdict(found: Vec<String>, seed: u64) -> Result<String, String> {
    let Some(first) = found.first() else { return Ok(String::new()) };
    for line in found.iter().take(20) {
        say(format_args!("  {line}"));
    }
    Err(format!("{} times, run again with --seed {seed}: {first}", found.len()))
}

/// The packets of denied flows between the change and its bound.
fn tails(mut tails: Vec<Tail>) -> String {
    let mut median = |key: fn(&Tail) -> u64| {
        tails.sort_by_key(key);
        let at = |place: usize| tails.get(place).map_or(0, key);
        (at(tails.len() / 2), at(tails.len().saturating_sub(1)))
    };
    let (packets, most) = median(|tail| u64::try_from(tail.packets).unwrap_or(u64::MAX));
    let (delay, latest) = median(|tail| tail.delay);
    format!(
        "{} times a flow was denied: packets after the change was in force, median {packets}, at most {most}; \
         the last of them after {} ms in the median, {} ms at most",
        tails.len(),
        ms(delay),
        ms(latest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_read_are_one_packet_only_if_tcp_sent_them_again() {
        let ms = |ms| nanos(Duration::from_millis(ms));
        let arrival = |(sent, at)| Arrival {
            flow: 1,
            number: 0,
            sent: ms(sent),
            began: 0,
            at: ms(at),
            from: [10, 0, 0, 1].into(),
            port: 0,
        };
        let times =
            |list: &[(u64, u64)]| packet_times(&list.iter().copied().map(arrival).collect::<Vec<_>>(), false);
        let again = times(&[(0, 210), (10, 210), (20, 211)]);
        assert_eq!(again, vec![ms(210), ms(211)].into());
        let late = times(&[(0, 30), (10, 30), (20, 30)]);
        assert_eq!(late.came, [ms(30); 3], "the reader was late");
        let left: Vec<u64> = late.transits.iter().map(|transit| transit.left).collect();
        assert_eq!(left, [0, ms(10), ms(20)], "and the packets were not");
        assert_eq!(times(&[]), Times::default());
    }
}

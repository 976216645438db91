//! A flow monitor of br-int beside the agent's, with the agent's own parser and classifier.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use node_agent::flow_cache::scope::{Classifier, Impact, Rule};
use node_agent::ovs::openflow::{self, Message, Update};
use testbed::cluster::Bed;

use super::flows::reason;

/// How long the first list may take.
const LIST: Duration = Duration::from_secs(20);

/// What updates said, and what they looked like.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) impact: Impact,
    /// What each classifier says that lacks a rule.
    pub(super) without: BTreeMap<Rule, Impact>,
    /// Updates as text, for failures.
    pub(super) updates: Vec<String>,
}

impl Seen {
    /// Adds what was seen before or afterwards.
    pub(super) fn join(&mut self, other: &Self) {
        join(&mut self.impact, &other.impact);
        for (rule, impact) in &other.without {
            join(self.without.entry(*rule).or_default(), impact);
        }
        self.updates.extend(other.updates.iter().cloned());
    }
}

fn join(impact: &mut Impact, other: &Impact) {
    impact.everything = impact.everything.or(other.everything);
    impact.scopes.extend(&other.scopes);
    impact.nothing += other.nothing;
    impact.updates += other.updates;
}

/// The connection.
pub(super) struct Monitor {
    stream: UnixStream,
    buffer: Vec<u8>,
    classifier: Classifier,
    /// The same, asked after each update, for failures.
    each: Classifier,
    /// Classifiers that lack a rule.
    without: BTreeMap<Rule, Classifier>,
    flows: usize,
    took: Duration,
}

impl Monitor {
    /// Connects, and reads the table.
    pub(super) fn connect(bed: &Bed, node: &str) -> Result<Self> {
        let socket = bed.host(node).path("/run/openvswitch/br-int.mgmt")?;
        let stream = UnixStream::connect(&socket).with_context(|| socket.display().to_string())?;
        let mut monitor = Self {
            stream,
            buffer: Vec::new(),
            classifier: Classifier::default(),
            each: Classifier::default(),
            without: Rule::CONCERNING.map(|rule| (rule, Classifier::without(rule))).into(),
            flows: 0,
            took: Duration::ZERO,
        };
        monitor.stream.write_all(&[openflow::hello(), openflow::monitor_request()].concat())?;
        let (end, mut seen) = (Instant::now() + LIST, Seen::default());
        while !monitor.read_once(Duration::from_millis(500), &mut seen)? {
            if Instant::now() > end {
                bail!("OVS does not list its flows");
            }
        }
        monitor.flows = seen.updates.len();
        monitor.impacts();
        Ok(monitor)
    }

    /// Number of flows when the monitor connected, and how long it took to take them.
    pub(super) fn initial(&self) -> (usize, Duration) {
        (self.flows, self.took)
    }

    /// Why the classifier trusts the table no longer.
    pub(super) fn lint(&self) -> Option<&str> {
        self.classifier.lint()
    }

    /// Reads until nothing came for a while. Waits for the first update for `first`.
    pub(super) fn read(&mut self, first: Duration, quiet: Duration) -> Result<Seen> {
        let mut seen = Seen::default();
        let end = Instant::now() + first;
        loop {
            let wait = if seen.updates.is_empty() { end - Instant::now().min(end) } else { quiet };
            let before = seen.updates.len();
            self.read_once(wait.max(Duration::from_millis(1)), &mut seen)?;
            if seen.updates.len() == before && (before > 0 || Instant::now() >= end) {
                break;
            }
        }
        (seen.impact, seen.without) = self.impacts();
        Ok(seen)
    }

    fn impacts(&mut self) -> (Impact, BTreeMap<Rule, Impact>) {
        let without =
            self.without.iter_mut().map(|(rule, classifier)| (*rule, classifier.impact())).collect();
        (self.classifier.impact(), without)
    }

    /// Reads what is there, or comes within `wait`. True at the end of the first list.
    fn read_once(&mut self, wait: Duration, seen: &mut Seen) -> Result<bool> {
        self.stream.set_read_timeout(Some(wait))?;
        let mut chunk = vec![0; 1 << 18];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!("OVS closed the flow monitor"),
            Ok(count) => self.buffer.extend(chunk.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        let buffer = std::mem::take(&mut self.buffer);
        let (mut rest, mut listed) = (buffer.as_slice(), false);
        while let Some((one, after)) = openflow::length(rest).and_then(|length| rest.split_at_checked(length))
        {
            rest = after;
            match openflow::read(one) {
                Message::Echo { xid, body } => self.stream.write_all(&openflow::echo_reply(xid, body))?,
                Message::Error(kind, code) => bail!("OVS refuses the flow monitor: {kind}, {code}"),
                Message::Initial { updates, more } => {
                    listed |= !more;
                    self.take(updates, seen);
                }
                Message::Changed(updates) => self.take(updates, seen),
                Message::Hello(_) | Message::Other => {}
            }
        }
        self.buffer = rest.to_vec();
        Ok(listed)
    }

    fn take(&mut self, updates: &[u8], seen: &mut Seen) {
        for update in openflow::updates(updates) {
            let begin = Instant::now();
            let said = text(&update);
            self.each.take(&update, begin);
            seen.updates.push(format!("{}: {said}", reason(&self.each.impact())));
            let begin = Instant::now();
            self.classifier.take(&update, begin);
            self.took += begin.elapsed();
            self.without.values_mut().for_each(|classifier| classifier.take(&update, begin));
        }
    }
}

/// The table, and the fields that are known.
fn text(update: &Update<'_>) -> String {
    let (sign, key) = match update {
        Update::Present { key, .. } => ("+", key),
        Update::Removed(key) => ("-", key),
        other => return format!("{other:?}"),
    };
    let matched = key.matched();
    let registers: Vec<_> =
        (0..16).filter_map(|at| Some(format!("reg{at}={:#x}", matched.register(at)?))).collect();
    let all = format!("{matched:?}");
    let known = all.split(", ").filter(|field| {
        !["None", "Any", "false", "true"].iter().any(|nothing| field.ends_with(nothing))
            && field.contains('(')
    });
    format!("{sign} table {} {} {}", key.table, registers.join(","), known.collect::<Vec<_>>().join(","))
}

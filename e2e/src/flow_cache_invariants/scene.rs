//! Three pods, `a` and `c` on the first node and `b` on the second, with a TCP and a UDP flow from `a` to each of the others;
//! and what can be said about the messages of a stretch of time.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::load_pods::{LoadPods, New};
use testbed::cluster::Bed;
use testbed::tools::load::{Arrival, Order, now};

/// Milliseconds between two messages of a flow.
const PAUSE_MS: u64 = 2;
/// How long flows need to be carried by the cache: the handshake, and both directions seen.
const WARM: Duration = Duration::from_secs(3);

/// The flows: to whom, whether UDP, and what they are called.
pub(super) const FLOWS: [(&str, bool, &str); 4] = [
    ("b", false, "TCP across nodes"),
    ("b", true, "UDP across nodes"),
    ("c", false, "TCP on one node"),
    ("c", true, "UDP on one node"),
];

/// The pods and their flows.
pub(crate) struct Scene<'a> {
    pub(super) pods: LoadPods<'a>,
    pub(super) nodes: Vec<String>,
}

/// What came of one flow in a stretch of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) name: &'static str,
    pub(crate) udp: bool,
    pub(super) arrivals: Vec<Arrival>,
}

impl<'a> Scene<'a> {
    /// Makes the pods and waits until the flows run.
    pub(crate) async fn new(bed: &'a Bed) -> Result<Self> {
        let mut pods = LoadPods::new(bed, PAUSE_MS).await?;
        let nodes = bed.config().node_names();
        let (first, second) = (nodes[0].as_str(), nodes[1 % nodes.len()].as_str());
        for (name, node) in [("a", first), ("b", second), ("c", first)] {
            pods.add(New { name, node, role: "none", annotations: &[] }).await?;
        }
        let mut scene = Self { pods, nodes };
        scene.dial().await?;
        Ok(scene)
    }

    /// Begins all flows again, and waits until they have run for a while.
    pub(super) async fn dial(&mut self) -> Result<()> {
        for (number, (to, udp, _)) in (0..).zip(FLOWS) {
            self.pods.dial(number, "a", to, udp)?;
        }
        sleep(WARM).await;
        self.pods.log.take();
        Ok(())
    }

    /// Ends the flows and deletes the pods.
    pub(crate) async fn end(mut self) -> Result<()> {
        for (number, _) in (0..).zip(FLOWS) {
            self.pods.order("a", &Order::Drop(number))?;
        }
        for name in ["a", "b", "c"] {
            self.pods.remove(name).await?;
        }
        Ok(())
    }

    /// What has arrived since the last time, up to now.
    pub(crate) async fn seen(&self) -> Vec<Seen> {
        self.seen_of(&FLOWS.map(|(_, udp, name)| (udp, name))).await
    }

    /// The same of flows that are numbered from 0: whether they are UDP, and what they are called.
    pub(super) async fn seen_of(&self, flows: &[(bool, &'static str)]) -> Vec<Seen> {
        let end = now();
        // Reports come a little later than what they tell.
        sleep(Duration::from_millis(200)).await;
        let mut all = self.pods.log.take();
        let flows = (0..).zip(flows).map(|(number, &(udp, name))| {
            let mut arrivals = all.remove(&number).unwrap_or_default();
            arrivals.retain(|arrival| arrival.at <= end);
            Seen { name, udp, arrivals }
        });
        flows.collect()
    }
}

impl Seen {
    /// The longest time that a message took, in nanoseconds.
    pub(super) fn longest_way(&self) -> u64 {
        self.arrivals.iter().map(|a| a.at.saturating_sub(a.sent)).max().unwrap_or_default()
    }

    /// Messages that are missing between the first and the last that arrived.
    pub(crate) fn lost(&self) -> u64 {
        let numbers = || self.arrivals.iter().map(|arrival| u64::from(arrival.number));
        match (numbers().min(), numbers().max()) {
            (Some(first), Some(last)) => {
                (last - first + 1).saturating_sub(u64::try_from(self.arrivals.len()).unwrap_or_default())
            }
            _ => 0,
        }
    }

    /// The arrivals after a moment.
    pub(super) fn after(&self, moment: u64) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter().filter(move |arrival| arrival.at > moment)
    }

    /// The longest time without an arrival between two moments, which count as arrivals.
    pub(crate) fn longest_silence(&self, from: u64, to: u64) -> u64 {
        let inside = self.arrivals.iter().map(|a| a.at).filter(|at| (from..=to).contains(at));
        let mut last = from;
        let mut longest = 0;
        for at in inside.chain([to]) {
            longest = longest.max(at.saturating_sub(last));
            last = at;
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(list: &[(u32, u64, u64)]) -> Seen {
        let arrivals = list.iter().map(|&(number, sent, at)| Arrival {
            flow: 0,
            number,
            sent,
            began: 0,
            at,
            from: [10, 0, 0, 1].into(),
            port: 0,
        });
        Seen { name: "", udp: true, arrivals: arrivals.collect() }
    }

    #[test]
    fn lost_messages_are_those_missing_in_between() {
        assert_eq!(seen(&[(5, 0, 1), (7, 0, 2), (6, 0, 3)]).lost(), 0);
        assert_eq!(seen(&[(5, 0, 1), (9, 0, 2)]).lost(), 3);
        assert_eq!(seen(&[]).lost(), 0);
    }

    #[test]
    fn a_silence_is_measured_from_and_to_the_ends() {
        let seen = seen(&[(1, 0, 10), (2, 5, 30), (3, 5, 90)]);
        assert_eq!(seen.longest_silence(0, 100), 60);
        assert_eq!(seen.longest_silence(20, 80), 50);
        assert_eq!(seen.longest_way(), 85);
        assert_eq!(seen.after(30).count(), 1);
    }
}

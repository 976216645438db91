//! `slipctl top`: rates from two readings of the counters.

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::time::Duration;

use api::admin::Amount;
use api::admin::{self as wire, ByPath, Counters, share};
use serde::Serialize;

use crate::client::{Client, Error};
use crate::output::write;
use crate::show::pod_or_container;
use crate::table::{Column, table};
use crate::units::{percent, short};

/// Moves the cursor to the first line and erases the screen after it (ECMA-48).
const REDRAW: &str = "\x1b[H\x1b[J";
/// Erases the whole screen (ECMA-48).
const CLEAR: &str = "\x1b[2J";

/// Prints rates every `interval`, `count` times or until interrupted.
pub(crate) fn run(client: &Client, interval: Duration, count: Option<u64>, json: bool) -> Result<(), Error> {
    let redraw = !json && std::io::stdout().is_terminal();
    if redraw {
        write(CLEAR)?;
    }
    let mut before = read(client)?;
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        std::thread::sleep(interval);
        let now = read(client)?;
        let rates = Rates::between(&before, &now);
        let text = if json { rates.line()? } else { rates.text() };
        write(&match redraw {
            true => format!("{REDRAW}{text}"),
            false if json || shown == 0 => text,
            false => format!("\n{text}"),
        })?;
        before = now;
        shown += 1;
    }
    Ok(())
}

fn read(client: &Client) -> Result<Counters, Error> {
    serde_json::from_value(client.get(wire::COUNTERS)?).map_err(Error::not_understood)
}

/// Rates between two readings of the counters.
#[derive(Debug, PartialEq, Serialize)]
struct Rates {
    /// Seconds between the readings.
    seconds: f64,
    /// Rates by remote node and VNI.
    tunnels: Vec<TunnelRate>,
    /// Rates by interface of a pod.
    endpoints: Vec<EndpointRate>,
    /// Sums of these by network, where pods have interfaces on virtual networks.
    networks: Vec<NetworkRate>,
}

#[derive(Debug, PartialEq, Serialize)]
struct TunnelRate {
    remote: std::net::IpAddr,
    node: Option<String>,
    vni: u32,
    #[serde(flatten)]
    rate: Rate,
}

#[derive(Debug, PartialEq, Serialize)]
struct EndpointRate {
    id: String,
    pod: Option<String>,
    #[serde(flatten)]
    rate: Rate,
}

/// Sum of the interfaces on a network.
#[derive(Debug, PartialEq, Serialize)]
struct NetworkRate {
    /// `NAMESPACE/NAME` of the virtual network; none: the cluster's network.
    network: Option<String>,
    interfaces: usize,
    #[serde(flatten)]
    rate: Rate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Rate {
    #[serde(rename = "in")]
    received: PathRate,
    #[serde(rename = "out")]
    sent: PathRate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PathRate {
    fast_packets_per_second: f64,
    fast_bytes_per_second: f64,
    slow_packets_per_second: f64,
    slow_bytes_per_second: f64,
    hit_ratio: Option<f64>,
}

type Two = (ByPath, ByPath);

impl Rates {
    fn between(before: &Counters, now: &Counters) -> Self {
        let seconds = Duration::from_millis(now.at_ms.saturating_sub(before.at_ms).max(1)).as_secs_f64();
        let old: HashMap<_, Two> =
            before.tunnels.iter().map(|t| ((t.remote, t.vni), (t.received, t.sent))).collect();
        let tunnels = now.tunnels.iter().map(|t| TunnelRate {
            remote: t.remote,
            node: t.node.clone(),
            vni: t.vni,
            rate: Rate::of(old.get(&(t.remote, t.vni)), (t.received, t.sent), seconds),
        });
        let tunnels = tunnels.collect();
        let old: HashMap<&str, Two> =
            before.endpoints.iter().map(|e| (e.id.as_str(), (e.received, e.sent))).collect();
        let endpoints = now.endpoints.iter().map(|e| EndpointRate {
            id: e.id.clone(),
            pod: e.pod.clone(),
            rate: Rate::of(old.get(e.id.as_str()), (e.received, e.sent), seconds),
        });
        let endpoints: Vec<EndpointRate> = endpoints.collect();
        let networks = now.endpoints.iter().map(|e| e.network.as_deref());
        let networks = by_network(networks.zip(endpoints.iter().map(|e| &e.rate)));
        Self { seconds, tunnels, endpoints, networks }
    }

    /// Formats the rates as one line of JSON.
    fn line(&self) -> Result<String, Error> {
        serde_json::to_string(self).map(|line| line + "\n").map_err(|e| Error::Output(e.into()))
    }

    fn text(&self) -> String {
        let tunnels: Vec<_> = self
            .tunnels
            .iter()
            .map(|t| {
                let node = t.node.clone().unwrap_or_else(|| t.remote.to_string());
                [vec![node, t.vni.to_string()], t.rate.cells()].concat()
            })
            .collect();
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|e| [vec![pod_or_container(e.pod.as_deref(), &e.id)], e.rate.cells()].concat())
            .collect();
        let rates = [
            Column::Right("IN FAST/s"),
            Column::Right("SLOW/s"),
            Column::Right("bit/s"),
            Column::Right("HIT"),
            Column::Right("OUT FAST/s"),
            Column::Right("SLOW/s"),
            Column::Right("bit/s"),
            Column::Right("HIT"),
        ];
        let columns = |first: &[Column]| [first, &rates].concat();
        let mut tables = vec![
            table(&columns(&[Column::Left("TUNNEL"), Column::Right("VNI")]), &tunnels),
            table(&columns(&[Column::Left("POD")]), &endpoints),
        ];
        if !self.networks.is_empty() {
            let networks = self.networks.iter().map(|n| {
                let name = n.network.clone().unwrap_or_else(|| "(the cluster's)".to_owned());
                [vec![name, n.interfaces.to_string()], n.rate.cells()].concat()
            });
            let first = [Column::Left("NETWORK"), Column::Right("INTERFACES")];
            tables.push(table(&columns(&first), &networks.collect::<Vec<_>>()));
        }
        tables.join("\n")
    }
}

/// Sums by network, the cluster's first; none if there is no other.
fn by_network<'a>(all: impl Iterator<Item = (Option<&'a str>, &'a Rate)>) -> Vec<NetworkRate> {
    let mut sums: BTreeMap<Option<&str>, (usize, Rate)> = BTreeMap::new();
    for (network, rate) in all {
        let (interfaces, sum) = sums.entry(network).or_default();
        *interfaces += 1;
        sum.received.add(&rate.received);
        sum.sent.add(&rate.sent);
    }
    if sums.keys().all(Option::is_none) {
        return Vec::new();
    }
    let one = |(network, (interfaces, rate)): (Option<&str>, _)| NetworkRate {
        network: network.map(str::to_owned),
        interfaces,
        rate,
    };
    sums.into_iter().map(one).collect()
}

impl Rate {
    fn of(before: Option<&Two>, now: Two, seconds: f64) -> Self {
        let part = |before: Option<ByPath>, now| PathRate::of(before, now, seconds);
        Self { received: part(before.map(|b| b.0), now.0), sent: part(before.map(|b| b.1), now.1) }
    }

    fn cells(&self) -> Vec<String> {
        [self.received.cells(), self.sent.cells()].concat()
    }
}

impl PathRate {
    fn of(before: Option<ByPath>, now: ByPath, seconds: f64) -> Self {
        let none = ByPath::new(Amount::default(), Amount::default());
        let before = before.unwrap_or(none);
        let fast = more(before.fast, now.fast);
        let slow = more(before.slow, now.slow);
        Self {
            fast_packets_per_second: rate(fast.packets, seconds),
            fast_bytes_per_second: rate(fast.bytes, seconds),
            slow_packets_per_second: rate(slow.packets, seconds),
            slow_bytes_per_second: rate(slow.bytes, seconds),
            hit_ratio: share(fast.packets, slow.packets),
        }
    }

    fn add(&mut self, other: &Self) {
        self.fast_packets_per_second += other.fast_packets_per_second;
        self.fast_bytes_per_second += other.fast_bytes_per_second;
        self.slow_packets_per_second += other.slow_packets_per_second;
        self.slow_bytes_per_second += other.slow_bytes_per_second;
        let all = self.fast_packets_per_second + self.slow_packets_per_second;
        self.hit_ratio = (all > 0.0).then(|| self.fast_packets_per_second / all);
    }

    fn cells(&self) -> Vec<String> {
        vec![
            short(self.fast_packets_per_second),
            short(self.slow_packets_per_second),
            short((self.fast_bytes_per_second + self.slow_bytes_per_second) * 8.0),
            percent(self.hit_ratio),
        ]
    }
}

/// Increase of a counter. A counter that decreased was reset and counts from zero.
fn more(before: Amount, now: Amount) -> Amount {
    let part = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    Amount { packets: part(before.packets, now.packets), bytes: part(before.bytes, now.bytes) }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(at_ms: u64, fast: u64, slow: u64) -> Counters {
        let amount = |packets| Amount { packets, bytes: packets * 125 };
        let (received, sent) =
            (ByPath::new(amount(fast), amount(slow)), ByPath::new(Amount::default(), Amount::default()));
        Counters {
            at_ms,
            tunnels: vec![wire::TunnelCounters {
                remote: "172.18.0.3".parse().unwrap(),
                node: Some("n2".to_owned()),
                vni: 4,
                received,
                sent,
            }],
            interfaces: Vec::new(),
            endpoints: vec![wire::EndpointCounters {
                id: "c1".to_owned(),
                pod: Some("default/a".to_owned()),
                network: None,
                received,
                sent,
            }],
        }
    }

    #[test]
    fn rates_are_differences_by_the_time_between_the_readings() {
        let rates = Rates::between(&counters(1_000, 100, 10), &counters(3_000, 400, 110));
        let received = &rates.tunnels[0].rate.received;
        assert_eq!(
            (received.fast_packets_per_second, received.slow_packets_per_second, received.hit_ratio),
            (150.0, 50.0, Some(0.75))
        );
        assert_eq!(received.fast_bytes_per_second, 150.0 * 125.0);
        assert_eq!(
            rates.text(),
            "TUNNEL  VNI  IN FAST/s  SLOW/s   bit/s    HIT  OUT FAST/s  SLOW/s  bit/s  HIT\n\
             n2        4        150      50  200.0k  75.0%           0       0      0    -\n\
             \n\
             POD        IN FAST/s  SLOW/s   bit/s    HIT  OUT FAST/s  SLOW/s  bit/s  HIT\n\
             default/a        150      50  200.0k  75.0%           0       0      0    -\n"
        );
    }

    #[test]
    fn interfaces_on_virtual_networks_are_summed_by_network() {
        let with = |counters: Counters| {
            let further = |id: &str, network: &str| wire::EndpointCounters {
                id: id.to_owned(),
                network: Some(network.to_owned()),
                ..counters.endpoints[0].clone()
            };
            let more = [further("c2", "shop/blue"), further("c3", "shop/blue"), further("c4", "shop/green")];
            let endpoints = [counters.endpoints.clone(), more.to_vec()].concat();
            Counters { endpoints, ..counters }
        };
        let rates = Rates::between(&with(counters(1_000, 100, 10)), &with(counters(3_000, 400, 110)));
        let text = rates.text();
        let networks = text.split("\n\n").last().unwrap();
        assert_eq!(
            networks,
            "NETWORK          INTERFACES  IN FAST/s  SLOW/s   bit/s    HIT  OUT FAST/s  SLOW/s  bit/s  HIT\n\
             (the cluster's)           1        150      50  200.0k  75.0%           0       0      0    -\n\
             shop/blue                 2        300     100  400.0k  75.0%           0       0      0    -\n\
             shop/green                1        150      50  200.0k  75.0%           0       0      0    -\n"
        );
        let value: serde_json::Value = serde_json::from_str(&rates.line().unwrap()).unwrap();
        assert_eq!(value["networks"][1]["network"], "shop/blue");
        assert_eq!(value["networks"][1]["in"]["fastPacketsPerSecond"], 300.0);
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_zero() {
        let rates = Rates::between(&counters(0, 1_000_000, 0), &counters(1_000, 40, 0));
        assert_eq!(rates.endpoints[0].rate.received.fast_packets_per_second, 40.0);
    }

    #[test]
    fn each_interval_is_one_line_of_json() {
        let rates = Rates::between(&counters(0, 0, 0), &counters(1_000, 1, 1));
        let line = rates.line().unwrap();
        assert_eq!(line.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["tunnels"][0]["in"]["hitRatio"], 0.5);
        assert_eq!((&value["endpoints"][0]["pod"], &value["seconds"]), (&"default/a".into(), &1.0.into()));
    }
}

//! What changes of a bridge's flows concern, by bridge.

use std::time::Instant;

use crate::flow_cache::invalidation::Watched;
use crate::flow_cache::scope::{Classifier, Impact, Rule, Why};
use crate::ovs::openflow::{IPV4, Match, Update};

/// UDP destination port of Geneve (RFC 8926, 3.3).
const GENEVE: u16 = 6081;
const UDP: u8 = 17;

/// The flow tables of a monitored bridge, as far as they say what a change of them concerns.
#[derive(Debug)]
pub(super) enum Tables {
    /// Tables of br-int, which say by their flows what a change concerns.
    Integration(Box<Classifier>),
    /// Tables of the gateway bridge.
    Gateway(Impact),
    /// Tables of a bridge that leads to a physical network.
    Physical(Impact),
}

impl Tables {
    pub(super) fn new(bridge: Watched) -> Self {
        match bridge {
            Watched::Integration => Self::Integration(Box::default()),
            Watched::Gateway => Self::Gateway(Impact::default()),
            Watched::Physical(_) => Self::Physical(Impact::default()),
        }
    }

    /// Tables of br-int whose classifier lacks a rule, for tests that show what the rule is for.
    pub(super) fn without(rule: Rule) -> Self {
        Self::Integration(Box::new(Classifier::without(rule)))
    }

    /// Takes an update that arrived at `now`.
    pub(super) fn take(&mut self, update: &Update<'_>, now: Instant) {
        match self {
            Self::Integration(classifier) => classifier.take(update, now),
            Self::Gateway(impact) => bridge(update, impact, gateway),
            Self::Physical(impact) => bridge(update, impact, physical),
        }
    }

    /// What the updates since the last call concern.
    pub(super) fn impact(&mut self) -> Impact {
        match self {
            Self::Integration(classifier) => classifier.impact(),
            Self::Gateway(impact) | Self::Physical(impact) => std::mem::take(impact),
        }
    }

    /// See [`Classifier::lint`].
    pub(super) fn lint(&self) -> Option<&str> {
        match self {
            Self::Integration(classifier) => classifier.lint(),
            Self::Gateway(_) | Self::Physical(_) => None,
        }
    }
}

/// Takes an update of a bridge of whose flows no scope is known.
fn bridge(update: &Update<'_>, impact: &mut Impact, of: fn(&Match, &mut Impact)) {
    impact.updates += 1;
    match update {
        Update::Present { key, .. } | Update::Removed(key) => {
            let matched = key.matched();
            if !matched.complete {
                impact.everything = Some(Why::Unreadable);
            } else if matched.is_never_cached() {
                impact.nothing += 1;
            } else {
                of(&matched, impact);
            }
        }
        Update::Paused(_) => impact.everything = Some(Why::Paused),
        Update::Unknown => impact.everything = Some(Why::Unreadable),
    }
}

/// A changed flow of a bridge that leads to a physical network. What passes it are flows of the outside alone, which any change concerns.
fn physical(_: &Match, _: &mut Impact) {}

/// A changed flow of the gateway bridge. What passes the bridge as it is are flows of the outside and the node, which any change concerns;
/// packets between pods pass it in a tunnel, as UDP to Geneve's port over IPv4.
fn gateway(matched: &Match, impact: &mut Impact) {
    if matched.tagged {
        impact.nothing += 1;
    } else if may_be_tunnel(matched) {
        impact.everything.get_or_insert(Why::Bridge);
    }
}

fn may_be_tunnel(matched: &Match) -> bool {
    let may = |is: Option<bool>| is.unwrap_or(true);
    may(matched.eth_type.map(|kind| kind == IPV4))
        && may(matched.ip_proto.map(|protocol| protocol == UDP))
        && may(matched.port.map(|port| port == GENEVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovs::openflow::{FlowActions, Key};

    fn told(fields: &[&[u8]]) -> Impact {
        told_by(Watched::Gateway, fields)
    }

    #[test]
    fn a_flow_of_a_bridge_to_a_physical_network_concerns_the_outside_alone() {
        let tagged: &[u8] = &[0x80, 0, 0x0c, 2, 0x10, 100];
        for fields in [&[][..], &[tagged], &[IP, IS_UDP, &port(6081)]] {
            let impact = told_by(Watched::Physical(3), fields);
            assert_eq!((impact.everything, impact.is_nothing()), (None, false), "{fields:?}");
        }
        let arp: &[u8] = &[0x80, 0, 5 << 1, 2, 8, 6];
        assert!(told_by(Watched::Physical(3), &[arp]).is_nothing());
    }

    fn told_by(bridge: Watched, fields: &[&[u8]]) -> Impact {
        let mut tables = Tables::new(bridge);
        let fields = [&[0, 1, 0, 0], fields.concat().as_slice()].concat();
        let key = Key { table: 0, priority: 1, fields: &fields };
        tables.take(&Update::Present { key, actions: FlowActions::default() }, Instant::now());
        tables.impact()
    }

    const IP: &[u8] = &[0x80, 0, 5 << 1, 2, 8, 0];
    const IS_UDP: &[u8] = &[0x80, 0, 10 << 1, 1, 17];
    const TCP: &[u8] = &[0x80, 0, 10 << 1, 1, 6];

    /// UDP destination port.
    fn port(port: u16) -> Vec<u8> {
        [&[0x80, 0, 16 << 1, 2], &port.to_be_bytes()[..]].concat()
    }

    #[test]
    fn a_flow_for_other_packets_than_a_tunnels_concerns_the_outside_alone() {
        for fields in [&[IP, TCP][..], &[IP, IS_UDP, &port(30_001)]] {
            let impact = told(fields);
            assert_eq!((impact.everything, impact.is_nothing()), (None, false), "{fields:?}");
        }
        for fields in [&[][..], &[IP], &[IP, IS_UDP], &[IP, IS_UDP, &port(6081)]] {
            assert_eq!(told(fields).everything, Some(Why::Bridge), "{fields:?}");
        }
        let tagged: &[u8] = &[0x80, 0, 0x0c, 2, 0x10, 100];
        assert!(told(&[tagged]).is_nothing(), "nothing with a tag is carried there");
        let arp: &[u8] = &[0x80, 0, 5 << 1, 2, 8, 6];
        assert!(told(&[arp]).is_nothing());
    }
}

//! Tests of the classifier: each rule, and each thing that is unknown.

mod lint;
mod model;
mod rules;
mod wire;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Classifier, Impact, Scope, Why};
use crate::ovs::openflow::Update;
use wire::{Flow, copy, dec_ttl, dl_dst, in_port, metadata, nxm_reg, output, patch, reg, set};

/// A switch with two local ports, a router next to it, another switch, and one far away.
const SWITCH: u64 = 1;
const ROUTER: u64 = 2;
const OTHER: u64 = 3;
const FAR: u64 = 9;
/// Port of the switch that leads to the router, and of the router that leads back.
const TO_ROUTER: u32 = 7;
const TO_SWITCH: u32 = 8;
const ROUTER_MAC: [u8; 6] = [0x0a, 0, 0, 0, 0, 1];

/// A classifier that knows a table, and the time.
struct Table {
    classifier: Classifier,
    now: Instant,
}

impl Table {
    /// OpenFlow ports 11 and 12 are the logical ports 1 and 2 of the switch.
    fn new() -> Self {
        Self::with(Classifier::default())
    }

    fn with(classifier: Classifier) -> Self {
        let mut table = Self { classifier, now: Instant::now() };
        for flow in base() {
            table.classifier.take(&flow.present(), table.now);
        }
        table.classifier.impact();
        assert_eq!(table.classifier.lint(), None);
        table
    }

    fn updates(&mut self, updates: &[Update<'_>]) -> Impact {
        updates.iter().for_each(|update| self.classifier.take(update, self.now));
        self.classifier.impact()
    }

    fn add(&mut self, flow: &Flow) -> Impact {
        self.updates(&[flow.present()])
    }

    fn remove(&mut self, flow: &Flow) -> Impact {
        self.updates(&[flow.removed()])
    }

    /// Impact of adding a flow with that match, which does nothing.
    fn matching(&mut self, fields: &[Vec<u8>]) -> Impact {
        self.add(&Flow::new(50, fields, &[]))
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

fn base() -> Vec<Flow> {
    let origin = |port: u32, key: u32| {
        Flow::new(0, &[in_port(port)], &[set(&metadata(SWITCH)), set(&nxm_reg(14, key))])
    };
    let delivers = |key: u32, port: u32| Flow::new(65, &[reg(15, key), metadata(SWITCH)], &[output(port)]);
    let leads = |from: (u64, u32), to: (u64, u32)| {
        Flow::new(65, &[reg(15, from.1), metadata(from.0)], &[patch(to.0, to.1)])
    };
    vec![
        origin(11, 1),
        origin(12, 2),
        delivers(1, 11),
        delivers(2, 12),
        leads((SWITCH, TO_ROUTER), (ROUTER, TO_SWITCH)),
        leads((ROUTER, TO_SWITCH), (SWITCH, TO_ROUTER)),
        leads((ROUTER, 20), (OTHER, 21)),
        Flow::new(10, &[metadata(ROUTER), reg(14, TO_SWITCH), dl_dst(ROUTER_MAC)], &[]),
        Flow::new(
            20,
            &[metadata(ROUTER)],
            &[dec_ttl(), copy((0x8000, 12), (1, 0)), set(&nxm_reg(15, TO_SWITCH))],
        ),
    ]
}

fn address(text: &str) -> Scope {
    Scope::Address(text.parse::<IpAddr>().unwrap())
}

fn scopes(scopes: impl IntoIterator<Item = Scope>) -> Impact {
    Impact { scopes: scopes.into_iter().collect(), updates: 1, ..Impact::default() }
}

fn nothing() -> Impact {
    Impact { nothing: 1, updates: 1, ..Impact::default() }
}

fn key(vni: u64, key: u16) -> Scope {
    Scope::Key { vni: u32::try_from(vni).unwrap(), key }
}

fn everything(impact: &Impact) -> Option<Why> {
    impact.everything
}

//! Fake flow cache for unit tests: returns fixed data and records calls.

use api::admin::Amount;
use ebpf::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::time::Duration;

use api::MacAddr;
use parking_lot::Mutex;

use crate::flow_cache::{
    Action, CacheError, Carried, Connections, Divergence, EndpointAmounts, Flow, FlowCache, Gate, GatewayEnd,
    InterfaceAmounts, PhysicalPort, Pressure, ScopeChange, See, ServiceAddress, ServiceCache, Swept, Timing,
    Tunnel, Underlay,
};

/// Fake implementation of [`FlowCache`].
#[derive(Debug, Default)]
pub(crate) struct Fake {
    /// Calls of `set_endpoint_fast`, in order.
    pub(crate) told: Mutex<Vec<(String, bool)>>,
    /// Calls of `set_endpoint_diverged`, in order.
    pub(crate) diverged: Mutex<Vec<(String, u32)>>,
    /// Value of [`Gate::hold`].
    pub(crate) holds: bool,
    /// Number of calls of `pressure`.
    pub(crate) walks: Mutex<u32>,
    /// Number of calls of `sweep`.
    pub(crate) sweeps: Mutex<u32>,
    /// Addresses whose connections take the slow path.
    pub(crate) slow: Mutex<BTreeSet<ServiceAddress>>,
    /// No more addresses fit.
    pub(crate) full: Mutex<bool>,
    /// Entries of translated flows.
    pub(crate) entries: Mutex<Vec<Carried>>,
}

pub(crate) const OPTION: u32 = 0x0003_0002;

/// Fill levels returned.
pub(crate) const PRESSURE: [Pressure; 1] = [Pressure { map: "FLOWS", entries: 3, capacity: 262_144 }];

/// One flow of each kind.
pub(crate) fn flows() -> Vec<Flow> {
    let remote = Ipv4Addr::new(172, 18, 0, 3);
    let flow = |endpoint: &str, protocol, from: (&str, u16), to: (&str, u16), action| Flow {
        endpoint: endpoint.to_owned(),
        protocol,
        source: from.0.parse().unwrap(),
        destination: to.0.parse().unwrap(),
        source_port: from.1,
        destination_port: to.1,
        action,
        epoch: 7,
        current: true,
        valid: true,
        sensitive: false,
        translated: None,
        gateway: false,
        closing: false,
        slow: false,
        probing: false,
        ttl_step: 1,
        destination_mac: MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, 1]),
        source_mac: MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, 3]),
        delivered_destination_mac: MacAddr([0x0a, 0x58, 0x0a, 0xf4, 1, 4]),
        delivered_source_mac: MacAddr([0x0a, 0x58, 0x0a, 0xf4, 1, 1]),
        age_ms: 1_200,
        refresh_in_ms: 800,
        packets: 42,
        bytes: 4_200,
    };
    let tunnel = Action::Tunnel { remote, vni: 5, option: OPTION };
    let deliver = Action::Deliver { remote, vni: 5, option: OPTION };
    let local = Action::Local { to: "c0ffee01".to_owned() };
    vec![
        flow("c0ffee01", 6, ("10.244.0.3", 40_000), ("10.244.1.4", 80), tunnel),
        flow("c0ffee01", 6, ("10.244.1.4", 80), ("10.244.0.3", 40_000), deliver),
        flow("c0ffee02", 17, ("10.244.0.4", 5_000), ("10.244.0.3", 53), local),
    ]
}

impl FlowCache for Fake {
    fn epoch(&self) -> Result<u32, CacheError> {
        Ok(7)
    }
    fn invalidate(&self) -> Result<u32, CacheError> {
        Ok(8)
    }
    fn change_scopes(&self, _: &ScopeChange) -> Result<(), CacheError> {
        Ok(())
    }
    fn open_scopes(&self) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_gate(&self, _: Gate) -> Result<(), CacheError> {
        Ok(())
    }
    fn gate(&self) -> Result<Gate, CacheError> {
        Ok(Gate { forward: true, learn: true, tcp: true, hold: self.holds })
    }
    fn hold_left(&self) -> Result<Duration, CacheError> {
        Ok(Duration::ZERO)
    }
    fn heartbeat(&self) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_underlay(&self, _: Option<Underlay>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_gateway(&self, _: Option<GatewayEnd>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_physical(&self, _: &BTreeMap<u32, PhysicalPort>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_remotes(&self, _: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_timing(&self, _: Timing) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_endpoint_fast(&self, id: &str, fast: bool) -> Result<(), CacheError> {
        self.told.lock().push((id.to_owned(), fast));
        Ok(())
    }
    fn set_endpoint_diverged(&self, id: &str, epoch: u32) -> Result<(), CacheError> {
        self.diverged.lock().push((id.to_owned(), epoch));
        Ok(())
    }
    fn flows(&self, limit: usize) -> Result<Vec<Flow>, CacheError> {
        Ok(flows().into_iter().take(limit).collect())
    }
    fn each_flow(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), CacheError> {
        let _ = flows().iter().try_for_each(visit);
        Ok(())
    }
    fn pressure(&self) -> Result<Vec<Pressure>, CacheError> {
        *self.walks.lock() += 1;
        Ok(PRESSURE.to_vec())
    }
    fn sweep(&self) -> Result<Swept, CacheError> {
        *self.sweeps.lock() += 1;
        Ok(Swept { removed: 2, maps: PRESSURE.to_vec() })
    }
    fn end_connections(&self, _: &Connections) -> Result<u64, CacheError> {
        Ok(0)
    }
    fn divergences(&self) -> Result<Vec<Divergence>, CacheError> {
        Ok(Vec::new())
    }
    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError> {
        let amount = |packets| Amount { packets, bytes: packets * 100 };
        Ok(vec![Tunnel {
            remote: [172, 18, 0, 3].into(),
            vni: 5,
            fast_in: amount(3),
            slow_in: amount(1),
            fast_out: amount(7),
            slow_out: amount(2),
        }])
    }
    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError> {
        let amount = |packets| Amount { packets, bytes: packets * 60 };
        Ok(vec![EndpointAmounts {
            endpoint: "c0ffee01".to_owned(),
            fast_from: amount(7),
            slow_from: amount(2),
            fast_to: amount(3),
            slow_to: amount(1),
            diverged: None,
        }])
    }
    fn interfaces(&self) -> Result<Vec<InterfaceAmounts>, CacheError> {
        let amount = |packets| Amount { packets, bytes: packets * 60 };
        Ok(vec![InterfaceAmounts {
            interface: "bridge",
            fast_in: amount(5),
            slow_in: amount(1),
            fast_out: amount(4),
            slow_out: amount(2),
        }])
    }
    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError> {
        Ok(vec![(Reason::TcpFlags, 4), (Reason::Fragment, 0)])
    }
    fn services(&self) -> Option<&dyn ServiceCache> {
        Some(self)
    }
}

impl ServiceCache for Fake {
    fn set_slow_services(&self, addresses: &BTreeSet<ServiceAddress>) -> Result<(), CacheError> {
        let mut slow = self.slow.lock();
        if *self.full.lock() && !addresses.is_subset(&slow) {
            return Err(CacheError::MapFull { map: "SLOW_SERVICES" });
        }
        *slow = addresses.clone();
        Ok(())
    }
    fn slow_services(&self) -> Result<BTreeSet<ServiceAddress>, CacheError> {
        Ok(self.slow.lock().clone())
    }
    fn end_misplaced(&self, see: See<'_>) -> Result<u64, CacheError> {
        let slow = self.slow.lock();
        let has = |protocol, at: SocketAddr| {
            slow.contains(&ServiceAddress { address: at.ip(), port: at.port(), protocol })
        };
        let mut entries = self.entries.lock();
        let before = entries.len();
        entries.retain(|entry| {
            see(entry);
            let is_slow = has(entry.protocol, entry.before.1) || has(entry.protocol, entry.after.0);
            is_slow == entry.slow
        });
        Ok((before - entries.len()).try_into().unwrap())
    }
    fn each_carried(&self, see: See<'_>) -> Result<(), CacheError> {
        self.entries.lock().iter().for_each(see);
        Ok(())
    }
    fn sweep_seeing(&self, see: See<'_>) -> Result<Swept, CacheError> {
        self.each_carried(see)?;
        self.sweep()
    }
}

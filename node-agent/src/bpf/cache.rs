//! [`PinnedCache`]: implementation of [`FlowCache`] on the pinned maps. It has its own handles, so that control calls never wait for
//! the attachment of a pod.

use api::admin::Amount;
use ebpf::decide::age::{Times, early};
use ebpf::decide::tuple::Tuple;
use std::hash::Hash;
use std::ops::ControlFlow;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use aya::{
    Pod,
    maps::{HashMap, IterableMap, Map, MapData, MapError, RingBuf},
};
use ebpf::layout::{
    flow::{self, Entry, Tuple4, Tuple6},
    maps::{Config, Count, REMOTES as REMOTE_SLOTS, TUNNEL_SLOTS},
};
use parking_lot::Mutex;

use super::{
    Error, Programs, Reason,
    clock::Clock,
    config::{gate_of, gated, hold_left, timed, with_remotes, with_underlay},
    control::Control,
    ended,
    flows::{Five, Reader},
    remotes::Remotes,
    scopes::Scopes,
    shape::{EVENTS, FLOWS, FLOWS6, REMOTES, SCOPES, SLOW_SERVICES, TUNNELS},
    slow_services::{SlowServices, carried},
    sweep::{Moment, Walk, count, sweep},
};
use crate::flow_cache::{
    CacheError, Connections, Divergence, EndpointAmounts, Flow, FlowCache, Gate, GatewayEnd,
    InterfaceAmounts, PhysicalPort, Pressure, ScopeChange, See, ServiceCache, Swept, Timing, Tunnel,
    Underlay,
};

/// The flow cache of the loaded programs.
pub struct PinnedCache {
    programs: Arc<Mutex<Programs>>,
    clock: Clock,
    pub(super) control: Control,
    events: Mutex<RingBuf<MapData>>,
    remotes: Mutex<Remotes>,
    scopes: Mutex<Scopes>,
    pub(super) slow_services: Mutex<SlowServices>,
    maps: std::path::PathBuf,
}

impl std::fmt::Debug for PinnedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedCache").field("maps", &self.maps).finish_non_exhaustive()
    }
}

impl PinnedCache {
    /// Opens the pinned maps of loaded programs.
    ///
    /// # Errors
    /// A map does not exist.
    pub fn open(programs: Arc<Mutex<Programs>>) -> Result<Self, Error> {
        let (maps, control, clock) = {
            let mut programs = programs.lock();
            (programs.pins.maps(), programs.control.clone(), Clock::set(&mut programs)?)
        };
        let pinned =
            |name| MapData::from_pin(maps.join(name)).map_err(|source| Error::map(name, "open", source));
        let events =
            RingBuf::try_from(Map::RingBuf(pinned(EVENTS)?)).map_err(|e| Error::map(EVENTS, "open", e))?;
        let remotes = Mutex::new(Remotes::new(pinned(REMOTES)?)?);
        let slow_services = Mutex::new(SlowServices::new(pinned(SLOW_SERVICES)?)?);
        let scopes = Mutex::new(Scopes::new(pinned(SCOPES)?, &control)?);
        let events = Mutex::new(events);
        Ok(Self { programs, clock, control, events, remotes, scopes, slow_services, maps })
    }

    fn lru<K: Pod, V: Pod>(&self, name: &'static str) -> Result<HashMap<MapData, K, V>, Error> {
        let data =
            MapData::from_pin(self.maps.join(name)).map_err(|source| Error::map(name, "open", source))?;
        HashMap::try_from(Map::LruHashMap(data)).map_err(|source| Error::map(name, "open", source))
    }

    fn reader(&self) -> Result<Reader, Error> {
        let programs = self.programs.lock();
        let scopes = self.scopes.lock().values().to_vec();
        let Config { epoch, change, .. } = self.control.get()?;
        Ok(Reader {
            epoch,
            change,
            scopes,
            now: self.clock.now()?,
            tick: self.clock.tick,
            names: programs.endpoint_names(),
        })
    }

    fn list<T: Pod + Tuple + Into<Five>>(
        &self,
        name: &'static str,
        limit: usize,
        flows: &mut Vec<Flow>,
        reader: &Reader,
    ) -> Result<(), Error>
    where
        Entry<T>: Pod,
    {
        let map = self.lru::<T, Entry<T>>(name)?;
        let mut rest = Vec::new();
        for entry in map.iter() {
            // An entry may be evicted between listing its key and reading it.
            let Ok((key, value)) = entry else { continue };
            let flow = reader.flow(key, &value);
            match flow.valid {
                true if flows.len() < limit => flows.push(flow),
                false if !flow.closing && rest.len() < limit => rest.push(flow),
                _ => {}
            }
        }
        flows.append(&mut rest);
        Ok(())
    }

    fn visit<T: Pod + Tuple + Into<Five>>(
        &self,
        name: &'static str,
        reader: &Reader,
        visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error>
    where
        Entry<T>: Pod,
    {
        let map = self.lru::<T, Entry<T>>(name)?;
        // An entry may be evicted between listing its key and reading it.
        for (key, value) in map.iter().filter_map(Result::ok) {
            let flow = reader.flow(key, &value);
            if (flow.valid || !flow.closing) && visit(&flow).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_all(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), Error> {
        let reader = self.reader()?;
        if self.visit::<Tuple4>(FLOWS, &reader, visit)?.is_continue() {
            let _ = self.visit::<Tuple6>(FLOWS6, &reader, visit)?;
        }
        Ok(())
    }

    fn all_flows(&self, limit: usize) -> Result<Vec<Flow>, Error> {
        let reader = self.reader()?;
        let mut flows = Vec::new();
        self.list::<Tuple4>(FLOWS, limit, &mut flows, &reader)?;
        self.list::<Tuple6>(FLOWS6, limit, &mut flows, &reader)?;
        flows.sort_by_key(|flow| (!flow.valid, std::cmp::Reverse(flow.packets)));
        flows.truncate(limit);
        Ok(flows)
    }

    /// Iterates over a map and returns its fill level afterwards; `walk` gets the capacity of the map.
    pub(super) fn walk<K: Pod, V: Pod>(
        &self,
        name: &'static str,
        walk: impl FnOnce(&mut HashMap<MapData, K, V>, usize) -> Result<Walk, MapError>,
    ) -> Result<(u64, Pressure), Error> {
        let mut map = self.lru::<K, V>(name)?;
        let capacity = map.map().info().map_err(|source| Error::map(name, "read", source))?.max_entries();
        let most = usize::try_from(capacity).unwrap_or(usize::MAX);
        let walk = walk(&mut map, most).map_err(|source| Error::map(name, "walk", source))?;
        Ok((walk.removed, Pressure { map: name, entries: walk.stayed, capacity: u64::from(capacity) }))
    }

    /// Fill level of a map.
    fn count<K: Pod, V: Pod>(&self, name: &'static str) -> Result<Pressure, Error> {
        let (_, pressure) = self.walk::<K, V>(name, |map, capacity| count(map, capacity))?;
        Ok(pressure)
    }

    /// Fill levels of the maps that are not swept.
    fn unswept(&self) -> Result<[Pressure; 2], Error> {
        let tunnels = self.programs.lock().tunnel_slots()?.len();
        Ok([
            Pressure {
                map: TUNNELS,
                entries: u64::try_from(tunnels).unwrap_or(u64::MAX),
                capacity: u64::from(TUNNEL_SLOTS - 1),
            },
            Pressure {
                map: REMOTES,
                entries: u64::try_from(self.remotes.lock().len()).unwrap_or(u64::MAX),
                capacity: u64::from(REMOTE_SLOTS),
            },
        ])
    }

    fn all_pressure(&self) -> Result<Vec<Pressure>, Error> {
        let mut maps =
            vec![self.count::<Tuple4, Entry<Tuple4>>(FLOWS)?, self.count::<Tuple6, Entry<Tuple6>>(FLOWS6)?];
        maps.extend(self.unswept()?);
        Ok(maps)
    }

    pub(super) fn sweep_all(&self, see: See<'_>) -> Result<Swept, Error> {
        // Removes counters of unused VNIs, so that forged ones cannot fill the map; no effect while there is room.
        if let Err(error) = self.programs.lock().prune_tunnels() {
            tracing::warn!(error = api::error::chain(&error), "cannot remove unused tunnel counters");
        }
        let Config { epoch, slack, overdue, refresh, .. } = self.control.get()?;
        let times = Times { slack, overdue, early: early(refresh) };
        let moment = Moment { epoch, now: self.clock.now()?, times };
        let mut swept = Swept::default();
        self.sweep_one::<Tuple4>(FLOWS, moment, &mut swept, see)?;
        self.sweep_one::<Tuple6>(FLOWS6, moment, &mut swept, see)?;
        swept.maps.extend(self.unswept()?);
        Ok(swept)
    }

    fn sweep_one<T: Pod + Tuple + Into<Five> + Hash>(
        &self,
        name: &'static str,
        moment: Moment,
        swept: &mut Swept,
        see: See<'_>,
    ) -> Result<(), Error>
    where
        Entry<T>: Pod,
    {
        let see = &mut |key: &T, entry: &Entry<T>| carried(key, entry).iter().for_each(&mut *see);
        let (removed, pressure) =
            self.walk::<T, Entry<T>>(name, |map, capacity| sweep(map, capacity, moment, see))?;
        swept.removed += removed;
        swept.maps.push(pressure);
        Ok(())
    }

    fn end_all(&self, connections: &Connections) -> Result<u64, Error> {
        let of_4 = self.end_in::<Tuple4>(FLOWS, connections)?;
        Ok(of_4 + self.end_in::<Tuple6>(FLOWS6, connections)?)
    }

    fn end_in<T: Pod + Into<Five>>(&self, name: &'static str, connections: &Connections) -> Result<u64, Error>
    where
        Entry<T>: Pod,
    {
        let mut map = self.lru::<T, Entry<T>>(name)?;
        let capacity = map.map().info().map_err(|source| Error::map(name, "read", source))?.max_entries();
        let most = usize::try_from(capacity).unwrap_or(usize::MAX);
        ended::end(&mut map, most, connections).map_err(|source| Error::map(name, "walk", source))
    }

    fn take_divergences(&self) -> Result<Vec<Divergence>, Error> {
        let mut events = self.events.lock();
        let mut records = Vec::new();
        while let Some(item) = events.next() {
            records.extend(parse(&item));
        }
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let reader = self.reader()?;
        Ok(records.iter().map(|record| reader.divergence(record)).collect())
    }
}

/// A record of the ring buffer. `Divergence` has no invalid values, and its layout is asserted where it is defined.
fn parse(bytes: &[u8]) -> Option<flow::Divergence> {
    flow::Divergence::from_bytes(bytes)
}

fn amount(count: Count) -> Amount {
    Amount { packets: count.packets, bytes: count.bytes }
}

impl FlowCache for PinnedCache {
    fn epoch(&self) -> Result<u32, CacheError> {
        self.control.get().map(|config| config.epoch).map_err(CacheError::from)
    }

    fn invalidate(&self) -> Result<u32, CacheError> {
        self.control.invalidate().map_err(CacheError::from)
    }

    fn change_scopes(&self, change: &ScopeChange) -> Result<(), CacheError> {
        self.scopes.lock().change(change, &self.control).map_err(CacheError::from)
    }

    fn open_scopes(&self) -> Result<(), CacheError> {
        self.scopes.lock().open_all(&self.control).map_err(CacheError::from)
    }

    fn set_gate(&self, gate: Gate) -> Result<(), CacheError> {
        let set = |now| self.control.change(|config| gated(config, gate, now, self.clock.tick));
        self.clock.now().and_then(set).map(drop).map_err(CacheError::from)
    }

    fn gate(&self) -> Result<Gate, CacheError> {
        self.control.get().map(|config| gate_of(config.gate)).map_err(CacheError::from)
    }

    fn hold_left(&self) -> Result<Duration, CacheError> {
        let left = |now| Ok(hold_left(self.control.get()?, now, self.clock.tick));
        self.clock.now().and_then(left).map_err(CacheError::from)
    }

    fn heartbeat(&self) -> Result<(), CacheError> {
        let beat = |now| self.control.change(|config| Config { heartbeat: now, ..config });
        self.clock.now().and_then(beat).map(drop).map_err(CacheError::from)
    }

    fn set_underlay(&self, underlay: Option<Underlay>) -> Result<(), CacheError> {
        self.control.change(|config| with_underlay(config, underlay)).map(drop).map_err(CacheError::from)
    }

    fn set_gateway(&self, gateway: Option<GatewayEnd>) -> Result<(), CacheError> {
        self.programs.lock().set_gateway(gateway).map_err(CacheError::from)
    }

    fn set_physical(&self, wanted: &BTreeMap<u32, PhysicalPort>) -> Result<(), CacheError> {
        self.programs.lock().set_physical(wanted).map_err(CacheError::from)
    }

    fn set_remotes(&self, remotes: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError> {
        let done = self.remotes.lock().set(remotes);
        // Whatever failed: an address that is missing must not be taken for a stranger's.
        let told = self.control.change(|config| with_remotes(config, done.is_ok()));
        done.and(told.map(drop)).map_err(CacheError::from)
    }

    fn set_timing(&self, timing: Timing) -> Result<(), CacheError> {
        self.control
            .change(|config| timed(config, timing, self.clock.tick))
            .map(drop)
            .map_err(CacheError::from)
    }

    fn set_endpoint_fast(&self, id: &str, fast: bool) -> Result<(), CacheError> {
        self.programs.lock().set_endpoint_fast(id, fast).map_err(CacheError::from)
    }

    fn set_endpoint_diverged(&self, id: &str, epoch: u32) -> Result<(), CacheError> {
        self.programs.lock().set_endpoint_diverged(id, epoch).map_err(CacheError::from)
    }

    fn flows(&self, limit: usize) -> Result<Vec<Flow>, CacheError> {
        self.all_flows(limit).map_err(CacheError::from)
    }

    fn each_flow(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), CacheError> {
        self.visit_all(visit).map_err(CacheError::from)
    }

    fn pressure(&self) -> Result<Vec<Pressure>, CacheError> {
        self.all_pressure().map_err(CacheError::from)
    }

    fn sweep(&self) -> Result<Swept, CacheError> {
        Ok(self.sweep_all(&mut |_| ())?)
    }

    fn end_connections(&self, connections: &Connections) -> Result<u64, CacheError> {
        self.end_all(connections).map_err(CacheError::from)
    }

    fn divergences(&self) -> Result<Vec<Divergence>, CacheError> {
        self.take_divergences().map_err(CacheError::from)
    }

    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError> {
        let stats = self.programs.lock().tunnel_stats()?;
        Ok(stats
            .into_iter()
            .map(|(key, counters)| Tunnel {
                remote: super::tunnel_remote(&key),
                vni: key.vni,
                fast_in: amount(counters.fast_rx),
                slow_in: amount(counters.slow_rx),
                fast_out: amount(counters.fast_tx),
                slow_out: amount(counters.slow_tx),
            })
            .collect())
    }

    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError> {
        let mut programs = self.programs.lock();
        let stats = programs.endpoint_stats()?;
        let of = |(endpoint, counters): (String, super::PortCounters)| {
            Ok(EndpointAmounts {
                diverged: programs.endpoint_diverged(&endpoint)?,
                endpoint,
                fast_from: amount(counters.fast_from),
                slow_from: amount(counters.slow_from),
                fast_to: amount(counters.fast_to),
                slow_to: amount(counters.slow_to),
            })
        };
        stats.into_iter().map(of).collect()
    }

    fn interfaces(&self) -> Result<Vec<InterfaceAmounts>, CacheError> {
        let all = self.programs.lock().gateway_stats()?;
        Ok(all
            .into_iter()
            .map(|(interface, received, sent)| InterfaceAmounts {
                interface,
                fast_in: amount(received.fast),
                slow_in: amount(received.slow),
                fast_out: amount(sent.fast),
                slow_out: amount(sent.slow),
            })
            .collect())
    }

    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError> {
        Ok(self.programs.lock().reasons()?)
    }

    fn services(&self) -> Option<&dyn ServiceCache> {
        Some(self)
    }
}

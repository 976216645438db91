//! Reading counters. All are per CPU and summed here.

use std::{collections::BTreeMap, net::Ipv6Addr};

use aya::{
    Ebpf, Pod,
    maps::{Map, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues},
    util::nr_cpus,
};
use ebpf::{
    Reason,
    maps::{PortCounters, SLOT_UPLINK, TUNNEL_SLOTS, TunnelCounters, TunnelKey},
};

use super::{
    Datapath, Error,
    shape::{ENDPOINT_STATS, REASONS, TUNNEL_STATS},
};

impl Datapath {
    /// Geneve packets and bytes by peer and VNI, in the order of the keys.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn tunnel_stats(&self) -> Result<Vec<(TunnelKey, TunnelCounters)>, Error> {
        let map: PerCpuHashMap<&MapData, TunnelKey, TunnelCounters> = typed_ref(&self.ebpf, TUNNEL_STATS)?;
        let mut stats = Vec::new();
        for key in map.keys() {
            let key = key.map_err(|source| failed(TUNNEL_STATS, "list", source))?;
            match map.get(&key, 0) {
                Ok(values) => stats.push((key, sum(&values, TunnelCounters::plus))),
                // Pruned since it was listed.
                Err(MapError::KeyNotFound) => {}
                Err(source) => return Err(failed(TUNNEL_STATS, "read", source)),
            }
        }
        stats.sort_by_key(|(key, _)| *key);
        Ok(stats)
    }

    /// Packets and bytes of every pod's port, by endpoint id.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn endpoint_stats(&self) -> Result<Vec<(String, PortCounters)>, Error> {
        self.endpoints.iter().map(|(id, port)| Ok((id.clone(), self.port_counters(port.slot)?))).collect()
    }

    /// Packets and bytes of the uplink; `from` is received.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn uplink_stats(&self) -> Result<PortCounters, Error> {
        self.port_counters(SLOT_UPLINK)
    }

    /// How often each reason was counted, all reasons, in the order of their numbers.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, Error> {
        let map: PerCpuArray<&MapData, u64> = typed_ref(&self.ebpf, REASONS)?;
        Reason::ALL
            .into_iter()
            .map(|reason| {
                let values = map.get(&reason.index(), 0).map_err(|source| failed(REASONS, "read", source))?;
                Ok((reason, sum(&values, u64::wrapping_add)))
            })
            .collect()
    }

    /// Keeps made-up VNIs from filling `TUNNEL_STATS` for good: if it is more than three quarters full, removes the
    /// tunnels that counted nothing since the call before. Returns how many. To be called now and then.
    ///
    /// # Errors
    /// The map cannot be read or written.
    pub fn prune_tunnels(&mut self) -> Result<usize, Error> {
        let now: BTreeMap<_, _> = self.tunnel_stats()?.into_iter().collect();
        let crowded = u32::try_from(now.len()).is_ok_and(|entries| entries > TUNNEL_SLOTS / 4 * 3);
        let mut removed = 0;
        if crowded {
            let mut map: PerCpuHashMap<&mut MapData, TunnelKey, TunnelCounters> =
                typed(&mut self.ebpf, TUNNEL_STATS)?;
            for (key, counters) in &now {
                if self.tunnels_before.get(key) == Some(counters) {
                    map.remove(key).map_err(|source| failed(TUNNEL_STATS, "remove from", source))?;
                    removed += 1;
                }
            }
        }
        self.tunnels_before = now;
        Ok(removed)
    }

    fn port_counters(&self, slot: u32) -> Result<PortCounters, Error> {
        let map: PerCpuArray<&MapData, PortCounters> = typed_ref(&self.ebpf, ENDPOINT_STATS)?;
        let values = map.get(&slot, 0).map_err(|source| failed(ENDPOINT_STATS, "read", source))?;
        Ok(sum(&values, PortCounters::plus))
    }

    /// Sets a port's counters to zero.
    pub(super) fn zero_port_counters(&mut self, slot: u32) -> Result<(), Error> {
        let cpus = nr_cpus().map_err(|(what, error)| {
            failed(
                ENDPOINT_STATS,
                "write",
                MapError::IoError(std::io::Error::new(error.kind(), format!("{what}: {error}"))),
            )
        })?;
        let zero = PerCpuValues::try_from(vec![PortCounters::default(); cpus])
            .map_err(|error| failed(ENDPOINT_STATS, "write", MapError::IoError(error)))?;
        let mut map: PerCpuArray<&mut MapData, PortCounters> = typed(&mut self.ebpf, ENDPOINT_STATS)?;
        map.set(slot, zero, 0).map_err(|source| failed(ENDPOINT_STATS, "write", source))
    }
}

/// The remote address of a tunnel, IPv4 as such.
pub(super) fn remote(key: &TunnelKey) -> std::net::IpAddr {
    Ipv6Addr::from(key.remote).to_canonical()
}

fn sum<T: Pod + Default>(values: &PerCpuValues<T>, plus: impl Fn(T, T) -> T) -> T {
    values.iter().fold(T::default(), |total, value| plus(total, *value))
}

fn failed(map: &'static str, action: &'static str, source: MapError) -> Error {
    Error::Map { map, action, source: Box::new(source) }
}

/// A map of the object under its type.
pub(super) fn typed<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(Error::NotInObject { what: "map", name })?;
    T::try_from(map).map_err(|source| failed(name, "open", source))
}

/// A map of the object under its type, for reading.
fn typed_ref<'a, T>(ebpf: &'a Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<&'a Map, Error = MapError>,
{
    let map = ebpf.map(name).ok_or(Error::NotInObject { what: "map", name })?;
    T::try_from(map).map_err(|source| failed(name, "open", source))
}

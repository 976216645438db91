//! Reads the counters of the programs, which are per CPU, and sums them.

use std::{collections::BTreeMap, net::Ipv6Addr};

use aya::{
    Ebpf, Pod,
    maps::{HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues, Queue},
    util::nr_cpus,
};
use ebpf::{
    Reason,
    layout::maps::{PortCounters, SLOT_UPLINK, TUNNEL_OTHER, TUNNEL_SLOTS, TunnelCounters, TunnelKey},
};

use super::{
    Error, Programs,
    shape::{ENDPOINT_STATS, REASONS, TUNNEL_FREE, TUNNEL_STATS, TUNNELS},
};

impl Programs {
    /// Geneve packets and bytes by peer and VNI, in the order of the keys.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn tunnel_stats(&self) -> Result<Vec<(TunnelKey, TunnelCounters)>, Error> {
        let slots: HashMap<&MapData, TunnelKey, u32> = typed_ref(&self.ebpf, TUNNELS)?;
        let counters: PerCpuArray<&MapData, TunnelCounters> = typed_ref(&self.ebpf, TUNNEL_STATS)?;
        let mut stats = Vec::new();
        for entry in slots.iter() {
            let (key, slot) = entry.map_err(|source| Error::map(TUNNELS, "list", source))?;
            let values = counters.get(&slot, 0).map_err(|source| Error::map(TUNNEL_STATS, "read", source))?;
            stats.push((key, sum(&values, TunnelCounters::plus)));
        }
        stats.sort_by_key(|(key, _)| *key);
        Ok(stats)
    }

    /// The tunnel of each slot.
    pub(super) fn tunnel_slots(&self) -> Result<BTreeMap<u32, TunnelKey>, Error> {
        let slots: HashMap<&MapData, TunnelKey, u32> = typed_ref(&self.ebpf, TUNNELS)?;
        let entries = slots.iter().map(|entry| entry.map(|(key, slot)| (slot, key)));
        entries.collect::<Result<_, _>>().map_err(|source| Error::map(TUNNELS, "list", source))
    }

    /// Packets and bytes of every pod's port, by endpoint id.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn endpoint_stats(&self) -> Result<Vec<(String, PortCounters)>, Error> {
        self.endpoints.iter().map(|(id, port)| Ok((id.clone(), self.port_counters(port.slot)?))).collect()
    }

    /// Packets and bytes of the uplink; `from` is received. Those of the fast path are the sums over its tunnels.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn uplink_stats(&self) -> Result<PortCounters, Error> {
        let mut total = self.port_counters(SLOT_UPLINK)?;
        for (_, tunnel) in self.tunnel_stats()? {
            total.fast_from = total.fast_from.plus(tunnel.fast_rx);
            total.fast_to = total.fast_to.plus(tunnel.fast_tx);
        }
        Ok(total)
    }

    /// Packet counts of all reasons, in the order of their numbers.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, Error> {
        let map: PerCpuArray<&MapData, u64> = typed_ref(&self.ebpf, REASONS)?;
        Reason::ALL
            .into_iter()
            .map(|reason| {
                let values =
                    map.get(&reason.index(), 0).map_err(|source| Error::map(REASONS, "read", source))?;
                Ok((reason, sum(&values, u64::wrapping_add)))
            })
            .collect()
    }

    /// Keeps forged VNIs from filling `TUNNELS` permanently: if it is more than three quarters full, removes the tunnels that counted
    /// nothing since the previous call, and returns their number. Call it periodically. Cached flows with the slots of these tunnels
    /// are invalidated, and the slots are free at the next call.
    ///
    /// # Errors
    /// A map cannot be read or written.
    pub fn prune_tunnels(&mut self) -> Result<usize, Error> {
        let idle = std::mem::take(&mut self.tunnels_idle);
        self.zero_tunnel_counters(&idle)?;
        self.give_back_tunnel_slots(&idle)?;
        let now: BTreeMap<_, _> = self.tunnel_stats()?.into_iter().collect();
        let crowded = u32::try_from(now.len()).is_ok_and(|entries| entries > TUNNEL_SLOTS / 4 * 3);
        if crowded {
            let removed = self.remove_idle_tunnels(&now);
            // Whatever failed: what was removed is still known by its slot.
            self.control.invalidate()?;
            removed?;
        }
        self.tunnels_before = now;
        Ok(self.tunnels_idle.len())
    }

    /// Removes the tunnels that counted nothing since `tunnels_before`.
    fn remove_idle_tunnels(&mut self, now: &BTreeMap<TunnelKey, TunnelCounters>) -> Result<(), Error> {
        let mut map: HashMap<&mut MapData, TunnelKey, u32> = typed(&mut self.ebpf, TUNNELS)?;
        for (key, counters) in now {
            if self.tunnels_before.get(key) == Some(counters) {
                let slot = map.get(key, 0).map_err(|source| Error::map(TUNNELS, "read", source))?;
                map.remove(key).map_err(|source| Error::map(TUNNELS, "remove from", source))?;
                self.tunnels_idle.push(slot);
            }
        }
        Ok(())
    }

    /// Marks every slot as free, in a new map.
    pub(super) fn fill_tunnel_slots(&mut self) -> Result<(), Error> {
        let all: Vec<u32> = (0..TUNNEL_SLOTS).filter(|slot| *slot != TUNNEL_OTHER).collect();
        self.give_back_tunnel_slots(&all)
    }

    fn give_back_tunnel_slots(&mut self, slots: &[u32]) -> Result<(), Error> {
        let mut free: Queue<&mut MapData, u32> = typed(&mut self.ebpf, TUNNEL_FREE)?;
        for slot in slots {
            free.push(slot, 0).map_err(|source| Error::map(TUNNEL_FREE, "write", source))?;
        }
        Ok(())
    }

    fn zero_tunnel_counters(&mut self, slots: &[u32]) -> Result<(), Error> {
        if slots.is_empty() {
            return Ok(());
        }
        let cpus = cpus(TUNNEL_STATS)?;
        let mut map: PerCpuArray<&mut MapData, TunnelCounters> = typed(&mut self.ebpf, TUNNEL_STATS)?;
        for slot in slots {
            let zero = PerCpuValues::try_from(vec![TunnelCounters::default(); cpus])
                .map_err(|error| Error::map(TUNNEL_STATS, "write", MapError::IoError(error)))?;
            map.set(*slot, zero, 0).map_err(|source| Error::map(TUNNEL_STATS, "write", source))?;
        }
        Ok(())
    }

    pub(super) fn port_counters(&self, slot: u32) -> Result<PortCounters, Error> {
        let map: PerCpuArray<&MapData, PortCounters> = typed_ref(&self.ebpf, ENDPOINT_STATS)?;
        let values = map.get(&slot, 0).map_err(|source| Error::map(ENDPOINT_STATS, "read", source))?;
        Ok(sum(&values, PortCounters::plus))
    }

    /// Sets a port's counters to zero.
    pub(super) fn zero_port_counters(&mut self, slot: u32) -> Result<(), Error> {
        let cpus = cpus(ENDPOINT_STATS)?;
        let zero = PerCpuValues::try_from(vec![PortCounters::default(); cpus])
            .map_err(|error| Error::map(ENDPOINT_STATS, "write", MapError::IoError(error)))?;
        let mut map: PerCpuArray<&mut MapData, PortCounters> = typed(&mut self.ebpf, ENDPOINT_STATS)?;
        map.set(slot, zero, 0).map_err(|source| Error::map(ENDPOINT_STATS, "write", source))
    }
}

/// CPUs that this machine may have; `map` is for the message.
pub(super) fn cpus(map: &'static str) -> Result<usize, Error> {
    nr_cpus().map_err(|(what, error)| {
        let error = std::io::Error::new(error.kind(), format!("{what}: {error}"));
        Error::map(map, "write", MapError::IoError(error))
    })
}

/// Remote of a tunnel; an IPv4-mapped address as IPv4.
pub(super) fn remote(key: &TunnelKey) -> std::net::IpAddr {
    Ipv6Addr::from(key.remote).to_canonical()
}

fn sum<T: Pod + Default>(values: &PerCpuValues<T>, plus: impl Fn(T, T) -> T) -> T {
    values.iter().fold(T::default(), |total, value| plus(total, *value))
}

/// A map of the object under its type.
pub(super) fn typed<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(Error::NotInObject { what: "map", name })?;
    T::try_from(map).map_err(|source| Error::map(name, "open", source))
}

/// A map of the object under its type, for reading.
fn typed_ref<'a, T>(ebpf: &'a Ebpf, name: &'static str) -> Result<T, Error>
where
    T: TryFrom<&'a Map, Error = MapError>,
{
    let map = ebpf.map(name).ok_or(Error::NotInObject { what: "map", name })?;
    T::try_from(map).map_err(|source| Error::map(name, "open", source))
}

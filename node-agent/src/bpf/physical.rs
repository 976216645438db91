//! Interfaces of bridges that lead to physical networks (`localnet`), in direct mode: the bridge's interface there, and the bridge's own port,
//! which may get copies of what the bridge floods.

use std::collections::BTreeMap;

use ebpf::layout::maps::{PORT_FAST, PORT_PRESENT, Port, PortCounters, SLOT_OUTSIDE};

use super::{
    Error, Programs,
    links::{self, physical_hooks},
    object::Program,
    pins,
    slots::Slots,
};
use crate::flow_cache::PhysicalPort;

/// State of such an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Physical {
    port: PhysicalPort,
    /// Slot of its counters.
    slot: u32,
}

impl Programs {
    /// Attaches the programs to these interfaces, and lets go of all others. The same again changes nothing, but that links which went
    /// with an interface are made again.
    ///
    /// # Errors
    /// The kernel refuses, or an interface does not exist. What was done is kept, so that a further try goes on from there.
    pub fn set_physical(&mut self, wanted: &BTreeMap<u32, PhysicalPort>) -> Result<(), Error> {
        for (&ifindex, &port) in wanted {
            let known =
                self.physical.get(&ifindex).copied().filter(|known| known.port.is_own() == port.is_own());
            let slot = match known {
                Some(known) => known.slot,
                None => self.physical_slot(port)?,
            };
            self.physical.insert(ifindex, Physical { port, slot });
            self.wire_physical(ifindex)?;
        }
        self.drop_physical(|ifindex| !wanted.contains_key(&ifindex))
    }

    fn physical_slot(&mut self, port: PhysicalPort) -> Result<u32, Error> {
        if port.is_own() {
            return Ok(SLOT_OUTSIDE);
        }
        let slot = self.slots.take().ok_or(Error::NoSlot { capacity: Slots::CAPACITY })?;
        self.zero_port_counters(slot)?;
        Ok(slot)
    }

    fn wire_physical(&mut self, ifindex: u32) -> Result<(), Error> {
        let Some(Physical { port, slot }) = self.physical.get(&ifindex).copied() else { return Ok(()) };
        let fast = if port.is_fast() { PORT_FAST } else { 0 };
        self.update_entry(ifindex, Port { flags: PORT_PRESENT | fast, slot, ..Port::default() })?;
        let dir = self.pins.physical();
        for hook in physical_hooks(ifindex, port) {
            links::ensure(&mut self.ebpf, &dir, hook, self.uplink_via)?;
        }
        Ok(())
    }

    /// Lets go of interfaces: what brings packets into OVS first.
    fn drop_physical(&mut self, goes: impl Fn(u32) -> bool) -> Result<(), Error> {
        let dir = self.pins.physical();
        let mut places = pins::places(&dir)?;
        places.sort_by_key(|place| place.program != Program::FromPhysical);
        for place in places.into_iter().filter(|place| goes(place.ifindex)) {
            links::remove(&dir, place)?;
        }
        let gone: Vec<u32> = self.physical.keys().copied().filter(|ifindex| goes(*ifindex)).collect();
        for ifindex in gone {
            self.clear_entry(ifindex)?;
            if let Some(Physical { slot, .. }) = self.physical.remove(&ifindex) {
                self.slots.give_back(slot);
            }
        }
        Ok(())
    }

    /// Takes over the interfaces of a previous agent: their links get the loaded programs. Before pods' ports, which take free slots.
    pub(super) fn adopt_physical(&mut self) -> Result<(), Error> {
        let dir = self.pins.physical();
        for place in pins::places(&dir)? {
            let ifindex = place.ifindex;
            let entry = self.read_entry(ifindex)?.unwrap_or_default();
            let port = match place.program {
                Program::FromPhysical => PhysicalPort::Interface { fast: entry.flags & PORT_FAST != 0 },
                Program::ToHost => PhysicalPort::Own,
                _ => continue,
            };
            let alive = physical_hooks(ifindex, port)
                .into_iter()
                .all(|hook| links::alive(&mut self.ebpf, &dir, hook));
            if alive {
                let claimed = !port.is_own() && self.slots.claim(entry.slot);
                let slot = if claimed { entry.slot } else { self.physical_slot(port)? };
                self.physical.insert(ifindex, Physical { port, slot });
                self.wire_physical(ifindex)?;
            }
        }
        let known: Vec<u32> = self.physical.keys().copied().collect();
        self.drop_physical(|ifindex| !known.contains(&ifindex))
    }

    /// The interfaces to which programs are attached.
    pub fn physical(&self) -> BTreeMap<u32, PhysicalPort> {
        self.physical.iter().map(|(ifindex, physical)| (*ifindex, physical.port)).collect()
    }

    /// Sum of the counters of all interfaces there and of the second uplink; none without any.
    pub(super) fn physical_stats(&self) -> Result<Option<PortCounters>, Error> {
        let mut sum = None;
        let slots =
            self.physical.values().filter(|physical| !physical.port.is_own()).map(|physical| physical.slot);
        for slot in slots.chain(self.second_uplink.map(|uplink| uplink.slot)) {
            let counters = self.port_counters(slot)?;
            sum = Some(sum.map_or(counters, |sum: PortCounters| sum.plus(counters)));
        }
        Ok(sum)
    }
}

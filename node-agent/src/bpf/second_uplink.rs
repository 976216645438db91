//! The node's second uplink in interposed mode. Its packets always go through OVS; the programs carry them across its shim, and take the
//! numbers of notes off what leaves by it. In direct mode it is an interface of a physical network.

use ebpf::layout::maps::Port;

use super::{
    Error, Failures, Mode, Programs,
    links::{self, Kind, hooks},
    pins,
    ports::{check_interfaces, interfaces},
    slots::Slots,
};

/// The second uplink with its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SecondUplink {
    pub(super) ifindex: u32,
    pub(super) mode: Mode,
    /// Slot of its counters.
    pub(super) slot: u32,
}

impl Programs {
    /// Attaches the programs to the second uplink and its shim, or moves them to another interface. Repeating the call changes nothing.
    ///
    /// # Errors
    /// An interface does not exist, or the kernel rejects a step. What was done is kept, so that another call goes on from there.
    pub fn set_second_uplink(&mut self, ifindex: u32, mode: Mode) -> Result<(), Error> {
        check_interfaces(ifindex, mode).map_err(|problem| Error::BadUplink { ifindex, problem })?;
        let before = self.second_uplink;
        let slot = match before {
            Some(before) => before.slot,
            None => {
                let slot = self.slots.take().ok_or(Error::NoSlot { capacity: Slots::CAPACITY })?;
                self.zero_port_counters(slot)?;
                slot
            }
        };
        self.second_uplink = Some(SecondUplink { ifindex, mode, slot });
        // Not of the fast path: nothing is looked up or learned for it.
        self.write_entries(ifindex, mode, Port { slot, ..Port::default() })?;
        let dir = self.pins.second_uplink();
        pins::create_dir(&dir)?;
        let wanted = hooks(Kind::Pod, ifindex, mode);
        links::ensure_only(&mut self.ebpf, &dir, &wanted, self.uplink_via)?;
        if let Some(before) = before {
            for stale in interfaces(before.ifindex, before.mode).difference(&interfaces(ifindex, mode)) {
                self.clear_entry(*stale)?;
            }
        }
        Ok(())
    }

    /// Detaches the second uplink's programs and removes its entries; without one it does nothing.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn clear_second_uplink(&mut self) -> Result<(), Failures> {
        let mut failures = Failures(Vec::new());
        links::remove_dir(&self.pins.second_uplink(), &mut failures);
        if let Some(SecondUplink { ifindex, mode, slot }) = self.second_uplink.take() {
            for stale in interfaces(ifindex, mode) {
                failures.note(self.clear_entry(stale));
            }
            self.slots.give_back(slot);
        }
        failures.check()
    }

    /// Takes over the second uplink of a previous agent: its links get the loaded programs. Before pods' ports, which take free slots.
    pub(super) fn adopt_second_uplink(&mut self) -> Result<(), Error> {
        let dir = self.pins.second_uplink();
        let places = pins::places(&dir)?;
        if let Some((ifindex, mode)) = Kind::Pod.recognise(&places)
            && hooks(Kind::Pod, ifindex, mode)
                .into_iter()
                .all(|hook| links::alive(&mut self.ebpf, &dir, hook))
        {
            let slot = self.read_entry(ifindex)?.map_or(0, |entry| entry.slot);
            if self.slots.claim(slot) {
                self.second_uplink = Some(SecondUplink { ifindex, mode, slot });
            }
            return self.set_second_uplink(ifindex, mode);
        }
        for place in places {
            links::remove(&dir, place)?;
        }
        pins::remove_dir(&dir)
    }
}

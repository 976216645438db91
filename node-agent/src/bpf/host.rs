//! Interfaces by which the node itself is connected to the bridge: the bridge's own port, and the management port.

use std::collections::BTreeSet;

use ebpf::layout::maps::{PORT_INTERPOSED, PORT_PRESENT, Port};

use super::{
    Error, Programs,
    links::{self, host_hooks},
    object::Program,
    pins,
};

impl Programs {
    /// Attaches the programs to these interfaces, and lets go of all others. The same again changes nothing, but that links which
    /// went with an interface of OVS are made again. `interposed`: packets carry their notes' numbers themselves.
    ///
    /// # Errors
    /// The kernel refuses. What was done is kept, so that a further try goes on from there.
    pub fn set_host_interfaces(&mut self, wanted: &BTreeSet<u32>, interposed: bool) -> Result<(), Error> {
        let flags = PORT_PRESENT | if interposed { PORT_INTERPOSED } else { 0 };
        let dir = self.pins.host();
        for &ifindex in wanted {
            self.write_entry(ifindex, Port { flags, ..Port::default() })?;
            self.host.insert(ifindex);
            for hook in host_hooks(ifindex) {
                links::ensure(&mut self.ebpf, &dir, hook, self.uplink_via)?;
            }
        }
        for place in pins::places(&dir)? {
            if !wanted.contains(&place.ifindex) {
                links::remove(&dir, place)?;
            }
        }
        for ifindex in self.host.difference(wanted).copied().collect::<Vec<_>>() {
            self.clear_entry(ifindex)?;
            self.host.remove(&ifindex);
        }
        Ok(())
    }

    /// The interfaces of the node to which programs are attached.
    pub fn host_interfaces(&self) -> &BTreeSet<u32> {
        &self.host
    }

    /// Takes over the interfaces of a previous agent: their links get the loaded programs.
    pub(super) fn adopt_host(&mut self) -> Result<(), Error> {
        let dir = self.pins.host();
        let mut kept = BTreeSet::new();
        let mut interposed = false;
        for place in pins::places(&dir)?.iter().filter(|place| place.program == Program::FromHost) {
            let ifindex = place.ifindex;
            if host_hooks(ifindex).into_iter().all(|hook| links::alive(&mut self.ebpf, &dir, hook)) {
                let entry = self.read_entry(ifindex)?.unwrap_or_default();
                interposed |= entry.flags & PORT_INTERPOSED != 0;
                kept.insert(ifindex);
            }
        }
        interposed |= self.uplink.is_some_and(|(_, mode)| mode != super::Mode::Direct);
        self.set_host_interfaces(&kept, interposed)
    }
}

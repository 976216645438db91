//! Interfaces by which the node itself is connected to the bridges: the gateway bridge's own port, and the management port. Also
//! whether their traffic, and that of the uplink without a tunnel, uses the fast path.

use std::collections::BTreeMap;

use ebpf::layout::maps::{
    Config, Count, PORT_FAST, PORT_INTERPOSED, PORT_PRESENT, PORT_UPLINK, Port, SLOT_BRIDGE, SLOT_MANAGEMENT,
    SLOT_OUTSIDE, SLOT_UPLINK,
};

use super::{
    Error, NodePort, Programs,
    links::{self, host_hooks},
    object::Program,
    pins,
};
use crate::flow_cache::GatewayEnd;

/// Packets and bytes by path.
pub(super) struct Paths {
    pub(super) slow: Count,
    pub(super) fast: Count,
}

impl NodePort {
    const fn slot(self) -> u32 {
        match self {
            Self::Bridge => SLOT_BRIDGE,
            Self::Management => SLOT_MANAGEMENT,
            Self::SecondBridge => SLOT_OUTSIDE,
        }
    }
}

impl Programs {
    /// Attaches the programs to these interfaces, and lets go of all others. The same again changes nothing, but that links which
    /// went with an interface of OVS are made again. `interposed`: packets carry their notes' numbers themselves.
    ///
    /// # Errors
    /// The kernel refuses. What was done is kept, so that a further try goes on from there.
    pub fn set_host_interfaces(
        &mut self,
        wanted: &BTreeMap<u32, NodePort>,
        interposed: bool,
    ) -> Result<(), Error> {
        let dir = self.pins.host();
        for (&ifindex, &port) in wanted {
            self.update_entry(ifindex, self.host_entry(port, interposed))?;
            self.host.insert(ifindex, port);
            for hook in host_hooks(ifindex) {
                links::ensure(&mut self.ebpf, &dir, hook, self.uplink_via)?;
            }
        }
        for place in pins::places(&dir)? {
            if !wanted.contains_key(&place.ifindex) {
                links::remove(&dir, place)?;
            }
        }
        for ifindex in
            self.host.keys().filter(|ifindex| !wanted.contains_key(ifindex)).copied().collect::<Vec<_>>()
        {
            self.clear_entry(ifindex)?;
            self.host.remove(&ifindex);
        }
        Ok(())
    }

    /// Writes an entry, but not what the programs have written there.
    pub(super) fn update_entry(&mut self, ifindex: u32, entry: Port) -> Result<(), Error> {
        let old = self.read_entry(ifindex)?;
        let entry = Port { diverged: old.map_or(0, |old| old.diverged), ..entry };
        if old == Some(entry) { Ok(()) } else { self.write_entry(ifindex, entry) }
    }

    fn host_entry(&self, port: NodePort, interposed: bool) -> Port {
        let bit = |on, bit| if on { bit } else { 0 };
        let fast = self.gateway.is_some() && port != NodePort::SecondBridge;
        let flags = PORT_PRESENT | bit(interposed, PORT_INTERPOSED) | bit(fast, PORT_FAST);
        Port { flags, slot: port.slot(), ..Port::default() }
    }

    /// The entry of the uplink, without the flags of its mode.
    pub(super) fn uplink_entry(&self) -> Port {
        let fast = if self.gateway.is_some() { PORT_FAST } else { 0 };
        let mac = self.gateway.map_or([0; 6], |end| end.mac.0);
        Port { slot: SLOT_UPLINK, flags: PORT_UPLINK | fast, mac, ..Port::default() }
    }

    /// Sets what the fast path needs for packets of the node, and for those of the uplink without a tunnel. `None`: they take the slow
    /// path.
    ///
    /// # Errors
    /// A map cannot be written.
    pub(super) fn set_gateway(&mut self, gateway: Option<GatewayEnd>) -> Result<(), Error> {
        self.gateway = gateway;
        if let Some((uplink, mode)) = self.uplink {
            self.write_entries(uplink, mode, self.uplink_entry())?;
        }
        for (ifindex, port) in self.host.clone() {
            let old = self.read_entry(ifindex)?.unwrap_or_default();
            self.update_entry(ifindex, self.host_entry(port, old.flags & PORT_INTERPOSED != 0))?;
        }
        let mtu = gateway.map_or(0, |end| u16::try_from(end.mtu).unwrap_or(u16::MAX));
        self.control.change(|config| Config { uplink_mtu: mtu, ..config }).map(drop)
    }

    /// The interfaces of the node to which programs are attached.
    pub fn host_interfaces(&self) -> &BTreeMap<u32, NodePort> {
        &self.host
    }

    /// Packets and bytes of the uplink, of the node's ports, and of the interfaces of physical networks together: name, received by the
    /// node, sent by it. Fast ones of the uplink are those outside of tunnels.
    ///
    /// # Errors
    /// The map cannot be read.
    pub(super) fn gateway_stats(&self) -> Result<Vec<(&'static str, Paths, Paths)>, Error> {
        let paths = |slow, fast| Paths { slow, fast };
        let uplink = self.port_counters(SLOT_UPLINK)?;
        let mut all = vec![(
            "uplink",
            paths(uplink.slow_from, uplink.fast_from),
            paths(uplink.slow_to, uplink.fast_to),
        )];
        for (name, port) in [("bridge", NodePort::Bridge), ("management", NodePort::Management)] {
            let counters = self.port_counters(port.slot())?;
            all.push((
                name,
                paths(counters.slow_to, counters.fast_to),
                paths(counters.slow_from, counters.fast_from),
            ));
        }
        if let Some(counters) = self.physical_stats()? {
            all.push((
                "physical",
                paths(counters.slow_from, counters.fast_from),
                paths(counters.slow_to, counters.fast_to),
            ));
        }
        Ok(all)
    }

    /// Takes over what the uplink's entry says of a previous agent's gateway.
    pub(super) fn adopt_gateway(&mut self, uplink: u32) -> Result<(), Error> {
        let entry = self.read_entry(uplink)?.unwrap_or_default();
        let mtu = self.control.get()?.uplink_mtu.into();
        let fast = entry.flags & PORT_FAST != 0;
        self.gateway = fast.then_some(GatewayEnd { mac: api::MacAddr(entry.mac), mtu });
        Ok(())
    }

    /// Takes over the interfaces of a previous agent: their links get the loaded programs.
    pub(super) fn adopt_host(&mut self) -> Result<(), Error> {
        let dir = self.pins.host();
        let mut kept = BTreeMap::new();
        let mut interposed = false;
        for place in pins::places(&dir)?.iter().filter(|place| place.program == Program::FromHost) {
            let ifindex = place.ifindex;
            if host_hooks(ifindex).into_iter().all(|hook| links::alive(&mut self.ebpf, &dir, hook)) {
                let entry = self.read_entry(ifindex)?.unwrap_or_default();
                interposed |= entry.flags & PORT_INTERPOSED != 0;
                let port = match entry.slot {
                    SLOT_MANAGEMENT => NodePort::Management,
                    SLOT_OUTSIDE => NodePort::SecondBridge,
                    _ => NodePort::Bridge,
                };
                kept.insert(ifindex, port);
            }
        }
        interposed |= self.uplink.is_some_and(|(_, mode)| mode != super::Mode::Direct);
        self.set_host_interfaces(&kept, interposed)
    }
}

//! Ports of pods and uplink: entries in map `ENDPOINTS` and attached programs.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use aya::maps::{Array, HashMap, MapData, MapError};
use ebpf::layout::maps::{
    Config, PORT_ARRAY_SIZE, PORT_FAST, PORT_INTERPOSED, PORT_PRESENT, Port, SLOT_UPLINK,
};

use super::{
    Attached, Endpoint, EndpointState, Error, Failures, Mode, Programs,
    config::next_epoch,
    error::is_absent,
    links::{self, Kind, Via, hooks},
    pins,
    shape::{ENDPOINTS, ENDPOINTS_HIGH},
    slots::Slots,
};

impl Programs {
    /// Attaches the programs to a pod's port and adds it to the maps. Repeating the call changes nothing; with other interfaces the old
    /// ones are detached first. Pins and entries of another endpoint that has one of these interfaces are removed: an index belongs to
    /// one interface, so that endpoint's interface no longer exists.
    ///
    /// # Errors
    /// The configuration is invalid, an interface does not exist, or the kernel rejects a step. Then nothing is left attached.
    pub fn add_endpoint(&mut self, config: &Endpoint) -> Result<(), Error> {
        let (ipv4, ipv6) = check(config)?;
        let Endpoint { id, host_ifindex, mode, mac, .. } = config;
        if self.endpoints.get(id).is_some_and(|old| (old.host_ifindex, old.mode) != (*host_ifindex, *mode)) {
            self.drop_for_replacement(id)?;
        }
        let ours = interfaces(*host_ifindex, *mode);
        if let Some((uplink, _)) =
            self.uplink.filter(|(uplink, mode)| !ours.is_disjoint(&interfaces(*uplink, *mode)))
        {
            return Err(bad(id, format!("interface is in use by the uplink ({uplink})")));
        }
        let stale: Vec<String> = self
            .endpoints
            .iter()
            .filter(|(other, port)| {
                *other != id && !ours.is_disjoint(&interfaces(port.host_ifindex, port.mode))
            })
            .map(|(other, _)| other.clone())
            .collect();
        for other in stale {
            tracing::warn!(endpoint = %other, by = %id, "interface index now belongs to another endpoint; removing the old one");
            self.drop_for_replacement(&other)?;
        }

        let known = self.endpoints.get(id).map(|old| old.slot);
        let slot = match known {
            Some(slot) => slot,
            None => {
                let slot = self.slots.take().ok_or(Error::NoSlot { capacity: Slots::CAPACITY })?;
                if let Err(error) = self.zero_port_counters(slot) {
                    self.slots.give_back(slot);
                    return Err(error);
                }
                slot
            }
        };
        let fast = self.endpoints.get(id).is_some_and(|old| old.fast);
        let port = Attached { host_ifindex: *host_ifindex, mode: *mode, slot, ipv4, ipv6, mac: *mac, fast };
        self.endpoints.insert(id.clone(), port.clone());
        let host = if config.shares_ingress { self.via_beside_others(id, *mode) } else { Via::Clsact };
        self.wire_endpoint(id, &port, host).map_err(|cause| match self.remove_endpoint(id) {
            Ok(()) => cause,
            Err(rollback) => Error::Rollback { cause: Box::new(cause), rollback },
        })
    }

    /// Detaches and removes a pod's port: links, map entries, counters. All steps are tried even if one fails. An endpoint that does
    /// not exist is no error.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove_endpoint(&mut self, id: &str) -> Result<(), Failures> {
        let mut failures = Failures(Vec::new());
        if !pins::valid_id(id) {
            return Ok(());
        }
        links::remove_dir(&self.pins.endpoint(id), &mut failures);
        if let Some(port) = self.endpoints.remove(id) {
            for ifindex in interfaces(port.host_ifindex, port.mode) {
                failures.note(self.clear_entry(ifindex));
            }
            failures.note(self.zero_port_counters(port.slot));
            self.slots.give_back(port.slot);
        }
        failures.check()
    }

    /// The attached ports, and whether their links are alive.
    pub fn endpoints(&mut self) -> Vec<EndpointState> {
        let Self { ebpf, pins, endpoints, .. } = self;
        let mut state = |(id, port): (&String, &Attached)| {
            let dir = pins.endpoint(id);
            let Attached { host_ifindex, mode, ipv4, ipv6, mac, .. } = *port;
            let mut hooks = hooks(Kind::Pod, host_ifindex, mode).into_iter();
            let alive = hooks.all(|hook| links::alive(ebpf, &dir, hook));
            EndpointState { id: id.clone(), host_ifindex, mode, ipv4, ipv6, mac, alive }
        };
        endpoints.iter().map(&mut state).collect()
    }

    /// Ids of the attached ports, as known to this process.
    pub fn endpoint_ids(&self) -> impl Iterator<Item = &str> {
        self.endpoints.keys().map(String::as_str)
    }

    /// Attaches the programs to the uplink, or moves them to another interface or mode. Repeating the call changes nothing. The new
    /// links are created before the old ones are removed.
    ///
    /// # Errors
    /// An interface does not exist, or the kernel rejects a step. Links that were created are kept, so that another call continues from
    /// there.
    pub fn set_uplink(&mut self, uplink: u32, mode: Mode) -> Result<(), Error> {
        check_interfaces(uplink, mode).map_err(|problem| Error::BadUplink { ifindex: uplink, problem })?;
        let before = self.uplink;
        if before.is_none_or(|(ifindex, _)| ifindex != uplink) {
            self.zero_port_counters(SLOT_UPLINK)?;
        }
        self.write_entries(uplink, mode, self.uplink_entry())?;
        self.uplink = Some((uplink, mode));
        let moved = before.is_some_and(|(ifindex, _)| ifindex != uplink);
        self.control.change(|config| {
            // Cached flows lead to the old uplink.
            let epoch = if moved { next_epoch(config.epoch) } else { config.epoch };
            Config { uplink, epoch, ..config }
        })?;
        let dir = self.pins.uplink();
        let wanted = hooks(Kind::Uplink, uplink, mode);
        links::ensure_only(&mut self.ebpf, &dir, &wanted, self.uplink_via)?;
        if let Some((ifindex, old)) = before {
            for stale in interfaces(ifindex, old).difference(&interfaces(uplink, mode)) {
                self.clear_entry(*stale)?;
            }
        }
        self.sync_xdp();
        Ok(())
    }

    /// Detaches the uplink's programs and removes its entries; without an uplink it does nothing. The maps keep their counters.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn clear_uplink(&mut self) -> Result<(), Failures> {
        let mut failures = Failures(Vec::new());
        let dir = self.pins.uplink();
        for place in failures.note(pins::places(&dir)).unwrap_or_default() {
            failures.note(links::remove(&dir, place));
        }
        failures.note(self.control.change(|config| Config { uplink: 0, ..config }));
        if let Some((ifindex, mode)) = self.uplink.take() {
            for stale in interfaces(ifindex, mode) {
                failures.note(self.clear_entry(stale));
            }
        }
        self.sync_xdp();
        failures.check()
    }

    /// The uplink, its mode, and whether all its links are alive.
    pub fn uplink(&mut self) -> Option<(u32, Mode, bool)> {
        let (ifindex, mode) = self.uplink?;
        let dir = self.pins.uplink();
        let mut hooks = hooks(Kind::Uplink, ifindex, mode).into_iter();
        let alive = hooks.all(|hook| links::alive(&mut self.ebpf, &dir, hook));
        Some((ifindex, mode, alive))
    }

    /// Sets whether a pod's port uses the fast path; an unknown port is ignored.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_endpoint_fast(&mut self, id: &str, fast: bool) -> Result<(), Error> {
        let Some(port) = self.endpoints.get_mut(id) else { return Ok(()) };
        if port.fast == fast {
            return Ok(());
        }
        port.fast = fast;
        let port = port.clone();
        self.write_endpoint(&port)
    }

    /// Host veths of all pods, with their ids; uplink and interfaces of the node, with their names.
    pub(super) fn endpoint_names(&self) -> std::collections::BTreeMap<u32, String> {
        let others = self.uplink.iter().map(|(uplink, _)| uplink);
        let others = others.chain(self.host.keys()).chain(self.physical.keys());
        let others = others.chain(self.second_uplink.iter().map(|uplink| &uplink.ifindex));
        let others = others.filter_map(|ifindex| Some((*ifindex, links::interface_name(*ifindex)?)));
        let pods = self.endpoints.iter().map(|(id, port)| (port.host_ifindex, id.clone()));
        others.chain(pods).collect()
    }

    /// Epoch of the last divergence of a pod's port, if there was one.
    ///
    /// # Errors
    /// The map cannot be read.
    pub(super) fn endpoint_diverged(&mut self, id: &str) -> Result<Option<u32>, Error> {
        let Some(ifindex) = self.endpoints.get(id).map(|port| port.host_ifindex) else { return Ok(None) };
        Ok(self.read_entry(ifindex)?.map(|entry| entry.diverged).filter(|epoch| *epoch != 0))
    }

    /// Marks a pod's port as diverged in an epoch, as the programs do when a refresh finds a divergence.
    ///
    /// # Errors
    /// The map cannot be read or written.
    pub(super) fn set_endpoint_diverged(&mut self, id: &str, epoch: u32) -> Result<(), Error> {
        let Some(ifindex) = self.endpoints.get(id).map(|port| port.host_ifindex) else { return Ok(()) };
        match self.read_entry(ifindex)? {
            Some(entry) => self.write_entry(ifindex, Port { diverged: epoch, ..entry }),
            None => Ok(()),
        }
    }

    /// How to attach a program so that a qdisc of another program can be beside it.
    fn via_beside_others(&self, id: &str, mode: Mode) -> Via {
        let why = match (mode, self.uplink_via) {
            (Mode::Direct, Via::Tcx) => return Via::Tcx,
            (Mode::Direct, Via::Clsact) => "clsact occupies its place; TCX (Linux 6.6) is needed",
            (Mode::Interposed { .. }, _) => "in interposed mode packets bypass an `ingress` qdisc",
        };
        tracing::warn!(endpoint = %id, why, "an `ingress` qdisc of another plugin on the pod's host veth will be rejected by the kernel");
        Via::Clsact
    }

    /// Writes entries first, then links, so that a program never runs on an unknown port. `host` applies to the host end only.
    fn wire_endpoint(&mut self, id: &str, port: &Attached, host: Via) -> Result<(), Error> {
        self.write_endpoint(port)?;
        let dir = self.pins.endpoint(id);
        pins::create_dir(&dir)?;
        for hook in hooks(Kind::Pod, port.host_ifindex, port.mode) {
            let via = if hook.place.ifindex == port.host_ifindex { host } else { Via::Clsact };
            links::ensure(&mut self.ebpf, &dir, hook, via)?;
        }
        Ok(())
    }

    fn drop_for_replacement(&mut self, id: &str) -> Result<(), Error> {
        self.remove_endpoint(id)
            .map_err(|failures| bad(id, format!("cannot remove the previous attachment: {failures}")))
    }

    /// Writes the entries of a pod's port.
    pub(super) fn write_endpoint(&mut self, port: &Attached) -> Result<(), Error> {
        let entry = Port {
            flags: if port.fast { PORT_FAST } else { 0 },
            slot: port.slot,
            mac: port.mac,
            ipv4: port.ipv4.map_or([0; 4], |address| address.octets()),
            ipv6: port.ipv6.map_or([0; 16], |address| address.octets()),
            ..Port::default()
        };
        self.write_entries(port.host_ifindex, port.mode, entry)
    }

    /// Writes the entries of a port's interfaces. In interposed mode each redirects to the other.
    pub(super) fn write_entries(&mut self, ifindex: u32, mode: Mode, port: Port) -> Result<(), Error> {
        let port = Port { flags: port.flags | PORT_PRESENT, ..port };
        match mode {
            Mode::Direct => self.write_entry(ifindex, port),
            Mode::Interposed { agent_end, .. } => {
                let port = Port { flags: port.flags | PORT_INTERPOSED, ..port };
                self.write_entry(agent_end, Port { redirect: ifindex, ..port })?;
                self.write_entry(ifindex, Port { redirect: agent_end, ..port })
            }
        }
    }

    pub(super) fn write_entry(&mut self, ifindex: u32, port: Port) -> Result<(), Error> {
        let (map, result) = if ifindex < PORT_ARRAY_SIZE {
            (ENDPOINTS, self.port_array()?.set(ifindex, port, 0))
        } else {
            (ENDPOINTS_HIGH, self.port_hash()?.insert(ifindex, port, 0))
        };
        result.map_err(|source| Error::map(map, "write", source))
    }

    pub(super) fn clear_entry(&mut self, ifindex: u32) -> Result<(), Error> {
        if ifindex < PORT_ARRAY_SIZE {
            return self.write_entry(ifindex, Port::default());
        }
        match self.port_hash()?.remove(&ifindex) {
            Ok(()) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(source) => Err(Error::map(ENDPOINTS_HIGH, "remove from", source)),
        }
    }

    /// The entry of an interface.
    pub(super) fn read_entry(&mut self, ifindex: u32) -> Result<Option<Port>, Error> {
        let (map, result) = if ifindex < PORT_ARRAY_SIZE {
            (ENDPOINTS, self.port_array()?.get(&ifindex, 0))
        } else {
            (ENDPOINTS_HIGH, self.port_hash()?.get(&ifindex, 0))
        };
        match result {
            Ok(port) => Ok(Some(port).filter(|port| port.flags & PORT_PRESENT != 0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::map(map, "read", source)),
        }
    }

    /// Clears every entry of an interface that belongs to no known port. An agent that died between two steps leaves such entries.
    pub(super) fn clear_stray_entries(&mut self) -> Result<usize, Error> {
        let mut known: BTreeSet<u32> =
            self.endpoints.values().flat_map(|port| interfaces(port.host_ifindex, port.mode)).collect();
        known.extend(self.host.keys().chain(self.physical.keys()));
        known.extend(self.uplink.iter().flat_map(|(ifindex, mode)| interfaces(*ifindex, *mode)));
        known.extend(self.second_uplink.iter().flat_map(|uplink| interfaces(uplink.ifindex, uplink.mode)));
        let present = self.port_entries()?;
        let strays: Vec<u32> = present.into_iter().filter(|ifindex| !known.contains(ifindex)).collect();
        for ifindex in &strays {
            self.clear_entry(*ifindex)?;
        }
        Ok(strays.len())
    }

    /// Interfaces that have an entry in the maps, whether or not this process knows them.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn port_entries(&mut self) -> Result<Vec<u32>, Error> {
        let array = self.port_array()?;
        let mut present: Vec<u32> = (0..PORT_ARRAY_SIZE)
            .zip(array.iter())
            .filter(|(_, port)| port.as_ref().is_ok_and(|port| port.flags & PORT_PRESENT != 0))
            .map(|(ifindex, _)| ifindex)
            .collect();
        present.extend(self.port_hash()?.keys().filter_map(Result::ok));
        Ok(present)
    }

    fn port_array(&mut self) -> Result<Array<&mut MapData, Port>, Error> {
        super::stats::typed(&mut self.ebpf, ENDPOINTS)
    }

    fn port_hash(&mut self) -> Result<HashMap<&mut MapData, u32, Port>, Error> {
        super::stats::typed(&mut self.ebpf, ENDPOINTS_HIGH)
    }
}

/// The interfaces of a port.
pub(super) fn interfaces(ifindex: u32, mode: Mode) -> BTreeSet<u32> {
    match mode {
        Mode::Direct => BTreeSet::from([ifindex]),
        Mode::Interposed { agent_end, ovs_end } => BTreeSet::from([ifindex, agent_end, ovs_end]),
    }
}

fn bad(id: &str, problem: impl Into<String>) -> Error {
    Error::BadEndpoint { id: id.to_owned(), problem: problem.into() }
}

/// Checks a configuration and returns its addresses.
fn check(config: &Endpoint) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), Error> {
    let id = &config.id;
    if !pins::valid_id(id) {
        return Err(bad(id, "an id must have 1 to 128 letters, digits, '-' or '_'"));
    }
    check_interfaces(config.host_ifindex, config.mode).map_err(|problem| bad(id, problem))?;
    let (mut ipv4, mut ipv6) = (None, None);
    for address in &config.addresses {
        let second = match address {
            IpAddr::V4(address) => ipv4.replace(*address).is_some(),
            IpAddr::V6(address) => ipv6.replace(*address).is_some(),
        };
        if second {
            return Err(bad(
                id,
                format!("{address} is the second address of its family; a port has at most one per family"),
            ));
        }
    }
    Ok((ipv4, ipv6))
}

pub(super) fn check_interfaces(ifindex: u32, mode: Mode) -> Result<(), &'static str> {
    let needed = match mode {
        Mode::Direct => 1,
        Mode::Interposed { .. } => 3,
    };
    let interfaces = interfaces(ifindex, mode);
    if interfaces.contains(&0) {
        return Err("interface index 0 is invalid");
    }
    if interfaces.len() != needed {
        return Err("the port and the two ends of its shim must be three different interfaces");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Endpoint {
        Endpoint {
            id: "abc".into(),
            host_ifindex: 5,
            mode: Mode::Interposed { agent_end: 6, ovs_end: 7 },
            shares_ingress: false,
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            mac: [2, 0, 0, 0, 0, 1],
        }
    }

    #[test]
    fn one_address_of_each_family_is_taken() {
        let (ipv4, ipv6) = check(&config()).unwrap();
        assert_eq!((ipv4, ipv6), ("10.0.0.1".parse().ok(), "fd00::1".parse().ok()));
    }

    #[test]
    fn a_second_address_of_a_family_is_refused_by_name() {
        let mut config = config();
        config.addresses.push("10.0.0.2".parse().unwrap());
        assert!(check(&config).unwrap_err().to_string().contains("10.0.0.2"));
    }

    #[test]
    fn interfaces_must_be_real_and_distinct() {
        for (host, mode) in [
            (0, Mode::Direct),
            (5, Mode::Interposed { agent_end: 5, ovs_end: 7 }),
            (5, Mode::Interposed { agent_end: 6, ovs_end: 6 }),
            (5, Mode::Interposed { agent_end: 6, ovs_end: 0 }),
        ] {
            assert!(check(&Endpoint { host_ifindex: host, mode, ..config() }).is_err(), "{host} {mode:?}");
        }
    }
}

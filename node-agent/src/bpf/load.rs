//! Loads the eBPF programs, reusing pinned maps and links of a previous agent.

use api::error::chain;
use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::Path,
};

use aya::{Ebpf, EbpfLoader};
use ebpf::layout::maps::{BLOCKS, Config, FLOWS, FLOWS6_PART, GENEVE_PORT, PORT_FAST};

use super::{
    Attached, Error, Failures, Programs,
    clock::Tick,
    config::{AGAIN, next_epoch, note_budget, timed},
    control::Control,
    dry_run::try_kernel,
    error::verifier_text,
    links::{self, Kind, Via, hooks},
    object::{OBJECT, Program},
    pins::{self, Pins},
    shape,
    slots::Slots,
    stats,
    xdp::{XdpState, XdpWanted},
};
use crate::flow_cache::Timing;

/// Level of aya's log, as the programs know it: 0 = nothing, so that the kernel removes the code.
const LOG_OFF: u8 = 0;
const LOG_DEBUG: u8 = 4;

/// Load options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Log a sample of malformed packets, see [`Programs::take_log`]. No cost when off.
    pub log_malformed: bool,
    /// Use clsact filters only, as on a kernel without TCX.
    pub without_tcx: bool,
    /// MTU of pod interfaces in bytes: longer packets take the slow path. 0: no limit.
    pub pod_mtu: u32,
    /// Maximum number of cached IPv4 flows; a quarter of it for IPv6. 0: default.
    pub flows: u32,
    /// Pods have IPv6 addresses alone: [`Self::flows`] is for IPv6, and a quarter of it for IPv4.
    pub ipv6_only: bool,
    /// Whether the XDP program is attached to the uplink.
    pub xdp: XdpWanted,
    /// The XDP program drops malformed Geneve, and Geneve from addresses that OVS has no tunnel to.
    pub xdp_drops: bool,
    /// Disables counters and divergence checks, for measurements.
    pub without_counters: bool,
    /// Learns UDP from the first packet of a flow instead of the second.
    pub udp_at_once: bool,
}

impl Options {
    fn pod_mtu(self) -> u32 {
        if self.pod_mtu == 0 { u32::MAX } else { self.pod_mtu }
    }

    fn sizes(self) -> shape::Sizes {
        let flows = if self.flows == 0 { FLOWS } else { self.flows.max(FLOWS6_PART) };
        shape::Sizes { flows, ipv6_first: self.ipv6_only }
    }
}

impl Programs {
    /// Loads with the default [`Options`].
    ///
    /// # Errors
    /// As [`Self::load_with`].
    pub fn load(dir: &Path) -> Result<Self, Error> {
        Self::load_with(dir, Options::default())
    }

    /// Loads the programs and reuses what is pinned under `dir`: maps keep their counters, and links get the new programs one by one,
    /// each atomically. Pins of another map layout are reused too, but their counters and the bound addresses are lost. Repeating the
    /// call changes nothing.
    ///
    /// # Errors
    /// The machine cannot run the programs, or the kernel rejects a step. Programs attached before continue as they were.
    pub fn load_with(dir: &Path, options: Options) -> Result<Self, Error> {
        let capabilities = super::probe(dir)?;
        let uplink_via = if capabilities.tcx && !options.without_tcx { Via::Tcx } else { Via::Clsact };
        let pins = Pins::new(dir);
        pins.create()?;
        shape::remove_misshapen(&pins.maps(), options.sizes())?;
        let new_slots = !pins.maps().join(shape::TUNNEL_FREE).exists();
        let mut ebpf = load_object(&pins, options)?;
        if let Err(error) = try_kernel(&mut ebpf) {
            // No program can be attached on such a kernel, so the maps only use memory.
            if pins.endpoint_ids()?.is_empty()
                && let Err(failures) = pins.remove_all().check()
            {
                tracing::warn!(%failures, "cannot remove maps of a kernel that cannot run the programs");
            }
            return Err(error);
        }
        let control = Control::open(&pins.maps())?;
        let mut datapath = Self {
            pins,
            ebpf,
            endpoints: Default::default(),
            uplink: None,
            host: Default::default(),
            physical: Default::default(),
            second_uplink: None,
            gateway: None,
            uplink_via,
            xdp_wanted: options.xdp,
            xdp: XdpState::Off,
            slots: Slots::default(),
            tunnels_before: Default::default(),
            tunnels_idle: Vec::new(),
            control,
            tick: Tick::of_kernel()?,
        };
        if new_slots {
            datapath.fill_tunnel_slots()?;
        }
        datapath.adopt_config(options)?;
        datapath.adopt_uplink()?;
        // Also where there is no uplink, or no setting any more.
        datapath.sync_xdp();
        datapath.adopt_host()?;
        datapath.adopt_physical()?;
        datapath.adopt_second_uplink()?;
        datapath.adopt_endpoints()?;
        let strays = datapath.clear_stray_entries()?;
        let mut failures = Failures(Vec::new());
        datapath.pins.remove_other_layouts(&mut failures);
        if let Err(failures) = failures.check() {
            tracing::warn!(%failures, "cannot remove maps of another layout; they are unused but take memory");
        }
        tracing::info!(
            dir = %datapath.pins.dir().display(),
            endpoints = datapath.endpoints.len(),
            uplink = datapath.uplink.map(|(ifindex, _)| ifindex),
            strays,
            "eBPF programs loaded"
        );
        Ok(datapath)
    }

    /// Detaches and removes everything pinned under `dir`, of this or any other layout. Afterwards the node is on the plain OVS path
    /// (direct mode), or its ports are cut off (interposed mode: unplug them first).
    ///
    /// # Errors
    /// What could not be removed; everything else has been removed.
    pub fn cleanup(dir: &Path) -> Result<(), Failures> {
        if !dir.exists() {
            return Ok(());
        }
        Pins::new(dir).remove_all().check()
    }

    /// Reuses the settings of a previous agent, so that cached flows stay in use; missing settings get their defaults.
    fn adopt_config(&self, options: Options) -> Result<(), Error> {
        let (pod_mtu, udp_at_once) = (options.pod_mtu(), options.udp_at_once);
        let cpus = u32::try_from(stats::cpus(shape::CONFIG)?).unwrap_or(u32::MAX).clamp(1, BLOCKS);
        let cpu_shift = cpus.next_power_of_two().ilog2();
        self.control.change(|old| Config {
            epoch: if old.epoch == 0 { first_epoch() } else { old.epoch },
            layout: pins::layout(),
            geneve_port: GENEVE_PORT,
            pod_mtu,
            tunnel_mtu: old.tunnel_mtu.min(pod_mtu),
            cpu_shift,
            note_budget: note_budget(cpu_shift, self.tick),
            again: if udp_at_once { 0 } else { self.tick.count(AGAIN) },
            ..timed(old, Timing::default(), self.tick)
        })?;
        Ok(())
    }

    fn adopt_uplink(&mut self) -> Result<(), Error> {
        let dir = self.pins.uplink();
        let Some((ifindex, mode)) = Kind::Uplink.recognise(&pins::places(&dir)?) else { return Ok(()) };
        if hooks(Kind::Uplink, ifindex, mode).into_iter().all(|hook| links::alive(&mut self.ebpf, &dir, hook))
        {
            // Before `set_uplink`, so that the counters are kept.
            self.uplink = Some((ifindex, mode));
            self.adopt_gateway(ifindex)?;
            return self.set_uplink(ifindex, mode);
        }
        tracing::warn!(ifindex, "attached uplink no longer exists; waiting for another one");
        for place in pins::places(&dir)? {
            links::remove(&dir, place)?;
        }
        Ok(())
    }

    fn adopt_endpoints(&mut self) -> Result<(), Error> {
        for id in self.pins.endpoint_ids()? {
            if let Err(error) = self.adopt_endpoint(&id) {
                // One bad port must not keep the node from loading: it is taken down, and the agent's
                // reconciliation plugs it again.
                tracing::warn!(endpoint = %id, error = chain(&error), "cannot reuse an endpoint of the previous agent; removing it");
                if let Err(failures) = self.remove_endpoint(&id) {
                    tracing::warn!(endpoint = %id, %failures, "cannot remove the endpoint");
                }
            }
        }
        Ok(())
    }

    fn adopt_endpoint(&mut self, id: &str) -> Result<(), Error> {
        let dir = self.pins.endpoint(id);
        let Some((host_ifindex, mode)) = Kind::Pod.recognise(&pins::places(&dir)?) else {
            return Err(Error::BadEndpoint {
                id: id.to_owned(),
                problem: "its links are not complete".into(),
            });
        };
        let entry = self.read_entry(host_ifindex)?.unwrap_or_default();
        let kept = self.slots.claim(entry.slot);
        let slot = match kept {
            true => entry.slot,
            false => self.slots.take().ok_or(Error::NoSlot { capacity: Slots::CAPACITY })?,
        };
        let port = Attached {
            host_ifindex,
            mode,
            slot,
            ipv4: Some(entry.ipv4).filter(|octets| *octets != [0; 4]).map(Into::into),
            ipv6: Some(entry.ipv6).filter(|octets| *octets != [0; 16]).map(Into::into),
            mac: entry.mac,
            fast: entry.flags & PORT_FAST != 0,
        };
        self.endpoints.insert(id.to_owned(), port.clone());
        if !kept {
            self.zero_port_counters(slot)?;
        }
        self.write_endpoint(&port)?;
        // A link whose interface is gone stays as it is: `endpoints` shows it, reconciliation removes it.
        for hook in hooks(Kind::Pod, host_ifindex, mode) {
            links::adopt(&mut self.ebpf, &dir, hook)?;
        }
        Ok(())
    }
}

/// Initial epoch. Not a constant: if only this map was recreated, others have entries of earlier epochs.
fn first_epoch() -> u32 {
    let random = RandomState::new().build_hasher().finish();
    next_epoch(u32::try_from(random >> 32).unwrap_or_default())
}

fn load_object(pins: &Pins, options: Options) -> Result<Ebpf, Error> {
    let level = if options.log_malformed { LOG_DEBUG } else { LOG_OFF };
    let counting = u8::from(!options.without_counters);
    let maps = pins.maps();
    let mut loader = EbpfLoader::new();
    for (name, six) in shape::SIZED {
        loader.map_max_entries(name, options.sizes().of(six));
    }
    let mut ebpf = loader
        .default_map_pin_directory(maps)
        .override_global(aya_log::LEVEL, &level, true)
        .override_global("COUNTING", &counting, true)
        .override_global("XDP_DROPS", &u8::from(options.xdp_drops), true)
        .load(OBJECT)
        .map_err(|source| Error::Object { dir: pins.maps(), source: Box::new(source) })?;
    for program in Program::ALL {
        links::classifier(&mut ebpf, program)?
            .load()
            .map_err(|error| Error::Program { program: program.name(), text: verifier_text(&error) })?;
    }
    Ok(ebpf)
}

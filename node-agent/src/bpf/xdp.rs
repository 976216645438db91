//! The XDP program on the uplink: whether it is attached, and if not, why.
//!
//! It is an addition: the node works without it, so that nothing here is an error of the uplink. It is on the interface on which
//! `from_uplink` is too, in both attach modes the network card (or what stands for it). Pinned as `xdp/xdp_uplink-<ifindex>`.

use std::path::Path;

use aya::{Ebpf, programs::Xdp};

use super::{
    Error, Failures, Programs,
    error::verifier_text,
    links::{
        self,
        xdp::{PROGRAM, Refusal},
    },
    pins,
};
use crate::kernel::link::{ethtool, kind};

/// Feature of cards that take a VLAN tag off the frame, so that an XDP program does not see it (linux/netdev_features.h).
const TAKES_TAGS: &str = "rx-vlan-hw-parse";

/// Whether the XDP program is to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpWanted {
    /// Never.
    #[default]
    Off,
    /// Where the driver takes it in native mode, but not on a veth.
    Auto,
    /// On a veth too.
    Native,
}

/// Whether the XDP program is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// The program is not wanted.
    Off,
    /// There is no uplink yet.
    NoUplink,
    /// The program is attached to the interface with this index.
    Attached(u32),
    /// The program is wanted, and cannot be attached.
    Refused(Refusal),
}

impl XdpState {
    /// Every label value in metrics.
    pub const LABELS: [&'static str; 9] =
        ["off", "no_uplink", "attached", "veth", "vlan_offload", "driver", "taken", "verifier", "failed"];

    /// Label value in metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoUplink => "no_uplink",
            Self::Attached(_) => "attached",
            Self::Refused(refusal) => refusal.as_str(),
        }
    }
}

impl std::fmt::Display for XdpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => write!(f, "off"),
            Self::NoUplink => write!(f, "not attached: there is no uplink yet"),
            Self::Attached(_) => write!(f, "attached to the uplink"),
            Self::Refused(refusal) => write!(f, "not attached: {refusal}"),
        }
    }
}

impl Programs {
    /// Whether the XDP program is attached, and why not.
    pub fn xdp(&self) -> &XdpState {
        &self.xdp
    }

    /// Brings the XDP program in line with the setting and the uplink. What cannot be attached is not an error.
    pub(super) fn sync_xdp(&mut self) {
        let uplink = self.uplink.map(|(ifindex, _)| ifindex);
        let state = match (self.xdp_wanted, uplink) {
            (XdpWanted::Off, _) => XdpState::Off,
            (_, None) => XdpState::NoUplink,
            (wanted, Some(ifindex)) => match suits(wanted, ifindex).and_then(|()| self.put_xdp(ifindex)) {
                Ok(()) => XdpState::Attached(ifindex),
                Err(refusal) => XdpState::Refused(refusal),
            },
        };
        let keep = if let XdpState::Attached(ifindex) = state { Some(ifindex) } else { None };
        let mut failures = Failures(Vec::new());
        remove_others(&self.pins.xdp(), keep, &mut failures);
        if let Err(failures) = failures.check() {
            tracing::warn!(%failures, "cannot detach an XDP program");
        }
        if self.xdp != state {
            tracing::info!(reason = state.as_str(), "XDP program: {state}");
            self.xdp = state;
        }
    }

    fn put_xdp(&mut self, ifindex: u32) -> Result<(), Refusal> {
        let path = self.pins.xdp().join(format!("{PROGRAM}-{ifindex}"));
        let failed = |error: Error| Refusal::Failed(api::error::chain(&error));
        let program = loaded(&mut self.ebpf)?;
        if links::xdp::adopt(program, &path)? {
            return Ok(());
        }
        links::xdp::remove(&path).map_err(failed)?;
        pins::create_dir(&self.pins.xdp()).map_err(failed)?;
        links::xdp::attach(program, &path, ifindex)
    }
}

/// The program, loaded when it is needed first: a kernel that rejects it can still run the others.
pub(super) fn loaded(ebpf: &mut Ebpf) -> Result<&mut Xdp, Refusal> {
    let absent = || Refusal::Failed(format!("the eBPF object has no program {PROGRAM}"));
    let program: &mut Xdp =
        ebpf.program_mut(PROGRAM).ok_or_else(absent)?.try_into().map_err(|_error| absent())?;
    if program.fd().is_err() {
        program.load().map_err(|error| Refusal::Verifier(verifier_text(&error)))?;
    }
    Ok(program)
}

/// Whether the program may be attached to an interface at all.
fn suits(wanted: XdpWanted, ifindex: u32) -> Result<(), Refusal> {
    let failed =
        |what: &str, error: String| Refusal::Failed(format!("cannot read the uplink's {what}: {error}"));
    let kind = kind::kind(ifindex).map_err(|error| failed("kind", error.to_string()))?;
    if kind.as_deref() == Some("veth") {
        // The tag of a frame from a veth is beside it whatever the interface says: documented, as it needs `native`.
        return if wanted == XdpWanted::Native { Ok(()) } else { Err(Refusal::Veth) };
    }
    let name = links::interface_name(ifindex)
        .ok_or_else(|| failed("name", format!("no interface has index {ifindex}")))?;
    let features =
        ethtool::active_features(&name).map_err(|error| failed("features", api::error::chain(&error)))?;
    if features.iter().any(|feature| feature == TAKES_TAGS) {
        return Err(Refusal::VlanOffload(name));
    }
    Ok(())
}

/// Detaches the program from every interface but this one.
pub(super) fn remove_others(dir: &Path, keep: Option<u32>, failures: &mut Failures) {
    for name in failures.note(pins::list(dir)).unwrap_or_default() {
        if let Some(ifindex) = links::xdp::interface_of(&name)
            && Some(ifindex) != keep
        {
            failures.note(links::xdp::remove(&dir.join(name)));
        }
    }
    if keep.is_none() {
        failures.note(pins::remove_dir(dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_label_of_its_own() {
        let refusals = [
            Refusal::Veth,
            Refusal::VlanOffload("eth0".into()),
            Refusal::Driver,
            Refusal::Taken,
            Refusal::Verifier(String::new()),
            Refusal::Failed(String::new()),
        ];
        let mut labels: Vec<_> =
            [XdpState::Off, XdpState::NoUplink, XdpState::Attached(1)].map(|state| state.as_str()).into();
        labels.extend(refusals.map(|refusal| refusal.as_str()));
        assert_eq!(labels, XdpState::LABELS);
    }

    #[test]
    fn the_pin_tells_the_interface() {
        assert_eq!(links::xdp::interface_of("xdp_uplink-7"), Some(7));
        for name in ["", "xdp_uplink", "xdp_uplink-", "xdp_uplink-x", "from_uplink-7"] {
            assert_eq!(links::xdp::interface_of(name), None, "{name}");
        }
    }
}

//! Attachment of programs to interfaces, recorded on bpffs so that it outlives the agent.
//!
//! Two ways, distinguished by their records: a pinned TCX link is a file, a filter on a `clsact` qdisc an empty directory. The uplink
//! has TCX links where the kernel has them (6.6). Pods always have filters: attaching by TCX waits for an RCU grace period with the
//! lock on all network configuration held (`tcx_link_attach` in kernel/bpf/tcx.c), and so does a pod's removal, while a filter is
//! attached at once.

mod clsact;
mod tcx;
pub(super) mod xdp;

use std::path::Path;

use aya::{
    Ebpf,
    programs::{ProgramError, SchedClassifier, TcAttachType},
};
use nix::net::if_::if_indextoname;

use super::{
    Error, Failures, Mode,
    object::Program,
    pins::{self, Place},
};
use crate::flow_cache::PhysicalPort;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Tcx,
    Clsact,
}

/// The two kinds of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    Uplink,
}

/// A link that a port needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) place: Place,
    pub(super) ingress: bool,
}

/// The links a port needs, in the order of their creation: the path out of OVS exists before the path into it, and the link that marks
/// the port as complete ([`Kind::entry`]) comes last.
pub(super) fn hooks(kind: Kind, ifindex: u32, mode: Mode) -> Vec<Hook> {
    let hook = |program, ifindex, ingress| Hook { place: Place { program, ifindex }, ingress };
    match mode {
        Mode::Direct => vec![hook(kind.exit(), ifindex, false), hook(kind.entry(), ifindex, true)],
        Mode::Interposed { agent_end, ovs_end } => vec![
            hook(Program::Stop, ovs_end, true),
            hook(kind.exit(), agent_end, true),
            hook(kind.entry(), ifindex, true),
        ],
    }
}

/// The links of an interface by which the node itself is connected to the bridge. As for ports: the way out of OVS first.
pub(super) fn host_hooks(ifindex: u32) -> [Hook; 2] {
    let hook = |program, ingress| Hook { place: Place { program, ifindex }, ingress };
    [hook(Program::ToHost, true), hook(Program::FromHost, false)]
}

/// The links of an interface that leads to a physical network, or of the own port of its bridge, which only receives.
pub(super) fn physical_hooks(ifindex: u32, port: PhysicalPort) -> Vec<Hook> {
    let hook = |program, ingress| Hook { place: Place { program, ifindex }, ingress };
    match port {
        PhysicalPort::Interface { .. } => {
            vec![hook(Program::ToPhysical, false), hook(Program::FromPhysical, true)]
        }
        PhysicalPort::Own => vec![hook(Program::ToHost, true)],
    }
}

impl Kind {
    /// The program that takes packets from the port.
    const fn entry(self) -> Program {
        match self {
            Self::Pod => Program::FromPod,
            Self::Uplink => Program::FromUplink,
        }
    }

    /// The program that takes packets to the port.
    const fn exit(self) -> Program {
        match self {
            Self::Pod => Program::ToPod,
            Self::Uplink => Program::ToUplink,
        }
    }

    /// The port for which a directory's links were created; `None` if they are not complete.
    pub(super) fn recognise(self, places: &[Place]) -> Option<(u32, Mode)> {
        let of = |program| places.iter().find(|place| place.program == program).map(|place| place.ifindex);
        let (ifindex, exit) = (of(self.entry())?, of(self.exit())?);
        if exit == ifindex {
            return Some((ifindex, Mode::Direct));
        }
        Some((ifindex, Mode::Interposed { agent_end: exit, ovs_end: of(Program::Stop)? }))
    }
}

/// Creates the link if it is not recorded in `dir`; a recorded one gets the loaded program, atomically. A link that was removed, or
/// whose interface was removed, is created again.
pub(super) fn ensure(ebpf: &mut Ebpf, dir: &Path, hook: Hook, via: Via) -> Result<(), Error> {
    if adopt(ebpf, dir, hook)? {
        return Ok(());
    }
    remove(dir, hook.place)?;
    let Place { program, ifindex } = hook.place;
    let absent = Error::NoInterface { program: program.name(), ifindex };
    let interface = interface_name(ifindex).ok_or(absent)?;
    let path = dir.join(hook.place.file_name());
    let attached = match via {
        Via::Tcx => tcx::attach(ebpf, &path, hook, &interface),
        Via::Clsact => clsact::attach(ebpf, &path, hook, &interface),
    };
    attached.or_else(|error| remove(dir, hook.place).and(Err(error)))
}

/// Creates the links that are not recorded in `dir`, as [`ensure`] does, and then removes all others that are.
pub(super) fn ensure_only(ebpf: &mut Ebpf, dir: &Path, wanted: &[Hook], via: Via) -> Result<(), Error> {
    for hook in wanted {
        ensure(ebpf, dir, *hook, via)?;
    }
    for place in pins::places(dir)? {
        if !wanted.iter().any(|hook| hook.place == place) {
            remove(dir, place)?;
        }
    }
    Ok(())
}

/// Gives a recorded link the loaded program. False if there is no such record, or the recorded link no longer exists.
pub(super) fn adopt(ebpf: &mut Ebpf, dir: &Path, hook: Hook) -> Result<bool, Error> {
    let path = dir.join(hook.place.file_name());
    match recorded(&path) {
        Some(Via::Tcx) => tcx::adopt(ebpf, &path, hook),
        Some(Via::Clsact) => clsact::adopt(ebpf, hook),
        None => Ok(false),
    }
}

/// Whether the link is recorded and its program is attached to the interface it was made for.
pub(super) fn alive(ebpf: &mut Ebpf, dir: &Path, hook: Hook) -> bool {
    let path = dir.join(hook.place.file_name());
    match recorded(&path) {
        Some(Via::Tcx) => tcx::alive(&path, hook),
        // A filter is checked by replacing its program with the same one.
        Some(Via::Clsact) => clsact::adopt(ebpf, hook).unwrap_or(false),
        None => false,
    }
}

/// Detaches a program and removes the record, if there is one.
pub(super) fn remove(dir: &Path, place: Place) -> Result<(), Error> {
    let path = dir.join(place.file_name());
    match recorded(&path) {
        Some(Via::Tcx) => tcx::remove(&path),
        Some(Via::Clsact) => {
            // The record does not say at which end the program is; it is at one of them only.
            for ingress in [true, false] {
                clsact::remove(Hook { place, ingress })?;
            }
            pins::remove_dir(&path)
        }
        None => Ok(()),
    }
}

/// Removes the links recorded in a directory, and the directory.
pub(super) fn remove_dir(dir: &Path, failures: &mut Failures) {
    for place in failures.note(pins::places(dir)).unwrap_or_default() {
        failures.note(remove(dir, place));
    }
    failures.note(pins::remove_dir(dir));
}

/// Kind of link recorded at the path.
fn recorded(path: &Path) -> Option<Via> {
    let kind = std::fs::symlink_metadata(path).ok()?.file_type();
    Some(if kind.is_dir() { Via::Clsact } else { Via::Tcx })
}

pub(super) fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, Error> {
    let absent = Error::NotInObject { what: "program", name: program.name() };
    match ebpf.program_mut(program.name()).map(TryInto::try_into) {
        Some(Ok(classifier)) => Ok(classifier),
        Some(Err(_)) | None => Err(absent),
    }
}

/// Name of an interface. nix ignores failures of `if_indextoname` and returns an empty name.
pub(super) fn interface_name(ifindex: u32) -> Option<String> {
    let name = if_indextoname(ifindex).ok()?.to_string_lossy().into_owned();
    Some(name).filter(|name| !name.is_empty())
}

fn attach_error(hook: Hook, source: ProgramError) -> Error {
    let Place { program, ifindex } = hook.place;
    Error::Attach { program: program.name(), ifindex, ingress: hook.ingress, source: Box::new(source) }
}

const fn attach_type(ingress: bool) -> TcAttachType {
    if ingress { TcAttachType::Ingress } else { TcAttachType::Egress }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pinned_for_a_port_tells_the_port() {
        for kind in [Kind::Pod, Kind::Uplink] {
            for mode in [Mode::Direct, Mode::Interposed { agent_end: 8, ovs_end: 9 }] {
                let hooks = hooks(kind, 7, mode);
                let places: Vec<_> = hooks.iter().map(|hook| hook.place).collect();
                assert_eq!(kind.recognise(&places), Some((7, mode)));
                // A crash between two links leaves only the first ones: not a complete port.
                for made in 0..places.len() {
                    assert_eq!(kind.recognise(&places[..made]), None, "{made} of {places:?}");
                }
            }
        }
    }

    #[test]
    fn only_the_way_out_in_direct_mode_is_at_egress() {
        for kind in [Kind::Pod, Kind::Uplink] {
            let egress: Vec<_> =
                hooks(kind, 7, Mode::Direct).into_iter().filter(|hook| !hook.ingress).collect();
            assert_eq!(egress.len(), 1);
            assert_eq!(egress[0].place.program, kind.exit());
            let interposed = hooks(kind, 7, Mode::Interposed { agent_end: 8, ovs_end: 9 });
            assert!(interposed.iter().all(|hook| hook.ingress));
        }
    }
}

//! Links: attaching a program to an interface by TCX, pinning the link, taking over one that is pinned already.

use std::path::Path;

use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        links::{FdLink, LinkError, PinnedLink},
        tc::{SchedClassifierLink, TcAttachOptions},
    },
    sys::SyscallError,
};
use nix::{errno::Errno, net::if_::if_indextoname};

use super::{
    Error, Failures, Mode,
    object::Program,
    pins::{self, Place},
};

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

/// The links a port needs, in the order in which they are made: the packets' way out of OVS is there before their
/// way in, and the one that marks the port as complete ([`Kind::entry`]) comes last.
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

    /// The port that a directory's links were made for; `None` if they are not complete.
    pub(super) fn recognise(self, places: &[Place]) -> Option<(u32, Mode)> {
        let of = |program| places.iter().find(|place| place.program == program).map(|place| place.ifindex);
        let (ifindex, exit) = (of(self.entry())?, of(self.exit())?);
        if exit == ifindex {
            return Some((ifindex, Mode::Direct));
        }
        Some((ifindex, Mode::Interposed { agent_end: exit, ovs_end: of(Program::Stop)? }))
    }
}

/// Makes the link if it is not pinned in `dir`; a pinned one gets the loaded program, atomically. A pinned one whose
/// interface is gone is replaced.
pub(super) fn ensure(ebpf: &mut Ebpf, dir: &Path, hook: Hook) -> Result<(), Error> {
    if adopt(ebpf, dir, hook)? {
        return Ok(());
    }
    let path = dir.join(hook.place.file_name());
    remove(&path)?;
    let Place { program, ifindex } = hook.place;
    let name = program.name();
    let interface = interface_name(ifindex).ok_or(Error::NoInterface { program: name, ifindex })?;
    let failed = |source| attach_error(hook, source);
    let classifier = classifier(ebpf, program)?;
    let id = classifier
        .attach_with_options(
            &interface,
            attach_type(hook.ingress),
            TcAttachOptions::TcxOrder(LinkOrder::last()),
        )
        .map_err(failed)?;
    let link = classifier.take_link(id).map_err(failed)?;
    let link = FdLink::try_from(link).map_err(|error| failed(link_error(error)))?;
    link.pin(&path).map_err(|error| Error::Pin {
        action: "pin the link at",
        path,
        source: std::io::Error::other(super::probe::chain(&error)),
    })?;
    Ok(())
}

/// Gives a pinned link the loaded program. False if there is no such pin or its interface is gone.
pub(super) fn adopt(ebpf: &mut Ebpf, dir: &Path, hook: Hook) -> Result<bool, Error> {
    let Some(link) = open(&dir.join(hook.place.file_name()), hook)? else { return Ok(false) };
    let Ok(link) = SchedClassifierLink::try_from(link) else { return Ok(false) };
    let failed = |source| attach_error(hook, source);
    let classifier = classifier(ebpf, hook.place.program)?;
    match classifier.attach_to_link(link) {
        Ok(id) => {
            // Taken out of aya's hands and closed; the pin keeps it.
            classifier.take_link(id).map_err(failed)?;
            Ok(true)
        }
        Err(ProgramError::SyscallError(error)) if is(&error, Errno::ENOLINK) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Removes a pinned link and detaches its program; fine if it is not there.
///
/// The link is held open meanwhile: the last reference is then the file descriptor, whose closing detaches at once,
/// while that of a pin alone is put to a kernel worker, and the program could not be attached there again yet.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    let held = PinnedLink::from_pin(path);
    pins::remove_pin(path)?;
    drop(held);
    Ok(())
}

/// Removes the links pinned in a directory, and the directory.
pub(super) fn remove_dir(dir: &Path, failures: &mut Failures) {
    for name in failures.note(pins::list(dir)).unwrap_or_default() {
        failures.note(remove(&dir.join(name)));
    }
    failures.note(pins::remove_dir(dir));
}

/// Whether the link is pinned and its program is attached to the interface it was made for.
pub(super) fn alive(dir: &Path, hook: Hook) -> bool {
    let Ok(Some(link)) = open(&dir.join(hook.place.file_name()), hook) else { return false };
    let Ok(info) = link.info() else { return false };
    let Some(interface) = interface_name(hook.place.ifindex) else { return false };
    SchedClassifier::query_tcx(&interface, attach_type(hook.ingress))
        .is_ok_and(|(_, programs)| programs.iter().any(|program| program.id() == info.program_id()))
}

pub(super) fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, Error> {
    let absent = Error::NotInObject { what: "program", name: program.name() };
    match ebpf.program_mut(program.name()).map(TryInto::try_into) {
        Some(Ok(classifier)) => Ok(classifier),
        Some(Err(_)) | None => Err(absent),
    }
}

/// The pinned link, `None` if there is no pin.
fn open(path: &Path, hook: Hook) -> Result<Option<FdLink>, Error> {
    match PinnedLink::from_pin(path) {
        Ok(pinned) => Ok(Some(FdLink::from(pinned))),
        Err(LinkError::SyscallError(error)) if is(&error, Errno::ENOENT) => Ok(None),
        Err(error) => Err(attach_error(hook, link_error(error))),
    }
}

/// Name of an interface. nix takes no notice of the failure of `if_indextoname`: the name is empty then.
fn interface_name(ifindex: u32) -> Option<String> {
    let name = if_indextoname(ifindex).ok()?.to_string_lossy().into_owned();
    Some(name).filter(|name| !name.is_empty())
}

fn is(error: &SyscallError, errno: Errno) -> bool {
    error.io_error.raw_os_error() == Some(errno as i32)
}

fn link_error(error: LinkError) -> ProgramError {
    match error {
        LinkError::SyscallError(error) => ProgramError::SyscallError(error),
        other => ProgramError::IOError(std::io::Error::other(other.to_string())),
    }
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
                // A crash between two links leaves the first ones: not a port.
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

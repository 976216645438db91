//! Pinned TCX links: for the uplink, which is attached once and may have other programs.

use std::path::Path;

use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramError, SchedClassifier,
        links::{FdLink, LinkError, PinnedLink},
        tc::{SchedClassifierLink, TcAttachOptions},
    },
    sys::SyscallError,
};
use nix::errno::Errno;

use super::{Hook, attach_error, attach_type, classifier, interface_name};
use api::error::chain;

use crate::bpf::{Error, pins};

/// Attaches the hook's program and pins the link.
pub(super) fn attach(ebpf: &mut Ebpf, path: &Path, hook: Hook, interface: &str) -> Result<(), Error> {
    let failed = |source| attach_error(hook, source);
    let classifier = classifier(ebpf, hook.place.program)?;
    let order = TcAttachOptions::TcxOrder(LinkOrder::last());
    let id = classifier.attach_with_options(interface, attach_type(hook.ingress), order).map_err(failed)?;
    let link = classifier.take_link(id).map_err(failed)?;
    let link = FdLink::try_from(link).map_err(|error| failed(link_error(error)))?;
    link.pin(path).map_err(|error| Error::Pin {
        action: "pin the link at",
        path: path.into(),
        source: std::io::Error::other(chain(&error)),
    })?;
    Ok(())
}

/// Replaces the program of a pinned link by the loaded one, atomically. False if its interface no longer exists.
pub(super) fn adopt(ebpf: &mut Ebpf, path: &Path, hook: Hook) -> Result<bool, Error> {
    let Some(link) = open(path, hook)? else { return Ok(false) };
    let Ok(link) = SchedClassifierLink::try_from(link) else { return Ok(false) };
    let failed = |source| attach_error(hook, source);
    let classifier = classifier(ebpf, hook.place.program)?;
    match classifier.attach_to_link(link) {
        Ok(id) => {
            // Taken from aya and closed; the pin keeps the link.
            classifier.take_link(id).map_err(failed)?;
            Ok(true)
        }
        Err(ProgramError::SyscallError(error)) if is(&error, Errno::ENOLINK) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Whether the link's program is attached to the interface it was made for.
pub(super) fn alive(path: &Path, hook: Hook) -> bool {
    let Ok(Some(link)) = open(path, hook) else { return false };
    let Ok(info) = link.info() else { return false };
    let Some(interface) = interface_name(hook.place.ifindex) else { return false };
    SchedClassifier::query_tcx(&interface, attach_type(hook.ingress))
        .is_ok_and(|(_, programs)| programs.iter().any(|program| program.id() == info.program_id()))
}

/// Removes the pin and detaches the program.
///
/// The link is held open meanwhile. The last reference is then the file descriptor, and closing it detaches the program at once.
/// Removing a pin that is the last reference is left to a kernel worker, and the program could not be attached there again yet.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    let held = PinnedLink::from_pin(path);
    pins::remove_pin(path)?;
    drop(held);
    Ok(())
}

/// The pinned link, `None` if there is no pin.
fn open(path: &Path, hook: Hook) -> Result<Option<FdLink>, Error> {
    match PinnedLink::from_pin(path) {
        Ok(pinned) => Ok(Some(FdLink::from(pinned))),
        Err(LinkError::SyscallError(error)) if is(&error, Errno::ENOENT) => Ok(None),
        Err(error) => Err(attach_error(hook, link_error(error))),
    }
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

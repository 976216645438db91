//! tc filters on a `clsact` qdisc: for pods, and for all interfaces on kernels before 6.6.
//!
//! A filter stays until it or its interface is removed; an empty directory next to the pins records that it exists. Priority and
//! handle are fixed, so that it is found and replaced without a search.

use std::path::Path;

use aya::{
    Ebpf,
    programs::{
        Link as _, ProgramError,
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
    },
    sys::NetlinkError,
};
use nix::errno::Errno;

use super::{Hook, attach_error, attach_type, classifier, interface_name};
use crate::bpf::{Error, object::Program, pins};

/// Priority of our filters among those on the same qdisc; lower comes first.
const PRIORITY: u16 = 0x51;

/// Handle of a program's filter, different for each program, so that removing one filter never removes another.
const fn handle(program: Program) -> TcHandle {
    TcHandle::new(0, program as u16 + 1)
}

/// Attaches the hook's program, replacing an unrecorded filter of the agent.
pub(super) fn attach(ebpf: &mut Ebpf, path: &Path, hook: Hook, interface: &str) -> Result<(), Error> {
    // Creates the record first, so that a filter never exists without one.
    pins::create_dir(path)?;
    match qdisc_add_clsact(interface) {
        Ok(()) => {}
        Err(error) if errno_of(&error) == Some(Errno::EEXIST) => {}
        Err(error) => return Err(attach_error(hook, error.into())),
    }
    let options = NlOptions { priority: PRIORITY, handle: handle(hook.place.program), classid: None };
    let classifier = classifier(ebpf, hook.place.program)?;
    let id = match classifier.attach_with_options(
        interface,
        attach_type(hook.ingress),
        TcAttachOptions::Netlink(options),
    ) {
        Ok(id) => id,
        Err(ProgramError::TcError(error)) if errno_of(&error) == Some(Errno::EEXIST) => {
            let link = ours(interface, hook).map_err(|error| attach_error(hook, error))?;
            classifier.attach_to_link(link).map_err(|error| attach_error(hook, error))?
        }
        Err(error) => return Err(attach_error(hook, error)),
    };
    let link = classifier.take_link(id).map_err(|error| attach_error(hook, error))?;
    keep(link);
    Ok(())
}

/// Replaces the filter's program by the loaded one, atomically. False if the filter or the interface no longer exists.
pub(super) fn adopt(ebpf: &mut Ebpf, hook: Hook) -> Result<bool, Error> {
    let Some(interface) = interface_name(hook.place.ifindex) else { return Ok(false) };
    let classifier = classifier(ebpf, hook.place.program)?;
    let Ok(link) = ours(&interface, hook) else { return Ok(false) };
    match classifier.attach_to_link(link) {
        Ok(id) => {
            keep(classifier.take_link(id).map_err(|error| attach_error(hook, error))?);
            Ok(true)
        }
        Err(ProgramError::TcError(error)) if is_absent(errno_of(&error)) => Ok(false),
        Err(error) => Err(attach_error(hook, error)),
    }
}

/// Removes the filter, if it exists.
pub(super) fn remove(hook: Hook) -> Result<(), Error> {
    let Some(link) = interface_name(hook.place.ifindex).and_then(|interface| ours(&interface, hook).ok())
    else {
        return Ok(());
    };
    match link.detach() {
        Ok(()) => Ok(()),
        Err(ProgramError::NetlinkError(error)) if is_absent(netlink_errno(&error)) => Ok(()),
        Err(error) => Err(attach_error(hook, error)),
    }
}

/// The agent's filter on the interface, whether or not it exists. Dropping it detaches the filter.
fn ours(interface: &str, hook: Hook) -> Result<SchedClassifierLink, ProgramError> {
    SchedClassifierLink::attached(
        interface,
        attach_type(hook.ingress),
        PRIORITY,
        handle(hook.place.program),
        None,
    )
    .map_err(ProgramError::IOError)
}

/// Lets the filter outlive the agent. The link holds no resource, only the place of the filter.
fn keep(link: SchedClassifierLink) {
    std::mem::forget(link);
}

/// Whether the error means that the filter, the qdisc or the interface does not exist.
fn is_absent(errno: Option<Errno>) -> bool {
    matches!(errno, Some(Errno::ENOENT | Errno::EINVAL | Errno::ENODEV))
}

fn errno_of(error: &TcError) -> Option<Errno> {
    match error {
        TcError::NetlinkError(error) => netlink_errno(error),
        TcError::IoError(error) => error.raw_os_error().map(Errno::from_raw),
        _ => None,
    }
}

fn netlink_errno(error: &NetlinkError) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

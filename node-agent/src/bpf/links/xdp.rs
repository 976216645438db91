//! The pinned XDP link of the uplink: native mode, never the generic one.

use std::path::Path;

use api::error::chain;
use aya::{
    programs::{
        ProgramError, Xdp,
        links::{FdLink, LinkError, PinnedLink},
        xdp::{XdpLink, XdpMode},
    },
    sys::SyscallError,
};
use nix::errno::Errno;

use crate::bpf::pins;

/// Name of the program, in the object and in its pin.
pub(in crate::bpf) const PROGRAM: &str = "xdp_uplink";

/// Why the XDP program is not attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The uplink is a veth, and the setting leaves veths out.
    #[error("the uplink is a veth, which needs --xdp=native")]
    Veth,
    /// The network card takes VLAN tags off the frames; holds the name of the interface.
    #[error(
        "the uplink's card takes VLAN tags off the frames, so that an XDP program cannot tell whose they are; turn this off with `ethtool -K {0} rxvlan off`"
    )]
    VlanOffload(String),
    /// The driver has no native XDP.
    #[error("the uplink's driver has no native XDP")]
    Driver,
    /// The interface has an XDP program of somebody else.
    #[error("another XDP program is attached to the uplink")]
    Taken,
    /// The kernel rejects the program; holds the end of the verifier's log.
    #[error("the kernel rejects the program: {0}")]
    Verifier(String),
    /// Another failure; holds the error with its causes.
    #[error("{0}")]
    Failed(String),
}

impl Refusal {
    /// Label value in metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::VlanOffload(_) => "vlan_offload",
            Self::Driver => "driver",
            Self::Taken => "taken",
            Self::Verifier(_) => "verifier",
            Self::Failed(_) => "failed",
        }
    }
}

/// Attaches the program and pins the link.
pub(in crate::bpf) fn attach(program: &mut Xdp, path: &Path, ifindex: u32) -> Result<(), Refusal> {
    let id = program.attach_to_if_index(ifindex, XdpMode::Driver).map_err(|error| refusal(&error))?;
    let link = program.take_link(id).map_err(|error| refusal(&error))?;
    // A kernel before 5.9 attaches without a link, which ends here.
    let link = FdLink::try_from(link).map_err(|error| Refusal::Failed(chain(&error)))?;
    link.pin(path).map(drop).map_err(|error| Refusal::Failed(chain(&error)))
}

/// Gives a pinned link the loaded program, atomically. False if there is none, or its interface no longer exists.
pub(in crate::bpf) fn adopt(program: &mut Xdp, path: &Path) -> Result<bool, Refusal> {
    let link = match PinnedLink::from_pin(path) {
        Ok(pinned) => FdLink::from(pinned),
        Err(LinkError::SyscallError(error)) if is(&error, Errno::ENOENT) => return Ok(false),
        Err(error) => return Err(Refusal::Failed(chain(&error))),
    };
    let Ok(link) = XdpLink::try_from(link) else { return Ok(false) };
    match program.attach_to_link(link) {
        Ok(id) => {
            // Taken from aya and closed; the pin keeps the link.
            program.take_link(id).map_err(|error| refusal(&error))?;
            Ok(true)
        }
        Err(ProgramError::SyscallError(error)) if is(&error, Errno::ENOLINK) => Ok(false),
        Err(error) => Err(refusal(&error)),
    }
}

/// Detaches the program and removes the pin, as for TCX links.
pub(in crate::bpf) fn remove(path: &Path) -> Result<(), crate::bpf::Error> {
    let held = PinnedLink::from_pin(path);
    pins::remove_pin(path)?;
    drop(held);
    Ok(())
}

/// Interface of a pin's file name.
pub(in crate::bpf) fn interface_of(name: &str) -> Option<u32> {
    let (program, ifindex) = name.rsplit_once('-')?;
    if program == PROGRAM { ifindex.parse().ok() } else { None }
}

fn refusal(error: &ProgramError) -> Refusal {
    match errno(error) {
        Some(Errno::EOPNOTSUPP) => Refusal::Driver,
        Some(Errno::EBUSY | Errno::EEXIST) => Refusal::Taken,
        _ => Refusal::Failed(chain(error)),
    }
}

fn errno(error: &ProgramError) -> Option<Errno> {
    match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error().map(Errno::from_raw),
        _ => None,
    }
}

fn is(error: &SyscallError, errno: Errno) -> bool {
    error.io_error.raw_os_error() == Some(errno as i32)
}

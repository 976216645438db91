//! Checks whether this machine can run the eBPF programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::programs::{SchedClassifier, TcAttachType};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::object::OBJECT;

/// Capabilities of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Kernel release, as `uname -r`.
    pub kernel: String,
    /// The kernel has type information (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// Programs can be attached by TCX links (6.6); if not, everything is attached by filters.
    pub tcx: bool,
    /// Bytes of the embedded object.
    pub object_bytes: usize,
}

/// Why the machine cannot run the eBPF programs; shown in status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The agent was built without the eBPF object.
    #[error("this agent was built without eBPF programs; run `cargo xtask setup` and build it again")]
    NoObject,
    /// The kernel is older than the programs need.
    #[error("kernel {found} is older than the eBPF programs need: it cannot {what}")]
    Kernel {
        /// Release of the running kernel.
        found: String,
        /// What it cannot do, as a verb.
        what: &'static str,
    },
    /// The kernel has no BTF.
    #[error("the kernel has no BTF type information at /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    /// The process lacks a capability (capabilities(7)).
    #[error(
        "the process lacks {missing}; run the agent as root or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN or CAP_PERFMON"
    )]
    NoCapability {
        /// The capabilities that are missing.
        missing: &'static str,
    },
    /// The directory of the pins is on no bpffs.
    #[error("{} is not on a bpffs; mount one with `mount -t bpf bpf /sys/fs/bpf`", dir.display())]
    NotBpffs {
        /// Directory of the pins.
        dir: PathBuf,
    },
}

impl Unsupported {
    /// Label value in metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NoObject => "no_object",
            Self::Kernel { .. } => "kernel",
            Self::NoBtf => "no_btf",
            Self::NoCapability { .. } => "no_capability",
            Self::NotBpffs { .. } => "not_bpffs",
        }
    }
}

/// Bits of capabilities in `/proc/self/status`, see capabilities(7).
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Checks the machine without changing it. `dir`: directory for pins, which need not exist yet.
///
/// # Errors
/// The first thing that is missing.
pub fn probe(dir: &Path) -> Result<Capabilities, Unsupported> {
    if OBJECT.is_empty() {
        return Err(Unsupported::NoObject);
    }
    let kernel = release();
    check_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default())?;
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    if !btf {
        return Err(Unsupported::NoBtf);
    }
    if !on_bpffs(dir) {
        return Err(Unsupported::NotBpffs { dir: dir.to_path_buf() });
    }
    // Querying the programs of the loopback interface changes nothing, and fails where the kernel lacks the hook.
    let tcx = SchedClassifier::query_tcx("lo", TcAttachType::Ingress).is_ok();
    Ok(Capabilities { kernel, btf, tcx, object_bytes: OBJECT.len() })
}

/// Kernel release, as `uname -r`. It says little about features, as distributions backport them.
pub(super) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn check_capabilities(status: &str) -> Result<(), Unsupported> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let has = |bit: u32| effective & (1 << bit) != 0;
    let admin = has(CAP_SYS_ADMIN);
    if !has(CAP_BPF) && !admin {
        return Err(Unsupported::NoCapability { missing: "CAP_BPF" });
    }
    if !has(CAP_NET_ADMIN) {
        return Err(Unsupported::NoCapability { missing: "CAP_NET_ADMIN" });
    }
    // Reading the packet pointers of a TC program needs it.
    if !has(CAP_PERFMON) && !admin {
        return Err(Unsupported::NoCapability { missing: "CAP_PERFMON" });
    }
    Ok(())
}

/// Whether the directory, or its nearest parent that exists, is on a bpffs.
pub(crate) fn on_bpffs(dir: &Path) -> bool {
    dir.ancestors()
        .find(|path| path.exists())
        .and_then(|path| statfs(path).ok())
        .is_some_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_capabilities_is_told_which_one() {
        let missing = |hex: &str| match check_capabilities(&format!("Name:\tx\nCapEff:\t{hex}\n")) {
            Err(Unsupported::NoCapability { missing }) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing("0000000000000000"), "CAP_BPF");
        assert_eq!(missing("0000008000000000"), "CAP_NET_ADMIN");
        assert_eq!(missing("0000008000001000"), "CAP_PERFMON");
        assert_eq!(missing(""), "CAP_BPF");
    }

    #[test]
    fn root_and_the_three_capabilities_are_enough() {
        for hex in ["000001ffffffffff", "000000c000001000", "0000000000201000"] {
            assert_eq!(check_capabilities(&format!("CapEff:\t{hex}\n")), Ok(()), "{hex}");
        }
    }

    #[test]
    fn an_ordinary_directory_is_no_bpffs() {
        assert!(!on_bpffs(Path::new("/proc/self")));
    }
}

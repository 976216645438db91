//! The embedded eBPF object file, and the names of its programs.

use std::sync::LazyLock;

/// The object; empty if the agent was built without an eBPF toolchain.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/slipstream-ebpf"));

impl super::Programs {
    /// Fingerprint of the embedded programs (FNV-1a, 64 bits, in hexadecimal), to tell builds apart; `None` when the agent
    /// was built without them.
    pub fn fingerprint() -> Option<&'static str> {
        // Every status has it, and the object has megabytes.
        static FINGERPRINT: LazyLock<String> = LazyLock::new(|| format!("{:016x}", api::hash::fnv1a(OBJECT)));
        (!OBJECT.is_empty()).then(|| FINGERPRINT.as_str())
    }
}

/// A program of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub(super) enum Program {
    FromPod,
    ToPod,
    FromUplink,
    ToUplink,
    FromHost,
    ToHost,
    FromPhysical,
    ToPhysical,
    Stop,
    Clock,
    Trial,
}

impl Program {
    pub(super) const ALL: [Self; 11] = [
        Self::FromPod,
        Self::ToPod,
        Self::FromUplink,
        Self::ToUplink,
        Self::FromHost,
        Self::ToHost,
        Self::FromPhysical,
        Self::ToPhysical,
        Self::Stop,
        Self::Clock,
        Self::Trial,
    ];

    /// Name in the object, in pins and in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FromPod => "from_pod",
            Self::ToPod => "to_pod",
            Self::FromUplink => "from_uplink",
            Self::ToUplink => "to_uplink",
            Self::FromHost => "from_host",
            Self::ToHost => "to_host",
            Self::FromPhysical => "from_physical",
            Self::ToPhysical => "to_physical",
            Self::Stop => "stop",
            Self::Clock => "clock",
            Self::Trial => "trial",
        }
    }
}

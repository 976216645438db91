//! The embedded eBPF object file, and the names of its programs.

/// The object; empty if the agent was built without an eBPF toolchain.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/slipstream-ebpf"));

impl super::Programs {
    /// Fingerprint of the embedded programs (FNV-1a, 64 bits, in hexadecimal), to tell builds apart; `None` when the agent
    /// was built without them.
    pub fn fingerprint() -> Option<String> {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let hash = OBJECT.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
        (!OBJECT.is_empty()).then(|| format!("{hash:016x}"))
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
    Stop,
    Clock,
    Trial,
}

impl Program {
    pub(super) const ALL: [Self; 7] =
        [Self::FromPod, Self::ToPod, Self::FromUplink, Self::ToUplink, Self::Stop, Self::Clock, Self::Trial];

    /// Name in the object, in pins and in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FromPod => "from_pod",
            Self::ToPod => "to_pod",
            Self::FromUplink => "from_uplink",
            Self::ToUplink => "to_uplink",
            Self::Stop => "stop",
            Self::Clock => "clock",
            Self::Trial => "trial",
        }
    }
}

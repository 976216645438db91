//! Why a pod does not get what it asks for.

use api::NamespacedName;

use super::{Notice, NoticeKind};
use crate::alloc::GrantError;

/// Something of another pod's that a pod asks for.
#[derive(Debug)]
pub(super) struct Asked {
    /// UID of the pod that has it.
    pub(super) uid: String,
    /// What it is.
    pub(super) what: String,
    pub(super) network: NamespacedName,
}

impl Asked {
    /// What a pod asked for although another has it.
    pub(super) fn of(error: &GrantError, network: &NamespacedName) -> Option<Self> {
        let (uid, what) = match error {
            GrantError::AddressTaken { ip, uid } => (uid, format!("address {ip}")),
            GrantError::MacTaken { mac, uid } => (uid, format!("MAC address {mac}")),
            _ => return None,
        };
        Some(Self { uid: uid.clone(), what, network: network.clone() })
    }
}

/// Why a pod waits.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) notice: Notice,
    /// What it asks for although another pod has it.
    pub(super) of_another: Option<Asked>,
}

impl From<Notice> for Box<Refusal> {
    fn from(notice: Notice) -> Self {
        Self::new(Refusal { notice, of_another: None })
    }
}

/// Why a pod gets nothing.
#[derive(Debug)]
pub(super) enum Refused {
    /// To be told to its user, and to that of another pod which has what it asks for.
    Told(NoticeKind, String, Option<Asked>),
    /// The pod that used the claim before is gone, and its port is about to go.
    Soon,
}

impl From<(NoticeKind, String)> for Refused {
    fn from((kind, message): (NoticeKind, String)) -> Self {
        Self::Told(kind, message, None)
    }
}

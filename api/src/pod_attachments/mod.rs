//! Further interfaces of a pod: what its annotations ask for, as one list, and the list that older readers know.
//!
//! The annotations are [`REQUEST`], or [`NFN_REQUEST`] in its place, and [`ROUTES`]; [`PRIMARY`], if neither of
//! the first two is there; and [`SELECTIONS`], which names definitions of networks of any plugin. A network that is asked for is
//! named only; which one it is, and whether the pod may use it, is for the controller to say.

mod iface_list;
mod primary;
mod reader;
mod request;
mod selection;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::MacAddr;
pub use iface_list::{Iface, iface_list};
pub use primary::PrimaryWish;
pub use request::parse;
pub use selection::{MAX_SELECTIONS, SELECTIONS, Selection, selections};

/// Key of the list of a pod's further interfaces.
pub const REQUEST: &str = "ovnNetwork";
/// Annotation key of ovn4nfv with the same content as [`REQUEST`].
pub const NFN_REQUEST: &str = "k8s.plugin.opnfv.org/nfn-network";
/// Key of further routes inside the pod.
pub const ROUTES: &str = "ovnNetworkRoutes";
/// Key of the addresses that a pod asks for on the cluster's network; not read where a pod asks for networks by name.
pub const PRIMARY: &str = "ovn";
/// Key of the list that the controller writes for older readers.
pub const IFACE_LIST: &str = "ovnIfaceList";
/// Further interfaces that a pod may have.
pub const MAX_INTERFACES: usize = 10;
/// Further routes that a pod may have.
pub const MAX_ROUTES: usize = 100;
/// Characters of an interface's name at most, as Linux has it.
pub const MAX_INTERFACE_NAME: usize = 15;

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodAttachments {
    /// In the order of the annotation.
    pub attachments: Vec<Attachment>,
    /// Further routes, each through one of the attachments.
    pub routes: Vec<Route>,
    /// Addresses on the cluster's network.
    pub primary: Option<PrimaryWish>,
}

/// One further interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The network.
    pub network: NetworkRef,
    /// Name of the interface inside the pod.
    pub interface: String,
    /// Addresses that the pod asks for; where a family has none, it gets a free one.
    pub ips: Vec<StaticIp>,
    /// The MAC address that the pod asks for; without one it follows from the address.
    pub mac: Option<MacAddr>,
    /// Gateways in place of the network's own, at most one of a family.
    pub gateways: Vec<IpAddr>,
    /// The pod's default route goes through this interface.
    pub default_route: bool,
    /// The IPAMClaim, in the pod's namespace, that keeps the addresses when the pod is gone.
    pub claim: Option<String>,
}

/// A network as a pod names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkRef {
    /// The namespace, if the pod says one. Without it the network is looked up in the pod's namespace first.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl NetworkRef {
    /// Reads NAME or NAMESPACE/NAME; none where `is_label` holds of a part not.
    pub(crate) fn parse(text: &str, is_label: impl Fn(&str) -> bool) -> Option<Self> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let good = namespace.into_iter().chain([name]).all(is_label);
        good.then(|| Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for NetworkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// An address that a pod asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticIp {
    /// The address.
    pub ip: IpAddr,
    /// The prefix length written with it, which must be the network's.
    pub prefix_len: Option<u8>,
}

/// A route inside the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination, without bits beyond its prefix.
    pub dest: IpNet,
    /// Next hop, an address of one of the pod's networks.
    pub next_hop: IpAddr,
}

/// Whether `text` has the form of an object's name with dots (RFC 1123's subdomain), up to its length of 253 characters.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
            && bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

impl PodAttachments {
    /// Whether the pod asks for no further interface.
    pub fn is_empty(&self) -> bool {
        self.attachments.is_empty() && self.routes.is_empty()
    }
}

/// An annotation that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct RequestError {
    /// The annotation's key.
    pub key: &'static str,
    /// What is wrong, with the field, and what would be right.
    pub problem: String,
}

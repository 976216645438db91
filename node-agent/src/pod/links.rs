//! Host side of a pod's connection: the pod's veth pair, and the shim pair in interposed mode.

use crate::kernel::sysctl;
use std::collections::BTreeSet;

use api::MacAddr;

use crate::attach::{self, Attach, Names};
use crate::kernel::link::{Link, Netlink, Veth, ethtool};
use crate::kernel::netns::Netns;
use crate::node::Node;
use crate::pod::AttachError;

/// Prefix of a link's alias, before the container id.
const ALIAS: &str = "slipstream:";

/// Container id in the alias of a link.
pub fn owner(link: &Link) -> Option<&str> {
    link.alias.as_deref()?.strip_prefix(ALIAS)
}

/// Ids of a container's interfaces that have one of these links: by its alias, or by its name before it has one.
pub fn interfaces_of<'a>(container: &str, links: impl IntoIterator<Item = &'a Link>) -> BTreeSet<String> {
    let container = attach::in_alias(container);
    let of = |link: &Link| {
        let id = attach::interface_of_link(&link.name, container)?;
        let ours = link.kind.as_deref() == Some("veth") && owner(link).is_none_or(|owner| owner == container);
        ours.then_some(id)
    };
    links.into_iter().filter_map(of).collect()
}

/// What the end of a veth pair in the pod is created with.
#[derive(Debug, Clone, Copy)]
pub struct PodEnd<'a> {
    /// Name of the interface in the pod.
    pub ifname: &'a str,
    /// MAC address, if it is known already.
    pub mac: Option<MacAddr>,
    /// MTU of all links of the interface in bytes.
    pub mtu: u32,
}

/// Creates the veth pair of an interface of a pod, and in interposed mode the shim pair. On error nothing is left behind, and existing
/// links are not changed.
///
/// # Errors
/// A link exists already or cannot be created.
pub async fn create_links(
    node: &Node,
    names: &Names,
    netns: &Netns,
    end: PodEnd<'_>,
) -> Result<(), AttachError> {
    let pair = create_pair(node, names, netns, end);
    if node.datapath.attach == Attach::Direct {
        return pair.await;
    }
    let made = tokio::join!(pair, create_shim(node, names, end.mtu));
    let (error, made) = match made {
        (Ok(()), Ok(())) => return Ok(()),
        (Ok(()), Err(error)) => (error, Some(&names.host)),
        (Err(error), Ok(())) => (error, Some(&names.shim_agent)),
        (Err(error), Err(_)) => (error, None),
    };
    let undone = match made {
        Some(name) => node.reaper.delete_if_exists(name).await.map(drop),
        None => Ok(()),
    };
    Err(match undone {
        Ok(()) => error,
        Err(left) => AttachError::NotUndone { cause: Box::new(error), left },
    })
}

async fn create_pair(
    node: &Node,
    names: &Names,
    netns: &Netns,
    PodEnd { ifname, mac, mtu }: PodEnd<'_>,
) -> Result<(), AttachError> {
    let pair = Veth {
        name: &names.host,
        mac: None,
        group: node.datapath.host_group(),
        peer: ifname,
        peer_mac: mac,
        peer_group: 0,
        peer_netns: Some(netns.raw_fd()),
        mtu,
    };
    match node.netlink.create_veth(&pair).await {
        Err(e) if e.already_exists() => {
            let which = match node.netlink.find(&names.host).await? {
                Some(_) => format!(
                    "interface {} exists on the node already: ADD was called before for this container",
                    names.host
                ),
                None => format!("interface {ifname} exists in {} already", netns.path().display()),
            };
            Err(AttachError::Taken(which))
        }
        other => Ok(other?),
    }
}

/// Creates the shim pair, without IPv6 addresses on either end, and with segmentation and checksum offloads off at the agent end.
async fn create_shim(node: &Node, names: &Names, mtu: u32) -> Result<(), AttachError> {
    let pair = Veth {
        name: &names.shim_agent,
        mac: None,
        group: 0,
        peer: &names.shim_ovs,
        peer_mac: None,
        peer_group: 0,
        peer_netns: None,
        mtu,
    };
    node.netlink.create_veth(&pair).await?;
    match quiet_shim(names).await {
        Ok(()) => Ok(()),
        Err(error) => match node.reaper.delete_if_exists(&names.shim_agent).await {
            Ok(_) => Err(error),
            Err(left) => Err(AttachError::NotUndone { cause: Box::new(error), left }),
        },
    }
}

async fn quiet_shim(names: &Names) -> Result<(), AttachError> {
    let (agent, ovs) = (names.shim_agent.clone(), names.shim_ovs.clone());
    let work = move || {
        sysctl::disable_ipv6(&agent)?;
        sysctl::disable_ipv6(&ovs)?;
        ethtool::disable_tx_offloads(&agent)
    };
    let done = tokio::task::spawn_blocking(work).await;
    let thread = |e: tokio::task::JoinError| AttachError::Thread {
        what: format!("shim {}", names.shim_agent),
        reason: e.to_string(),
    };
    done.map_err(thread)??;
    Ok(())
}

/// Host ends of the links of an interface of a container.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The pod's host veth.
    pub host: Link,
    /// Agent end and OVS end of the shim, in interposed mode.
    pub shim: Option<(Link, Link)>,
}

impl Ends {
    /// Looks up the links of an interface.
    ///
    /// # Errors
    /// A link does not exist.
    pub async fn find(netlink: &Netlink, names: &Names, attach: Attach) -> Result<Self, AttachError> {
        let host = netlink.get(&names.host).await?;
        let shim = match attach {
            Attach::Direct => None,
            Attach::Interposed => {
                Some((netlink.get(&names.shim_agent).await?, netlink.get(&names.shim_ovs).await?))
            }
        };
        Ok(Self { host, shim })
    }

    /// Interface indices of the shim's ends.
    pub fn shim_indexes(&self) -> Option<(u32, u32)> {
        self.shim.as_ref().map(|(agent, ovs)| (agent.index, ovs.index))
    }

    /// Sets the links up, with the container id as alias.
    ///
    /// # Errors
    /// The kernel refuses a change of a link.
    pub async fn set_up(&self, netlink: &Netlink, container: &str) -> Result<(), AttachError> {
        let alias = format!("{ALIAS}{}", attach::in_alias(container));
        netlink.no_ipv6_address(self.host.index, &self.host.name).await?;
        let shim = self.shim.iter().flat_map(|(agent, ovs)| [agent, ovs]);
        for link in std::iter::once(&self.host).chain(shim) {
            netlink.set_up_with_alias(link.index, &link.name, &alias).await?;
        }
        Ok(())
    }
}

/// Deletes a link of a container, unless it belongs to another container.
///
/// # Errors
/// The link exists and cannot be deleted.
pub async fn delete_link(netlink: &Netlink, name: &str, container: &str) -> Result<(), AttachError> {
    let Some(link) = netlink.find(name).await? else { return Ok(()) };
    let container = attach::in_alias(container);
    if link.kind.as_deref() != Some("veth") || owner(&link).is_some_and(|owner| owner != container) {
        tracing::warn!(name, container, alias = link.alias, "link belongs to another container; not deleted");
        return Ok(());
    }
    match netlink.delete(link.index, name).await {
        Err(e) if !e.is_missing() => Err(e.into()),
        _ => Ok(()),
    }
}

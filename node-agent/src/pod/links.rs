//! The node's side of a pod's connection: names, the pod's veth pair, and the shim pair of interposed mode.

use crate::kernel::sysctl;
use std::time::Duration;

use api::MacAddr;
use api::error::chain;

use crate::attach::{Attach, Names};
use crate::bpf::{self, Endpoint};
use crate::datapath::Datapath;
use crate::kernel::link::{Link, Netlink, Veth, ethtool};
use crate::kernel::netns::Netns;
use crate::node::Node;
use crate::node::timing::timed;
use crate::pod::AttachError;

/// Before the container id in a link's alias: whose the link is.
const ALIAS: &str = "slipstream:";

/// The container a link was made for, by its alias.
pub fn owner(link: &Link) -> Option<&str> {
    link.alias.as_deref()?.strip_prefix(ALIAS)
}

/// Makes the container's links: the pod's pair, and in interposed mode beside it the shim. Nothing is left behind on
/// failure, and nothing is taken from a container that was there before.
pub async fn create_links(
    node: &Node,
    names: &Names,
    netns: &Netns,
    ifname: &str,
    mac: Option<MacAddr>,
) -> Result<(), AttachError> {
    let pair = create_pair(node, names, netns, ifname, mac);
    if node.datapath.attach == Attach::Direct {
        return pair.await;
    }
    let made = tokio::join!(pair, create_shim(node, names));
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
    ifname: &str,
    mac: Option<MacAddr>,
) -> Result<(), AttachError> {
    let pair = Veth {
        name: &names.host,
        mac: None,
        group: node.datapath.host_group(),
        peer: ifname,
        peer_mac: mac,
        peer_group: 0,
        peer_netns: Some(netns.raw_fd()),
        mtu: node.mtu,
    };
    match node.netlink.create_veth(&pair).await {
        Err(e) if e.already_exists() => {
            let which = match node.netlink.find(&names.host).await? {
                Some(_) => format!(
                    "interface {} is on the node already: this container has been added before",
                    names.host
                ),
                None => format!("interface {ifname} is in {} already", netns.path().display()),
            };
            Err(AttachError::Taken(which))
        }
        other => Ok(other?),
    }
}

/// Makes the shim pair, with nothing of the node's stack on either end and whole, finished packets leaving the agent end.
async fn create_shim(node: &Node, names: &Names) -> Result<(), AttachError> {
    let pair = Veth {
        name: &names.shim_agent,
        mac: None,
        group: 0,
        peer: &names.shim_ovs,
        peer_mac: None,
        peer_group: 0,
        peer_netns: None,
        mtu: node.mtu,
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

/// The node's ends of a container's links.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The pod's host veth.
    pub host: Link,
    /// The shim's agent end and OVS end.
    pub shim: Option<(Link, Link)>,
}

impl Ends {
    /// Looks them up.
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

    /// Numbers of the shim's ends.
    pub fn shim_indexes(&self) -> Option<(u32, u32)> {
        self.shim.as_ref().map(|(agent, ovs)| (agent.index, ovs.index))
    }

    /// Sets them up and marks them as the container's.
    pub async fn set_up(&self, netlink: &Netlink, container: &str) -> Result<(), AttachError> {
        let alias = format!("{ALIAS}{}", container.get(..200).unwrap_or(container));
        netlink.no_ipv6_address(self.host.index, &self.host.name).await?;
        let shim = self.shim.iter().flat_map(|(agent, ovs)| [agent, ovs]);
        for link in std::iter::once(&self.host).chain(shim) {
            netlink.set_up_with_alias(link.index, &link.name, &alias).await?;
        }
        Ok(())
    }
}

/// Attaches the programs to an endpoint, where the node has programs. Returns how long it took.
///
/// # Errors
/// The kernel refuses; what was done is taken back.
pub async fn add_endpoint(datapath: &Datapath, endpoint: Endpoint) -> Result<Duration, AttachError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(Duration::ZERO) };
    let id = endpoint.id.clone();
    let add = move || programs.lock().add_endpoint(&endpoint).map_err(|error| chain(&error));
    let (done, took) = timed(tokio::task::spawn_blocking(add)).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|reason| AttachError::Programs { container: id.to_owned(), reason })?;
    Ok(took)
}

/// Detaches the programs of an endpoint; one that is not there is a success.
///
/// # Errors
/// What could not be removed.
pub async fn remove_endpoint(datapath: &Datapath, id: &str) -> Result<(), AttachError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(()) };
    let container = id.to_owned();
    let remove = move || programs.lock().remove_endpoint(&container).map_err(|e| e.to_string());
    let done = tokio::task::spawn_blocking(remove).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|reason| AttachError::Programs { container: id.to_owned(), reason })
}

/// Ids of the containers that have programs, and whether all of each one's are attached and know its addresses.
///
/// # Errors
/// The thread that reads them has ended.
pub async fn endpoints(datapath: &Datapath) -> Result<Vec<(String, bool)>, AttachError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(Vec::new()) };
    // One taken over from another map layout has lost what is bound to it, and is brought up to date.
    let whole = |e: &bpf::EndpointState| e.alive && e.mac != [0; 6];
    let list = move || {
        let states = programs.lock().endpoints();
        states.into_iter().map(|state| (state.id.clone(), whole(&state))).collect()
    };
    let done = tokio::task::spawn_blocking(list).await;
    done.map_err(|e| AttachError::Thread { what: "list of eBPF endpoints".to_owned(), reason: e.to_string() })
}

/// Deletes one of a container's links; a link of another container by the same name stays.
pub async fn delete_link(netlink: &Netlink, name: &str, container: &str) -> Result<(), AttachError> {
    let Some(link) = netlink.find(name).await? else { return Ok(()) };
    let container = container.get(..200).unwrap_or(container);
    if link.kind.as_deref() != Some("veth") || owner(&link).is_some_and(|owner| owner != container) {
        tracing::warn!(name, container, alias = link.alias, "not deleting a link that is somebody else's");
        return Ok(());
    }
    match netlink.delete(link.index, name).await {
        Err(e) if !e.is_missing() => Err(e.into()),
        _ => Ok(()),
    }
}

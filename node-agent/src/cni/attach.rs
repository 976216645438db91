//! The node's side of a pod's connection: names, the pod's veth pair, and the shim pair of interposed mode.

use std::time::Duration;

use api::MacAddr;

use super::CniError;
use super::steps::timed;
use crate::datapath::{Datapath, Endpoint, Mode};
use crate::link::{Link, Netlink, Veth, ethtool, sysctl};
use crate::netns::Netns;
use crate::node::Node;

/// Before the container id in a link's alias: whose the link is.
const ALIAS: &str = "slipstream:";

/// Names of a container's links on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The pod's host veth: the first 15 characters of the id, as ovn-kubernetes has it.
    pub host: String,
    /// The shim's end that programs use.
    pub shim_agent: String,
    /// The shim's end that is the OVS port.
    pub shim_ovs: String,
}

impl Names {
    /// The names for one container id.
    pub fn of(container: &str) -> Self {
        let first = |n: usize| container.get(..n).unwrap_or(container);
        Self {
            host: first(15).to_owned(),
            shim_agent: format!("sa{}", first(13)),
            shim_ovs: format!("so{}", first(13)),
        }
    }

    /// Name of the OVS port.
    pub fn ovs_port(&self, mode: Mode) -> &str {
        match mode {
            Mode::Direct => &self.host,
            Mode::Interposed => &self.shim_ovs,
        }
    }
}

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
) -> Result<(), CniError> {
    let pair = create_pair(node, names, netns, ifname, mac);
    if node.datapath.mode == Mode::Direct {
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
    Err(undone
        .map_or_else(|left| error.clone().and(&format!("and undoing it failed: {left}")), |()| error.clone()))
}

async fn create_pair(
    node: &Node,
    names: &Names,
    netns: &Netns,
    ifname: &str,
    mac: Option<MacAddr>,
) -> Result<(), CniError> {
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
            Err(CniError::failure(format!("{which}; it is left as it is")))
        }
        other => Ok(other?),
    }
}

/// Makes the shim pair, with nothing of the node's stack on either end and whole, finished packets leaving the agent end.
async fn create_shim(node: &Node, names: &Names) -> Result<(), CniError> {
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
            Err(left) => Err(error.and(&format!("and undoing it failed: {left}"))),
        },
    }
}

async fn quiet_shim(names: &Names) -> Result<(), CniError> {
    let (agent, ovs) = (names.shim_agent.clone(), names.shim_ovs.clone());
    let work = move || {
        sysctl::disable_ipv6(&agent)?;
        sysctl::disable_ipv6(&ovs)?;
        ethtool::disable_tx_offloads(&agent)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| CniError::failure(format!("shim {}: {e}", names.shim_agent)))??;
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
    pub async fn find(netlink: &Netlink, names: &Names, mode: Mode) -> Result<Self, CniError> {
        let host = netlink.get(&names.host).await?;
        let shim = match mode {
            Mode::Direct => None,
            Mode::Interposed => {
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
    pub async fn set_up(&self, netlink: &Netlink, container: &str) -> Result<(), CniError> {
        let alias = format!("{ALIAS}{}", container.get(..200).unwrap_or(container));
        netlink.no_ipv6_address(self.host.index, &self.host.name).await?;
        let shim = self.shim.iter().flat_map(|(agent, ovs)| [agent, ovs]);
        for link in std::iter::once(&self.host).chain(shim) {
            netlink.set_up_with_alias(link.index, &link.name, &alias).await?;
        }
        Ok(())
    }
}

/// Lets the programs know of an endpoint. Returns how long it took.
pub async fn add_endpoint(datapath: &Datapath, endpoint: Endpoint) -> Result<Duration, CniError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(Duration::ZERO) };
    let id = endpoint.id.clone();
    let (done, took) = timed(tokio::task::spawn_blocking(move || programs.add(&endpoint))).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|e| CniError::failure(format!("eBPF programs of container {id}: {e}")))?;
    Ok(took)
}

/// Takes the programs of an endpoint away.
pub async fn remove_endpoint(datapath: &Datapath, id: &str) -> Result<(), CniError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(()) };
    let container = id.to_owned();
    let done = tokio::task::spawn_blocking(move || programs.remove(&container)).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|e| CniError::failure(format!("eBPF programs of container {id}: {e}")))
}

/// Deletes one of a container's links; a link of another container by the same name stays.
pub async fn delete_link(netlink: &Netlink, name: &str, container: &str) -> Result<(), CniError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_short_ids_are_taken_whole() {
        let names = Names::of("7fabc589b5b8dc1aa0123456789");
        assert_eq!((names.host.as_str(), names.shim_agent.as_str()), ("7fabc589b5b8dc1", "sa7fabc589b5b8d"));
        assert_eq!(names.shim_ovs.len(), 15);
        assert_eq!(Names::of("c1").shim_ovs, "soc1");
        assert_eq!(names.ovs_port(Mode::Direct), "7fabc589b5b8dc1");
    }
}

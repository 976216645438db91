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

/// Makes the pod's pair, the pod's end in its namespace. Nothing is left behind on failure.
pub async fn create_pair(
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
pub async fn create_shim(netlink: &Netlink, names: &Names, mtu: u32) -> Result<(), CniError> {
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
    netlink.create_veth(&pair).await?;
    quiet_shim(names).await
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

/// Sets the node's ends up and marks them as the container's. Returns the pod's host end, and the shim's ends.
pub async fn set_up_host(
    netlink: &Netlink,
    names: &Names,
    container: &str,
    datapath: &Datapath,
) -> Result<(Link, Option<(u32, u32)>), CniError> {
    let alias = format!("{ALIAS}{}", container.get(..200).unwrap_or(container));
    let host = netlink.get(&names.host).await?;
    netlink.no_ipv6_address(host.index, &names.host).await?;
    netlink.set_up_with_alias(host.index, &names.host, &alias).await?;
    let mut shim = None;
    if datapath.mode == Mode::Interposed {
        let (agent, ovs) = (netlink.get(&names.shim_agent).await?, netlink.get(&names.shim_ovs).await?);
        netlink.set_up_with_alias(agent.index, &names.shim_agent, &alias).await?;
        netlink.set_up_with_alias(ovs.index, &names.shim_ovs, &alias).await?;
        shim = Some((agent.index, ovs.index));
    }
    Ok((host, shim))
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

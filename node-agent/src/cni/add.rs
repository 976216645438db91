//! ADD: connects a container to the cluster network, or fails and undoes all steps.
//!
//! Order: links (concurrently with the wait for addresses); then the pod's interface, and concurrently the node's ends followed by
//! OVS port and eBPF programs; then the wait for `ovn-installed`.

use ipnet::IpNet;
use std::pin::pin;
use std::time::Duration;

use api::annotation::{PodNetwork, PodNetworks};
use api::ovn_name::pod_port;
use tokio::time::Instant;

use super::request::Call;
use super::result::AddResult;
use super::{CniError, del};
use crate::attach::Names;
use crate::bpf::{Endpoint, Mode};
use crate::kernel::netns::Netns;
use crate::kube::pods::PodError;
use crate::node::Node;
use crate::node::calls::Cancel;
use crate::node::timing::{Steps, timed};
use crate::ovs::ports::PodPort;
use crate::pod::links::{self, Ends};
use crate::pod::pod_netns::PodSide;
use api::NamespacedName;

/// Timeout of an ADD, below the two minutes after which container runtimes give up.
pub const BUDGET: Duration = Duration::from_secs(110);

type Addresses = (String, PodNetwork);

/// Executes ADD. `cancel` ends it when the result is no longer wanted.
///
/// # Errors
/// A step failed or the call was cancelled; the steps before were undone, or the details say what was not.
pub async fn add(
    node: &Node,
    call: &Call,
    cancel: &Cancel,
    steps: &mut Steps,
) -> Result<AddResult, CniError> {
    let deadline = Instant::now() + BUDGET;
    let pod = call
        .pod()
        .ok_or_else(|| CniError::failure("CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME are missing"))?;
    let netns = Netns::open(call.netns.as_deref().unwrap_or_default().as_ref())?;
    let names = Names::of(&call.container_id);
    let mut addresses = pin!(timed(node.pods.addresses(&pod, call.pod_uid(), BUDGET)));
    // Usually the addresses are known already, and the veth pair is created with the final MAC.
    let known: Option<Addresses> = match futures::poll!(addresses.as_mut()) {
        std::task::Poll::Ready((done, _)) => Some(done?),
        std::task::Poll::Pending => None,
    };
    let mac = known.as_ref().map(|(_, network)| network.mac_address);
    steps.time("pair", links::create_links(node, &names, &netns, &call.ifname, mac)).await?;

    let add = Add { node, call, netns: &netns, names: &names, pod: &pod, mac_is_set: mac.is_some() };
    let work = async {
        let known = match known {
            Some(known) => known,
            None => wait_addresses(addresses, cancel, steps).await?,
        };
        add.plug(known, cancel, deadline, steps).await
    };
    match work.await {
        Ok(result) => Ok(result),
        Err(error) => match del::release(node, &call.container_id).await {
            Ok(()) => Err(error),
            Err(left) => Err(error.and(&format!("and undoing it failed: {left}"))),
        },
    }
}

async fn wait_addresses(
    addresses: impl Future<Output = (Result<Addresses, PodError>, Duration)>,
    cancel: &Cancel,
    steps: &mut Steps,
) -> Result<Addresses, CniError> {
    let (done, took) = cancel.unless(addresses).await.map_err(CniError::again)?;
    steps.add("addresses", took);
    Ok(done?)
}

struct Add<'a> {
    node: &'a Node,
    call: &'a Call,
    netns: &'a Netns,
    names: &'a Names,
    pod: &'a NamespacedName,
    mac_is_set: bool,
}

impl Add<'_> {
    async fn plug(
        &self,
        (uid, network): Addresses,
        cancel: &Cancel,
        deadline: Instant,
        steps: &mut Steps,
    ) -> Result<AddResult, CniError> {
        let (node, call, datapath) = (self.node, self.call, &*self.node.datapath);
        let side = PodSide::new(&call.ifname, &network, self.mac_is_set, datapath.pod_completes_checksums());
        let port = self.port(uid, &network);
        // The OVS end is set up before the port is added: with the userspace datapath ovs-vswitchd restores the flags it found
        // when it opened the interface, with promiscuous mode added (netdev-linux.c, update_flags), and an interface that
        // is set up in between would stay down.
        let ends = timed(async {
            let ends = Ends::find(&node.netlink, self.names, datapath.attach).await?;
            ends.set_up(&node.netlink, &call.container_id).await?;
            Ok::<_, CniError>(ends)
        });
        let host_side = async {
            let (ends, up) = ends.await;
            let ends = ends?;
            let endpoint = Endpoint {
                id: call.container_id.clone(),
                host_ifindex: ends.host.index,
                mode: Mode::of_shim(ends.shim_indexes()),
                addresses: network.ip_addresses.iter().map(IpNet::addr).collect(),
                mac: network.mac_address.0,
                shares_ingress: node.pods.get(self.pod).is_some_and(|pod| pod.limits_sending),
            };
            let (attached, row) = tokio::join!(
                links::add_endpoint(datapath, endpoint),
                timed(async { node.ovs.add_pod_port(&port).await.map_err(CniError::from) })
            );
            Ok::<_, CniError>((ends.host, up, attached, row))
        };
        let ((pod, host), took) =
            timed(async { tokio::join!(timed(side.clone().configure(self.netns)), host_side) }).await;
        steps.add("pod", pod.1);
        let mut errors = Vec::new();
        let (mut host_link, mut row_id) = (None, None);
        match host {
            Ok((link, up, attached, (row, row_took))) => {
                steps.add("host", up);
                steps.add("row", row_took);
                host_link = Some(link);
                match attached {
                    Ok(took) => {
                        node.flow_cache.endpoint_added(&call.container_id);
                        steps.add("programs", took);
                    }
                    Err(e) => errors.push(CniError::from(e)),
                }
                match row {
                    Ok(id) => row_id = Some(id),
                    Err(e) => errors.push(e),
                }
            }
            Err(e) => errors.push(e),
        }
        steps.add("plug", took);
        if let Err(e) = pod.0 {
            errors.push(e.into());
        }
        let (Some(host), Some(row), None) = (host_link, row_id, CniError::join(errors.clone())) else {
            return Err(CniError::join(errors).unwrap_or_else(|| CniError::failure("no step completed")));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let installed = cancel.unless(node.ovs.wait_installed(row, &port.name, left));
        steps.time("installed", installed).await.map_err(CniError::again)??;
        self.still_current(&network)?;
        Ok(AddResult {
            host: self.names.host.clone(),
            host_mac: host.mac.unwrap_or_default(),
            ifname: call.ifname.clone(),
            mac: network.mac_address,
            sandbox: call.netns.clone().unwrap_or_default(),
            mtu: node.mtu,
            ips: network.ip_addresses.iter().map(|a| (*a, side.gateway_of(a))).collect(),
        })
    }

    fn port(&self, uid: String, network: &PodNetwork) -> PodPort {
        PodPort {
            name: self.names.ovs_port(self.node.datapath.attach).to_owned(),
            iface_id: pod_port(&self.pod.namespace, &self.pod.name),
            iface_id_ver: uid,
            sandbox: self.call.container_id.clone(),
            pod_interface: self.call.ifname.clone(),
            mac: network.mac_address.to_string(),
            addresses: network.ip_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }

    /// The namespace, and the links with it, may have disappeared during the wait. And the addresses may have changed: when
    /// the controller refuses an annotation and gives the pod new ones, the port is in place with those.
    fn still_current(&self, network: &PodNetwork) -> Result<(), CniError> {
        if let Some(info) = self.node.pods.get(self.pod) {
            let now = info.networks.as_deref().map(PodNetworks::default_of);
            // A removed or unreadable annotation counts as a changed one.
            let same = matches!(&now, Some(Ok(now))
                if (&now.ip_addresses, now.mac_address) == (&network.ip_addresses, network.mac_address));
            if !same {
                let msg = format!("pod {}: addresses changed during ADD", self.pod);
                return Err(CniError::again(msg));
            }
        }
        Netns::open(self.netns.path()).map(drop).map_err(CniError::from)
    }
}

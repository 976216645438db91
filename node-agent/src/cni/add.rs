//! ADD: connects a container to the cluster network and to the other networks of its pod, or fails and undoes all steps. A call may be for
//! one further interface alone ([`super::further`]).
//!
//! Order: links of the first interface (concurrently with the wait for addresses), then those of the others, which the addresses name;
//! then the interfaces in the pod, and concurrently the node's ends followed by OVS ports and eBPF programs; then the wait for
//! `ovn-installed` of all. Interfaces whose addresses others on the network may have get them only then, if nobody has.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use tokio::time::Instant;

use super::interfaces::{Interfaces, Part, Wanted, Who};
use super::request::Call;
use super::result::{AddResult, AddResults};
use super::{CniError, del, further};
use crate::attach::{self, Names};
use crate::bpf::{Endpoint, Mode};
use crate::kernel::link::Link;
use crate::kernel::netns::Netns;
use crate::kube::pods::{PodAddresses, PodError};
use crate::node::Node;
use crate::node::calls::Cancel;
use crate::node::timing::{Steps, timed};
use crate::ovs::ports::PodPort;
use crate::pod::duplicates::{self, Asked, Duplicate};
use crate::pod::links::{self, Ends, PodEnd};
use crate::pod::pod_netns::{self, PodSide};
use crate::pod::{AttachError, endpoints};
use api::NamespacedName;
use api::cni::code;
use ovsdb_client::Uuid;

/// Timeout of an ADD, below the two minutes after which container runtimes give up.
pub const BUDGET: Duration = Duration::from_secs(110);

/// Executes ADD. `cancel` ends it when the result is no longer wanted.
///
/// # Errors
/// A step failed or the call was cancelled; the steps before were undone, or the details say what was not.
pub async fn add(
    node: &Node,
    call: &Call,
    cancel: &Cancel,
    steps: &mut Steps,
) -> Result<AddResults, CniError> {
    let deadline = Instant::now() + BUDGET;
    let pod = call
        .pod()
        .ok_or_else(|| CniError::failure("CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME are missing"))?;
    possible(call)?;
    if let Some(ports) = further::ports(node, call) {
        return match ports.iter().find(|port| port.pod_interface == call.ifname) {
            Some(port) => further::told(node, call, port).await,
            None => add_further(node, call, &pod, cancel, (deadline, steps)).await,
        };
    }
    let netns = Netns::open(call.netns.as_deref().unwrap_or_default().as_ref())?;
    let names = Names::of(&call.container_id);
    let mut addresses = pin!(timed(node.pods.addresses(&pod, call.pod_uid(), BUDGET)));
    // Usually the addresses are known already, and the veth pair is created with the final MAC.
    let known: Option<Interfaces> = match futures::poll!(addresses.as_mut()) {
        std::task::Poll::Ready((done, _)) => Some(first_part(node, call, &pod, done?).await?),
        std::task::Poll::Pending => None,
    };
    let mac = known.as_ref().and_then(|all| Some(all.first.as_ref()?.network.mac_address));
    let end = PodEnd { ifname: &call.ifname, mac, mtu: node.mtu };
    steps.time("pair", links::create_links(node, &names, &netns, end)).await?;

    let work = async {
        let all = match known {
            Some(known) => known,
            None => first_part(node, call, &pod, wait_addresses(addresses, cancel, steps).await?).await?,
        };
        let add = Add { node, call, netns: &netns, pod: &pod, mac_is_set: mac.is_some(), all: &all };
        add.plug(cancel, deadline, steps).await
    };
    match work.await {
        Ok(result) => Ok(result),
        Err(error) => match del::release(node, &call.container_id).await {
            Ok(()) => Err(error),
            Err(left) => Err(error.and(&format!("and undoing it failed: {left}"))),
        },
    }
}

/// Makes one further interface of a container, by a call of its own.
async fn add_further(
    node: &Node,
    call: &Call,
    pod: &NamespacedName,
    cancel: &Cancel,
    (deadline, steps): (Instant, &mut Steps),
) -> Result<AddResults, CniError> {
    let addresses = timed(node.pods.addresses(pod, call.pod_uid(), BUDGET));
    let addresses = wait_addresses(addresses, cancel, steps).await?;
    let all = Interfaces::of(who(node, call, pod), &Part::Further, addresses)?;
    further::fits(call, &all)?;
    let netns = Netns::open(call.netns.as_deref().unwrap_or_default().as_ref())?;
    let add = Add { node, call, netns: &netns, pod, mac_is_set: true, all: &all };
    let error = match add.plug(cancel, deadline, steps).await {
        Ok(result) => return Ok(result),
        Err(error) => error,
    };
    let mut left = Vec::new();
    for one in all.all() {
        left.extend(del::release_interface(node, &one.id).await.err());
    }
    Err(match CniError::join(left) {
        None => error,
        Some(left) => error.and(&format!("and undoing it failed: {left}")),
    })
}

fn who<'a>(node: &Node, call: &'a Call, pod: &'a NamespacedName) -> Who<'a> {
    Who { container: &call.container_id, ifname: &call.ifname, pod, mtu: node.mtu }
}

/// What the call for the first interface makes.
async fn first_part(
    node: &Node,
    call: &Call,
    pod: &NamespacedName,
    addresses: PodAddresses,
) -> Result<Interfaces, CniError> {
    let without = match addresses.others.is_empty() {
        true => BTreeSet::new(),
        false => further::called_for(node, pod).await?,
    };
    Interfaces::of(who(node, call, pod), &Part::First { without }, addresses)
}

/// Refuses what is not supported, before anything is made.
fn possible(call: &Call) -> Result<(), CniError> {
    let container = &call.container_id;
    if attach::is_first(container) {
        return Ok(());
    }
    let msg = format!("CNI_CONTAINERID: `{container}`: has the form of the agent's own ids; use another");
    Err(CniError::new(code::INVALID_ENVIRONMENT, msg))
}

async fn wait_addresses(
    addresses: impl Future<Output = (Result<PodAddresses, PodError>, Duration)>,
    cancel: &Cancel,
    steps: &mut Steps,
) -> Result<PodAddresses, CniError> {
    let (done, took) = cancel.unless(addresses).await.map_err(CniError::again)?;
    steps.add("addresses", took);
    Ok(done?)
}

struct Add<'a> {
    node: &'a Node,
    call: &'a Call,
    netns: &'a Netns,
    pod: &'a NamespacedName,
    /// The first interface was created with its MAC.
    mac_is_set: bool,
    all: &'a Interfaces,
}

/// What the host side has after its steps: the host veths of all interfaces, and the rows of their OVS ports.
struct Host {
    links: Vec<Link>,
    rows: Vec<Uuid>,
}

impl Add<'_> {
    async fn plug(
        &self,
        cancel: &Cancel,
        deadline: Instant,
        steps: &mut Steps,
    ) -> Result<AddResults, CniError> {
        let (node, all) = (self.node, self.all);
        if !all.further.is_empty() {
            steps.time("pairs", self.create_further()).await?;
        }
        let sides = self.sides();
        let ports: Vec<PodPort> =
            all.all().map(|one| one.port(node.datapath.attach, &self.call.container_id, &all.uid)).collect();
        let mut host_steps = Vec::new();
        let ((pod, host), took) = timed(async {
            tokio::join!(
                timed(pod_netns::configure(sides.clone(), self.netns)),
                self.host_side(&ports, &mut host_steps)
            )
        })
        .await;
        steps.add("pod", pod.1);
        host_steps.into_iter().for_each(|(step, took)| steps.add(step, took));
        steps.add("plug", took);
        let host = match (host, pod.0) {
            (Ok(host), Ok(())) => host,
            (host, pod) => {
                let errors = host.err().into_iter().flatten().chain(pod.err().map(CniError::from)).collect();
                return Err(CniError::join(errors).unwrap_or_else(|| CniError::failure("no step completed")));
            }
        };
        let installed = async {
            for (row, port) in host.rows.iter().zip(&ports) {
                let left = deadline.saturating_duration_since(Instant::now());
                node.ovs.wait_installed(*row, &port.name, left).await?;
            }
            Ok::<_, CniError>(())
        };
        steps.time("installed", cancel.unless(installed)).await.map_err(CniError::again)??;
        if sides.iter().any(|side| side.addresses_later) {
            steps.time("duplicates", self.address_alone(&sides)).await?;
        }
        self.still_current()?;
        Ok(self.results(&host.links, &sides))
    }

    /// Creates the links of all interfaces but the first, one after the other: the kernel has one lock for all links, and settings that
    /// do not get it begin anew.
    async fn create_further(&self) -> Result<(), CniError> {
        for one in &self.all.further {
            let end = PodEnd { ifname: &one.ifname, mac: Some(one.network.mac_address), mtu: one.mtu };
            links::create_links(self.node, &one.names, self.netns, end).await?;
        }
        Ok(())
    }

    /// Configuration of the interfaces in the pod, the first one first.
    fn sides(&self) -> Vec<PodSide> {
        let checksums = self.node.datapath.pod_completes_checksums();
        let side = |one: &Wanted| {
            let mac_is_set = self.mac_is_set || !attach::is_first(&one.id);
            let takes_default = self.all.first.is_none();
            PodSide { takes_default, ..PodSide::new(&one.ifname, &one.network, mac_is_set, checksums) }
        };
        self.all.all().map(side).collect()
    }

    /// Sets the node's ends up, and then adds OVS ports and programs. The OVS end is set up before the port is added: with the userspace
    /// datapath ovs-vswitchd restores the flags it found when it opened the interface, with promiscuous mode added
    /// (netdev-linux.c, update_flags), and an interface that is set up in between would stay down.
    async fn host_side(
        &self,
        ports: &[PodPort],
        steps: &mut Vec<(&'static str, Duration)>,
    ) -> Result<Host, Vec<CniError>> {
        let (node, datapath, container) = (self.node, &*self.node.datapath, &self.call.container_id);
        let set_up = self.all.all().map(|one| async move {
            let ends = Ends::find(&node.netlink, &one.names, datapath.attach).await?;
            ends.set_up(&node.netlink, container).await?;
            Ok::<_, AttachError>(ends)
        });
        let (ends, up) = timed(join_all(set_up)).await;
        let ends: Vec<Ends> = joined(ends)?;
        steps.push(("host", up));
        let wanted = self.all.all().zip(&ends).map(|(one, ends)| self.endpoint(one, ends)).collect();
        let (attached, (rows, rows_took)) = tokio::join!(
            endpoints::add(datapath, container, wanted),
            timed(async { node.ovs.add_pod_ports(ports).await.map_err(CniError::from) })
        );
        steps.push(("row", rows_took));
        let mut errors = Vec::new();
        match attached {
            Ok(took) => {
                self.all.all().for_each(|one| node.flow_cache.endpoint_added(&one.id));
                steps.push(("programs", took));
            }
            Err(e) => errors.push(CniError::from(e)),
        }
        match rows {
            Ok(rows) if errors.is_empty() => {
                Ok(Host { links: ends.into_iter().map(|ends| ends.host).collect(), rows })
            }
            Ok(_) => Err(errors),
            Err(e) => {
                errors.push(e);
                Err(errors)
            }
        }
    }

    fn endpoint(&self, one: &Wanted, ends: &Ends) -> Endpoint {
        let limits_sending = || self.node.pods.get(self.pod).is_some_and(|pod| pod.limits_sending);
        Endpoint {
            id: one.id.clone(),
            host_ifindex: ends.host.index,
            mode: Mode::of_shim(ends.shim_indexes()),
            addresses: one.network.ip_addresses.iter().map(IpNet::addr).collect(),
            mac: one.network.mac_address.0,
            // The `bandwidth` plugin limits the interface that the runtime named.
            shares_ingress: attach::is_first(&one.id) && limits_sending(),
        }
    }

    /// Gives interfaces their addresses that others on the network may have, unless they do.
    async fn address_alone(&self, sides: &[PodSide]) -> Result<(), CniError> {
        let asked = |side: &PodSide| Asked {
            ifname: side.ifname.clone(),
            mac: side.mac,
            addresses: side.addresses.iter().map(IpNet::addr).collect(),
        };
        let asked: Vec<Asked> = sides.iter().filter(|side| side.addresses_later).map(asked).collect();
        let found = duplicates::find(asked.clone(), self.netns).await?;
        let errors = found.iter().map(|duplicate| self.duplicate(duplicate)).collect();
        if let Some(error) = CniError::join(errors) {
            return Err(error);
        }
        pod_netns::address(sides.to_vec(), self.netns).await?;
        Ok(duplicates::announce(asked, self.netns).await?)
    }

    fn duplicate(&self, found: &Duplicate) -> CniError {
        let Duplicate { ifname, address, user } = found;
        let key = self.all.all().find(|one| one.ifname == *ifname).map_or("", |one| &one.key);
        CniError::again(format!(
            "pod {}: interface {ifname}: {address} is in use on the physical network of virtual network {key}, by the host with MAC \
             address {user}. Take it from that host, or give the pod another; the runtime tries again",
            self.pod
        ))
    }

    fn results(&self, hosts: &[Link], sides: &[PodSide]) -> AddResults {
        let one = |((one, host), side): ((&Wanted, &Link), &PodSide)| AddResult {
            host: one.names.host.clone(),
            host_mac: host.mac.unwrap_or_default(),
            ifname: one.ifname.clone(),
            mac: one.network.mac_address,
            sandbox: self.call.netns.clone().unwrap_or_default(),
            mtu: one.mtu,
            ips: one.network.ip_addresses.iter().map(|a| (*a, side.gateway_of(a))).collect(),
        };
        let interfaces: Vec<_> = self.all.all().zip(hosts).zip(sides).map(one).collect();
        // Readers have always done without where the first interface is the only one.
        let alone = interfaces.len() == 1 && self.all.first.is_some();
        let routes = if alone { Vec::new() } else { sides.iter().flat_map(PodSide::all_routes).collect() };
        AddResults { interfaces, routes }
    }

    /// The namespace, and the links with it, may have disappeared during the wait. And the addresses may have changed: when
    /// the controller refuses an annotation and gives the pod new ones, the ports are in place with those.
    fn still_current(&self) -> Result<(), CniError> {
        if let Some(info) = self.node.pods.get(self.pod) {
            // A removed or unreadable annotation counts as a changed one.
            if !info.networks.as_deref().is_some_and(|now| self.all.are_in(now)) {
                let msg = format!("pod {}: addresses changed during ADD", self.pod);
                return Err(CniError::again(msg));
            }
        }
        Netns::open(self.netns.path()).map(drop).map_err(CniError::from)
    }
}

/// What all steps made, or the errors of those that failed.
fn joined<T>(done: Vec<Result<T, AttachError>>) -> Result<Vec<T>, Vec<CniError>> {
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    for one in done {
        match one {
            Ok(one) => made.push(one),
            Err(error) => errors.push(CniError::from(error)),
        }
    }
    if errors.is_empty() { Ok(made) } else { Err(errors) }
}

//! Puts servers and Services into the cluster, and waits until they are ready.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{Api, PostParams};

use crate::api::{Cluster, forbidden, is_gone};
use crate::clean;
use crate::objects::{self, LABEL, MINE, Shape};
use crate::paths::{Client, Path, Server, Way};
use crate::plan::Addresses;
use crate::ready::{State, state};
use crate::say::Progress;

/// Time between two looks at pods.
const LOOK: Duration = Duration::from_millis(300);

/// Whether there may be something in the cluster that is ours, and no other run's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owns(Arc<AtomicBool>);

impl Owns {
    fn set(&self, owns: bool) {
        self.0.store(owns, Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Makes the namespace, or makes sure that it is one for runs and that no run is in it.
pub(crate) async fn namespace(cluster: &Cluster, host: bool, owns: &Owns) -> Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let name = &cluster.namespace;
    match api.get(name).await {
        Ok(found) => {
            let mine =
                found.metadata.labels.as_ref().and_then(|all| all.get(LABEL)).is_some_and(|of| of == MINE);
            if !mine {
                bail!(
                    "namespace {name} is not one for runs: it has no label {LABEL}={MINE}; give another one with --namespace"
                );
            }
            if found.metadata.deletion_timestamp.is_some() {
                bail!("namespace {name} is being removed: try again when it is gone");
            }
            let there = cluster.list_pods().await?;
            if let Some(pod) = there.first() {
                let pod = pod.metadata.name.as_deref().unwrap_or_default();
                bail!(
                    "namespace {name} has the pod {pod} of another run; if that was killed, `clean` removes what it left"
                );
            }
            owns.set(true);
            Ok(())
        }
        Err(error) if is_gone(&error) => {
            // Before it is asked for: whoever is interrupted meanwhile does not know whether it was made.
            owns.set(true);
            let made = api.create(&PostParams::default(), &objects::namespace(name, host)?).await;
            made.map(drop).map_err(|error| {
                owns.set(!matches!(error, kube::Error::Api(_)));
                cluster.explain(error, &format!("create namespace {name}"))
            })
        }
        Err(error) => Err(cluster.explain(error, &format!("get namespace {name}"))),
    }
}

/// Why pods with the network of their node are refused, if they are: tried without making one.
pub(crate) async fn host_is_refused(cluster: &Cluster, shape: Shape<'_>) -> Result<Option<String>> {
    let pod = objects::client(Client::Host, 0, &[], shape)?;
    let try_only = PostParams { dry_run: true, ..PostParams::default() };
    match cluster.pods().create(&try_only, &pod).await {
        Ok(_) => Ok(None),
        Err(error) => match forbidden(&error) {
            Some(reason) if !reason.contains("cannot create resource") => Ok(Some(reason)),
            _ => Err(cluster.explain(error, "create pods")),
        },
    }
}

/// What is put into the cluster for some paths.
pub(crate) struct Wanted<'a> {
    pub(crate) paths: &'a [Path],
    /// The client's node, and the other one.
    pub(crate) nodes: [&'a str; 2],
    pub(crate) image: &'a str,
    pub(crate) deadline: i64,
    pub(crate) host_port: u16,
    pub(crate) ready: Duration,
}

impl Wanted<'_> {
    fn servers(&self) -> Vec<Server> {
        let all = [Server::Other, Server::Same, Server::OtherHost];
        all.into_iter().filter(|server| self.paths.iter().any(|path| path.server() == *server)).collect()
    }

    fn services(&self) -> serde_json::Result<Vec<Service>> {
        let has = |way: Way, server: Option<Server>| {
            self.paths
                .iter()
                .any(|path| path.way() == way && server.is_none_or(|server| path.server() == server))
        };
        let mut services = Vec::new();
        for server in [Server::Other, Server::Same] {
            if has(Way::ClusterIp, Some(server)) {
                services.push(objects::cluster_ip(server)?);
            }
        }
        if has(Way::NodePortOwn, None) || has(Way::NodePortOther, None) {
            services.push(objects::node_port(false)?);
        }
        if has(Way::NodePortLocal, None) {
            services.push(objects::node_port(true)?);
        }
        Ok(services)
    }
}

/// Where servers are, and why the one with its node's network is not, if it is not.
pub(crate) struct Placed {
    pub(crate) addresses: Addresses,
    pub(crate) no_host: Option<String>,
}

/// Makes everything and waits.
pub(crate) async fn place(cluster: &Cluster, wanted: &Wanted<'_>, progress: &mut Progress) -> Result<Placed> {
    let mut addresses = Addresses { host_port: wanted.host_port, ..Addresses::default() };
    for service in wanted.services()? {
        let name = service.metadata.name.clone().unwrap_or_default();
        let made = cluster.services().create(&PostParams::default(), &service).await;
        let made = made.map_err(|error| cluster.explain(error, &format!("create service {name}")))?;
        take_service(&name, &made, &mut addresses);
    }
    let servers = wanted.servers();
    for &server in &servers {
        let node = if server == Server::Same { wanted.nodes[0] } else { wanted.nodes[1] };
        let shape = Shape { node, image: wanted.image, deadline: wanted.deadline };
        let made = cluster
            .pods()
            .create(&PostParams::default(), &objects::server(server, shape, wanted.host_port)?)
            .await;
        made.map_err(|error| cluster.explain(error, &format!("create pod {}", server.name())))?;
    }
    let (ready, no_host) = wait(cluster, &servers, wanted.ready, progress).await?;
    for (server, pod) in ready {
        let status = pod.status.unwrap_or_default();
        let node_ips: Vec<IpAddr> =
            status.host_ips.into_iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
        let ips = status.pod_ips.into_iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
        if server == Server::Same {
            addresses.own_node = node_ips;
        } else {
            addresses.other_node = node_ips;
        }
        addresses.servers.insert(server, ips);
    }
    Ok(Placed { addresses, no_host })
}

fn take_service(name: &str, service: &Service, addresses: &mut Addresses) {
    let spec = service.spec.clone().unwrap_or_default();
    let ips: Vec<IpAddr> = spec.cluster_ips.into_iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
    let mut ports =
        spec.ports.into_iter().flatten().map(|port| port.node_port.and_then(|port| u16::try_from(port).ok()));
    let first = ports.next().flatten();
    // The same for both protocols, or none that can be used.
    let port = first.filter(|_| ports.all(|port| port == first));
    match name {
        objects::NODE_PORT => addresses.node_port = port,
        objects::NODE_PORT_LOCAL => addresses.node_port_local = port,
        _ if name == Server::Same.name() => drop(addresses.cluster_ips.insert(Server::Same, ips)),
        _ => drop(addresses.cluster_ips.insert(Server::Other, ips)),
    }
}

/// Waits until all servers are ready. The one with its node's network may fail: then it says why.
async fn wait(
    cluster: &Cluster,
    servers: &[Server],
    time: Duration,
    progress: &mut Progress,
) -> Result<(BTreeMap<Server, Pod>, Option<String>)> {
    let end = Instant::now() + time;
    let (mut ready, mut no_host) = (BTreeMap::new(), None);
    loop {
        let mut reasons = Vec::new();
        let pods = cluster.list_pods().await?;
        for &server in servers {
            if ready.contains_key(&server) || (server == Server::OtherHost && no_host.is_some()) {
                continue;
            }
            let found = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(server.name()));
            let reason = match found.map(|pod| (pod, state(pod, &[]))) {
                Some((pod, State::Ready)) => {
                    ready.insert(server, pod.clone());
                    continue;
                }
                Some((_, State::Never(reason))) => Err(said(cluster, server.name(), reason).await),
                Some((_, State::Done)) => {
                    Err(format!("pod {}: the server has ended by itself", server.name()))
                }
                Some((_, State::Not(reason))) => Ok(reason),
                None => Err(format!("pod {} was removed by somebody else", server.name())),
            };
            let is_late = Instant::now() >= end;
            match (reason, server) {
                (Err(reason), Server::OtherHost) => no_host = Some(reason),
                (Err(reason), _) => bail!("not ready: {reason}"),
                (Ok(_), _) if is_late => {
                    let events = cluster.events(server.name()).await;
                    let now = found.map_or_else(|| State::Not(String::new()), |pod| state(pod, &events));
                    let (State::Not(why) | State::Never(why)) = now else { continue };
                    let why = format!("not ready after {} s: {why}", time.as_secs());
                    if server != Server::OtherHost {
                        bail!("{why}");
                    }
                    no_host = Some(why);
                }
                (Ok(reason), _) => reasons.push(reason),
            }
        }
        let Some(first) = reasons.first() else { return Ok((ready, no_host)) };
        progress.step(first);
        tokio::time::sleep(LOOK).await;
    }
}

/// The reason, with what the program has said last.
pub(crate) async fn said(cluster: &Cluster, pod: &str, reason: String) -> String {
    match crate::rows::last_words(&cluster.last_log(pod).await) {
        Some(words) => format!("{reason}: {words}"),
        None => reason,
    }
}

/// Removes one pod and waits for it.
pub(crate) async fn remove(cluster: &Cluster, pod: &str) -> Result<()> {
    clean::pod(cluster, pod).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_paths_need_is_made() {
        let wanted = |paths| Wanted {
            paths,
            nodes: ["a", "b"],
            image: "i",
            deadline: 1,
            host_port: 1,
            ready: Duration::ZERO,
        };
        let names =
            |services: Vec<Service>| services.into_iter().filter_map(|s| s.metadata.name).collect::<Vec<_>>();
        let one = wanted(&[Path::PodIp]);
        assert_eq!((one.servers(), names(one.services().unwrap())), (vec![Server::Other], vec![]));
        let two = wanted(&[Path::ClusterIpSame, Path::NodePortOther, Path::HostHost]);
        assert_eq!(two.servers(), [Server::Other, Server::Same, Server::OtherHost]);
        assert_eq!(names(two.services().unwrap()), ["server-same", "node-port"]);
    }

    #[test]
    fn a_node_port_counts_only_if_both_protocols_have_it() {
        let service = |udp: u16| {
            serde_json::from_value(serde_json::json!({"spec": {"ports": [{"port": 1, "nodePort": 30_000}, {"port": 1, "nodePort": udp}]}}))
                .unwrap()
        };
        let mut addresses = Addresses::default();
        take_service(objects::NODE_PORT, &service(30_000), &mut addresses);
        take_service(objects::NODE_PORT_LOCAL, &service(30_001), &mut addresses);
        assert_eq!((addresses.node_port, addresses.node_port_local), (Some(30_000), None));
    }
}

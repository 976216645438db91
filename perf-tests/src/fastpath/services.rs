//! `cargo xtask bench service-scale`: what services cost with which a connection has nothing to do. The same connections to a cluster IP run at the same time
//! on two clusters, of which one has many other services, and through nodes that translate as kube-proxy has it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::cluster::Bed;
use testbed::exec::retry;

use super::cluster::{Cluster, NAMESPACE};
use super::rows::ratios;
use super::scale::{Phase, Scale};
use super::{say, ways, worlds};
use crate::names::Path;
use crate::scenario_file::Run as Command;

/// How services are measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many services the second cluster has beside the measured one.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=50_000))]
    services: u16,
    /// Begin of the names of the clusters, which are new ones.
    #[arg(long, default_value = "service-scale")]
    name: String,
    #[command(flatten)]
    scale: Scale,
}

/// The paths: by clusters with one service and with many, and by routers.
const PATHS: [Path; 5] =
    [Path::ClusterIp, Path::ManyServices, Path::Proxy, Path::ProxyMany, Path::ProxyRules];
/// How long the services may take until they are in force: the controller, ovn-northd and two ovn-controllers with ten thousand of them.
const IN_FORCE: Duration = Duration::from_secs(900);
/// Port of the other services and of their backend.
const PORT: u16 = 8080;
/// So many are made by one call.
const AT_ONCE: u16 = 500;

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let Self { services, name, scale } = self;
        let scenario = scale.scenario(Command::ServiceScale, &PATHS)?;
        let circumstances = scale.circumstances();
        let few = Cluster::up(&format!("{name}-few"), scale.datapath)?;
        let many = Cluster::up(&format!("{name}-many"), scale.datapath)?;
        say(&format!("{services} services"));
        fill(&many, services).with_context(|| format!("{services} services"))?;
        // The measured service is one of these.
        let worlds = [
            (Path::Proxy, worlds::routed_services(1)?),
            (Path::ProxyMany, worlds::routed_services(services + 1)?),
            (Path::ProxyRules, worlds::routed_iptables(services + 1)?),
        ];
        let mut routes = vec![
            (Path::ClusterIp, ways::by_cluster_ip(&few)?),
            (Path::ManyServices, ways::by_cluster_ip(&many)?),
        ];
        routes.extend(worlds.iter().map(|(path, world)| (*path, world.route())));
        let samples = scale.measure(&routes)?;
        // Both, whatever becomes of the first.
        let downs = [few.down(), many.down()];
        downs.into_iter().collect::<Result<Vec<()>>>()?;
        let rows = ratios(&scenario, &samples, &[("services", services.to_string())]);
        scale.tell(&circumstances, &rows, &[Phase { objects: json!({"services": services}), samples }])
    }
}

/// Makes services that nobody asks, and waits until all nodes have them.
fn fill(cluster: &Cluster, services: u16) -> Result<()> {
    let bed = cluster.bed()?;
    let (_, backend) = cluster.pod("far")?;
    for first in (0..services).step_by(AT_ONCE.into()) {
        let list: Vec<String> = (first..services.min(first.saturating_add(AT_ONCE)))
            .flat_map(|i| objects(i, &backend))
            .map(|object| object.to_string())
            .collect();
        bed.apply(&list.join("\n---\n"))?;
    }
    in_force(bed, services)
}

fn in_force(bed: &Bed, services: u16) -> Result<()> {
    retry(IN_FORCE, "all nodes have the services", || {
        let list = bed.nbctl(&["--bare", "--columns=external_ids", "list", "load_balancer"])?;
        let owner = |i: u16| format!("k8s.ovn.org/owner={NAMESPACE}/{}", name_of(i));
        let owners: BTreeSet<&str> = list.split_whitespace().collect();
        let missing = (0..services).find(|&i| !owners.contains(owner(i).as_str()));
        ensure!(
            missing.is_none(),
            "the service {} is in no load balancer",
            name_of(missing.unwrap_or_default())
        );
        bed.nbctl(&["--wait=hv", "--timeout=600", "sync"])
    })
    .map(drop)
}

fn name_of(i: u16) -> String {
    format!("other-{i}")
}

/// A service without a selector, and its only backend.
fn objects(i: u16, backend: &str) -> [Value; 2] {
    let name = name_of(i);
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"ports": [{"name": "http", "protocol": "TCP", "port": PORT}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": PORT}],
            "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_backend() {
        let [service, slice] = objects(7, "10.244.1.3");
        assert_eq!(service["metadata"]["name"], "other-7");
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "other-7");
        assert_eq!(slice["endpoints"][0]["addresses"][0], "10.244.1.3");
    }
}

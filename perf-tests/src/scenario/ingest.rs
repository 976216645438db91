//! How fast the control plane takes what is posted: so many pods, services and network policies, each kind by itself, until they are in the northbound
//! database and in every node's flows.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::ovn_name::key;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use ovsdb_client::model::nb;
use ovsdb_client::{Client as Database, Endpoint, MonitorSpec, Options, Replica};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::controller;
use super::scale::single;
use crate::kubernetes;
use crate::record::Series;

/// Namespace of this scenario.
const NAMESPACE: &str = "bench-ingest";
/// Nodes that exist as objects only, for the pods.
const NODES: u8 = 4;
/// Create requests under way at once.
const POSTERS: usize = 16;
/// How long rows may take after the last request, and flows after the last row.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the replica is looked through.
const LOOK: Duration = Duration::from_millis(10);

/// A kind of objects.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Pods,
    /// Each with one endpoint.
    Services,
    /// Each for all pods of the namespace, in both directions.
    Policies,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Services => "services",
            Self::Policies => "policies",
        }
    }
}

/// Posts `count` objects of each kind, one kind after another.
pub(crate) async fn run(kubeconfig: &Path, nb: &str, count: usize) -> Result<Vec<Series>> {
    let client = kubernetes::client(kubeconfig).await?;
    kubernetes::ensure_namespace(&client, NAMESPACE).await?;
    let nodes = kubernetes::simulated_nodes(&client, kubeconfig, NODES).await?;
    let rows = Rows::open(nb).await?;
    let mut series = Vec::new();
    for kind in [Kind::Pods, Kind::Services, Kind::Policies] {
        let found = one(&client, &rows, kind, count, &nodes, nb).await;
        series.extend(found.with_context(|| format!("{count} {}", kind.name()))?);
    }
    clean::<NetworkPolicy>(&client).await?;
    clean::<EndpointSlice>(&client).await?;
    // The API server has no request that deletes all services.
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    for service in services.list_metadata(&ListParams::default()).await? {
        let name = service.metadata.name.context("a service without a name")?;
        services.delete(&name, &DeleteParams::default()).await?;
    }
    kubernetes::delete_pods(&client, NAMESPACE).await?;
    kubernetes::delete_simulated_nodes(&client).await?;
    Ok(series)
}

async fn one(
    client: &Client,
    rows: &Rows,
    kind: Kind,
    count: usize,
    nodes: &[String],
    nb: &str,
) -> Result<Vec<Series>> {
    let used = controller::cpu_seconds()?;
    let start = Instant::now();
    let post = async {
        post(client, kind, count, nodes).await?;
        anyhow::Ok(Instant::now())
    };
    let (posted, seen) = tokio::try_join!(post, rows.wait(kind, count))?;
    let cpu = controller::cpu_seconds()? - used;
    in_flows(nb).await?;
    let in_flows = Instant::now();
    #[expect(clippy::cast_precision_loss, reason = "a number of objects")]
    let objects = count as f64;
    let name = kind.name();
    let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
    Ok(vec![
        single(&format!("{name}: posted"), "1/s", objects / seconds(start, posted)),
        single(&format!("{name}: in NB"), "1/s", objects / seconds(start, seen)),
        single(&format!("{name}: last row after last post"), "s", seconds(posted, seen)),
        single(&format!("{name}: in all flows after last row"), "s", seconds(seen, in_flows)),
        single(&format!("{name}: CPU of the controller"), "ms each", cpu * 1e3 / objects),
    ])
}

/// Posts all objects of a kind.
async fn post(client: &Client, kind: Kind, count: usize, nodes: &[String]) -> Result<()> {
    stream::iter(0..count)
        .map(|i| async move {
            match kind {
                Kind::Pods => {
                    let pod = kubernetes::manual_pod(&format!("one-{i}"), &nodes[i % nodes.len()])?;
                    make::<Pod>(client, serde_json::to_value(pod)?).await
                }
                Kind::Services => {
                    make::<EndpointSlice>(client, slice(i)).await?;
                    make::<Service>(client, service(i)).await
                }
                Kind::Policies => make::<NetworkPolicy>(client, policy(i)).await,
            }
        })
        .buffer_unordered(POSTERS)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}

async fn make<K>(client: &Client, object: Value) -> Result<()>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

async fn clean<K>(client: &Client) -> Result<()>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

fn name_of(i: usize) -> String {
    format!("one-{i}")
}

fn service(i: usize) -> Value {
    json!({
        "metadata": {"name": name_of(i)},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]},
    })
}

/// The endpoint of a service, at an address that no pod has: the backends of a service need not be pods.
fn slice(i: usize) -> Value {
    json!({
        "metadata": {"name": name_of(i), "labels": {"kubernetes.io/service-name": name_of(i)}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [format!("198.18.{}.{}", i / 250 % 250, i % 250 + 1)], "conditions": {"ready": true}}],
    })
}

fn policy(i: usize) -> Value {
    let peer = json!({"ipBlock": {"cidr": format!("198.19.{}.{}/32", i / 250 % 250, i % 250 + 1)}});
    let ports = json!([{"protocol": "TCP", "port": 8080}]);
    json!({
        "metadata": {"name": name_of(i)},
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [peer], "ports": ports}], "egress": [{"to": [peer], "ports": ports}],
        },
    })
}

/// What of the northbound database tells that an object is there.
struct Rows {
    replica: Replica,
    _client: Database,
}

impl Rows {
    async fn open(nb: &str) -> Result<Self> {
        let client = Database::new(Options {
            endpoints: Endpoint::parse_list(nb)?,
            database: "OVN_Northbound".to_owned(),
            ..Options::default()
        });
        client.connected(Duration::from_secs(10)).await?;
        let spec = MonitorSpec::new()
            .table::<nb::LogicalSwitchPort>(&["name"])
            .table::<nb::LoadBalancer>(&["external_ids"])
            .table::<nb::Acl>(&["external_ids"]);
        let replica = client.monitor(spec).await?;
        Ok(Self { replica, _client: client })
    }

    /// Waits until all objects have rows; the moment at which that was seen.
    async fn wait(&self, kind: Kind, count: usize) -> Result<Instant> {
        let end = Instant::now() + PATIENCE;
        loop {
            let begun = Instant::now();
            let missing = count - self.there(kind, count);
            let now = Instant::now();
            if missing == 0 {
                return Ok(now);
            }
            ensure!(now < end, "{missing} of {count} have no rows within {PATIENCE:?}");
            // Of many objects a look takes long: it must not take the processor from what is measured.
            tokio::time::sleep(LOOK.max(10 * (now - begun))).await;
        }
    }

    /// How many of the objects have rows.
    fn there(&self, kind: Kind, count: usize) -> usize {
        let guard = self.replica.read();
        let names: HashSet<String> = match kind {
            Kind::Pods => {
                guard.table::<nb::LogicalSwitchPort>().iter().map(|port| port.name.clone()).collect()
            }
            Kind::Services => {
                let owner = |row: &nb::LoadBalancer| row.external_ids.get(key::OWNER).cloned();
                guard.table::<nb::LoadBalancer>().iter().filter_map(|row| owner(row)).collect()
            }
            Kind::Policies => {
                // As in ovn-kubernetes: `default-network-controller:NetworkPolicy:NAMESPACE:NAME:Ingress:…`.
                let owner = |row: &nb::Acl| {
                    let id = row.external_ids.get(key::ID)?;
                    let (_, rest) = id.split_once(":NetworkPolicy:")?;
                    Some(rest.splitn(3, ':').take(2).collect::<Vec<_>>().join("/"))
                };
                guard.table::<nb::Acl>().iter().filter_map(|row| owner(row)).collect()
            }
        };
        let wanted = |i| match kind {
            Kind::Pods => api::ovn_name::pod_port(NAMESPACE, &name_of(i)),
            _ => format!("{NAMESPACE}/{}", name_of(i)),
        };
        (0..count).filter(|&i| names.contains(&wanted(i))).count()
    }
}

/// Waits until every node's flows are those of the northbound database as it is now.
async fn in_flows(nb: &str) -> Result<()> {
    let mut sync = testbed::exec::command("ovn-nbctl");
    sync.arg(format!("--db={nb}")).args([
        format!("--timeout={}", PATIENCE.as_secs()).as_str(),
        "--wait=hv",
        "sync",
    ]);
    tokio::task::spawn_blocking(move || testbed::exec::output(&mut sync)).await??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_names_and_addresses_of_their_own() {
        let addresses: HashSet<String> =
            (0..2000).map(|i| slice(i)["endpoints"][0]["addresses"][0].to_string()).collect();
        assert_eq!(addresses.len(), 2000);
        assert_eq!(policy(251)["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"], "198.19.1.2/32");
        serde_json::from_value::<NetworkPolicy>(policy(3)).unwrap();
        serde_json::from_value::<Service>(service(3)).unwrap();
    }
}

//! Many pods come and go at once, and then nothing of them is left; also when processes are killed
//! meanwhile.

mod random_kills;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use api::annotation::{POD_NETWORKS, PodNetworks};
use api::ovn_name;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use crate::random::Random;
use crate::scale::stubs;
use crate::snapshot::{self, Snapshot};
use random_kills::{RandomKills, Victims};
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::nodes::kubelet;
use testbed::pod;
use testbed::runtime::block_on;
use testbed::traffic::{Dial, Place};
use testbed::ui::{Progress, say};

const NAMESPACE: &str = "churn";
/// Requests to the API server at the same time.
const PARALLEL: usize = 100;
/// How many of the running pods are asked.
const ASKED: usize = 10;

/// Objects that refer to all of the pods, so that these leave their marks everywhere.
const OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "churn"}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "all", "namespace": "churn"},
 "spec": {"selector": {"churn": "yes"}, "ports": [{"port": 80, "targetPort": 8080}]}}
---
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "all", "namespace": "churn"},
 "spec": {"podSelector": {"matchLabels": {"churn": "yes"}}, "policyTypes": ["Ingress"],
          "ingress": [{"from": [{"podSelector": {"matchLabels": {"churn": "yes"}}}]}]}}
"#;

/// How many pods, how often, and what happens meanwhile.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Pods that come and go together.
    #[arg(long, default_value_t = 100)]
    pods: usize,
    /// How often.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// Kill processes with SIGKILL at random moments, and start them again: our own, or all.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "ours")]
    kill: Option<Victims>,
    /// Pods on nodes that exist as objects only, there all the time, so that the controller has more to go through than it
    /// does at once.
    #[arg(long, default_value_t = 0)]
    stubs: usize,
    /// Virtual networks on which each pod has a further interface.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=10))]
    networks: u8,
    /// Makes the random moments repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds that a change may take until everything has settled.
    #[arg(long, default_value_t = 120)]
    limit: u64,
    #[command(flatten)]
    shape: Shape,
}

/// A hundred pods twice, beside others, on an idle cluster and on one whose processes are killed.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("pod_churn", Settings::from_environment())
        .with(flags::<Args>("--stubs 700 --networks 2").group("at_rest", "churn"))
        .with(flags::<Args>("--kill=all --stubs 700").group("every_process_killed", "churn-kill"))
        .main()
}

impl Args {
    /// A trial for each round, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let limit = self.limit() * 4;
        let cases =
            (1..=self.rounds).map(|round| Case::new(format!("round_{round}"), limit, round)).collect();
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| self.churn(bed, jobs))
        })
    }

    fn churn(&self, bed: &Bed, jobs: &mut Jobs<u32>) -> Result<()> {
        let seed = self.seed.unwrap_or_else(Random::seed);
        say(format_args!("seed {seed}"));
        let progress = Progress::new();
        bed.apply(OBJECTS)?;
        for number in 1..=self.networks {
            bed.apply(&network(number).to_string())?;
        }
        bed.enter_network("central")?;
        block_on(async {
            let client = kubelet::client(&bed.config().kubeconfig("admin")).await?;
            if self.stubs > 0 {
                stubs::create(bed, &client, self.stubs).await?;
                progress.done(format_args!("{} pods that exist as objects only", self.stubs));
            }
            let mut run = Run { args: self, bed, client, random: Random::new(seed), progress: &progress };
            // One pod first: what is made for the first and kept is no leak.
            run.fill(1).await?;
            run.drain().await?;
            let before = run.quiet().await?;
            progress.done("the state to come back to is taken");
            while let Some(mut job) = jobs.next() {
                let outcome = run.round(job.case, &before, &mut job.checks).await;
                job.done(outcome);
            }
            Ok(())
        })
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

struct Run<'a> {
    args: &'a Args,
    bed: &'a Bed,
    client: Client,
    random: Random,
    progress: &'a Progress,
}

impl Run<'_> {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Fills and empties once, with or without kills, and checks both states.
    async fn round(&mut self, round: u32, before: &Snapshot, checks: &mut Checks) -> Result<()> {
        let pods = self.args.pods;
        let kills = self.kills()?;
        let filled = self.fill(pods).await;
        self.order(kills)?;
        checks.check(format_args!("round {round}: {pods} pods run"), said(filled));
        checks.check(format_args!("round {round}: each pod has its port, its address and its link, once"), {
            self.eventually(|| self.each_once()).await
        });
        checks.check(format_args!("round {round}: {} of them answer", ASKED.min(pods)), self.ask().await);
        let kills = self.kills()?;
        let drained = self.drain().await;
        self.order(kills)?;
        checks.check(format_args!("round {round}: the pods are gone"), said(drained));
        checks.check(format_args!("round {round}: nothing of them is left"), {
            self.eventually(|| before.equals(&Snapshot::take(self.bed)?)).await
        });
        self.progress.done(format_args!("round {round}"));
        Ok(())
    }

    fn kills(&mut self) -> Result<Option<RandomKills>> {
        self.args.kill.map(|victims| RandomKills::begin(self.bed, victims, &mut self.random)).transpose()
    }

    fn order(&self, kills: Option<RandomKills>) -> Result<()> {
        kills.map_or(Ok(()), RandomKills::end)
    }

    /// Makes pods and waits until all of them run.
    async fn fill(&self, count: usize) -> Result<()> {
        let api = self.pods();
        stream::iter(0..count)
            .map(|i| {
                let api = api.clone();
                async move {
                    let name = format!("p{i}");
                    let mut object = pod::with_image(self.bed, pod::manifest(NAMESPACE, &name, None))?;
                    object["metadata"]["labels"]["churn"] = "yes".into();
                    object["metadata"]["annotations"] = json!({ "ovnNetwork": self.asked() });
                    let object: Pod = serde_json::from_value(object)?;
                    api.create(&PostParams::default(), &object)
                        .await
                        .with_context(|| format!("pod {name}"))?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        let begin = Instant::now();
        loop {
            let list = api.list(&ListParams::default()).await?.items;
            let running = list.iter().filter(|p| phase(p) == "Running").count();
            if running == count && list.len() == count {
                return Ok(());
            }
            if begin.elapsed() > self.args.limit() {
                let waiting: Vec<_> =
                    list.iter().filter(|p| phase(p) != "Running").map(ResourceExt::name_any).collect();
                return Err(anyhow!(
                    "{running} of {count} run after {:?}; not {}",
                    self.args.limit(),
                    waiting.join(" ")
                ));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What each pod asks for.
    fn asked(&self) -> String {
        let one = |number: u8| json!({"name": network_name(number), "interface": network_name(number)});
        Value::from_iter((1..=self.args.networks).map(one)).to_string()
    }

    /// Deletes all pods at once and waits until they are gone.
    async fn drain(&self) -> Result<()> {
        let api = self.pods();
        let names: Vec<_> =
            api.list(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any).collect();
        stream::iter(names)
            .map(|name| {
                let api = api.clone();
                async move {
                    api.delete(&name, &DeleteParams::default())
                        .await
                        .with_context(|| format!("pod {name}"))?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        let begin = Instant::now();
        loop {
            let left = api.list(&ListParams::default()).await?.items;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < self.args.limit(),
                "{} pods are left after {:?}",
                left.len(),
                self.args.limit()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Tries until it holds or the time is over.
    async fn eventually(&self, check: impl Fn() -> Result<()>) -> Result<String, String> {
        let begin = Instant::now();
        loop {
            match check() {
                Ok(()) => return Ok(format!("after {:.1} s", begin.elapsed().as_secs_f64())),
                Err(error) if begin.elapsed() > self.args.limit() => return Err(format!("{error:#}")),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// The state once it does not change any more.
    async fn quiet(&self) -> Result<Snapshot> {
        let mut last = Snapshot::take(self.bed)?;
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let next = Snapshot::take(self.bed)?;
            if last.equals(&next).is_ok() {
                return Ok(next);
            }
            last = next;
        }
        Err(anyhow!("the cluster does not come to rest within a minute"))
    }

    fn each_once(&self) -> Result<()> {
        let items: Vec<Pod> = self.bed.list(NAMESPACE, "")?;
        let each = 1 + usize::from(self.args.networks);
        let addresses: BTreeSet<_> =
            items.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
        ensure!(addresses.len() == items.len(), "{} pods have {} addresses", items.len(), addresses.len());
        let all: Vec<String> = items.iter().map(networks).collect::<Result<Vec<_>>>()?.concat();
        let unique: BTreeSet<_> = all.iter().collect();
        ensure!(
            all.len() == items.len() * each,
            "{} pods have {} addresses by annotation",
            items.len(),
            all.len()
        );
        ensure!(unique.len() == all.len(), "of {} addresses {} are different", all.len(), unique.len());
        for node in self.bed.config().node_names() {
            let on_node =
                |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref() == Some(&node));
            let ports = |pod: &Pod| {
                let name = pod.name_any();
                let further = (1..=self.args.networks).map(|number| {
                    let key = format!("{NAMESPACE}/{}", network_name(number));
                    ovn_name::network_pod_port(&key, NAMESPACE, &pod.name_any())
                });
                further.chain([ovn_name::pod_port(NAMESPACE, &name)]).collect::<Vec<_>>()
            };
            let expected: BTreeSet<_> = items.iter().filter(on_node).flat_map(ports).collect();
            let ports = snapshot::pod_ports(self.bed, &node)?;
            let unique: BTreeSet<_> = ports.iter().cloned().collect();
            ensure!(unique.len() == ports.len(), "{node}: a pod has two ports: {ports:?}");
            ensure!(unique == expected, "{node}: ports {unique:?}, pods {expected:?}");
        }
        let logical = snapshot::logical_ports(self.bed, NAMESPACE)?;
        ensure!(logical == items.len() * each, "{} pods have {logical} logical ports", items.len());
        Ok(())
    }

    /// Asks some pods from the nodes that they run on, which policies let through.
    async fn ask(&mut self) -> Result<String, String> {
        let list = self.pods().list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
        let mut seen = 0;
        for _ in 0..ASKED.min(list.len()) {
            let Some(pod) = list.get(self.random.below(list.len())) else { continue };
            let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
            let ip = pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
            let ip: Ipv4Addr = ip.parse().map_err(|e| format!("{}: address {ip:?}: {e}", pod.name_any()))?;
            let [a, b, c, _] = ip.octets();
            let expect = Expect::only(&format!("{} {a}.{b}.{c}.2", pod.name_any()));
            expect::settle(
                self.bed,
                &Place::Host(node),
                Dial::tcp(ip, 8080).to_pod(self.bed),
                &expect,
                Duration::from_secs(20),
            )
            .1?;
            seen += 1;
        }
        Ok(format!("{seen} answers"))
    }
}

fn network_name(number: u8) -> String {
    format!("net{number}")
}

/// A network for all of the pods.
fn network(number: u8) -> Value {
    json!({
        "apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
        "metadata": {"namespace": NAMESPACE, "name": network_name(number)},
        "spec": {"subnets": [format!("172.{}.0.0/16", 20 + number)]},
    })
}

/// The addresses that the controller gave a pod, on all of its networks.
fn networks(pod: &Pod) -> Result<Vec<String>> {
    let text =
        pod.annotations().get(POD_NETWORKS).with_context(|| format!("{}: no annotation", pod.name_any()))?;
    let (default, others) = PodNetworks::all_of(text)?;
    let all = std::iter::once(&default).chain(others.values());
    Ok(all.flat_map(|network| &network.ip_addresses).map(|net| net.addr().to_string()).collect())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn said(outcome: Result<()>) -> Result<String, String> {
    outcome.map(|()| String::new()).map_err(|error| format!("{error:#}"))
}

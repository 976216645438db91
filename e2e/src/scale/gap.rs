//! A controller that is restarted in a cluster of more than a few hundred pods: what changed while there was none must be in force
//! afterwards, in the northbound database and for packets.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

use super::controller::Controller;
use super::policy::{Labels, Peer, Policy, labels};
use super::watch::Watch;
use super::world::{Pod, World};
use super::{SHOWN, SOCKET, eventually, load, stubs, told};
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::nodes::kubelet;
use testbed::pod;
use testbed::runtime::block_on;
use testbed::traffic::{Dial, Place};
use testbed::ui::Progress;

/// Pods without a machine.
const STUBS: usize = 600;
/// How long anything may take, the lease of a dead leader included.
const LIMIT: Duration = Duration::from_secs(90);
/// How long packets may go on as before when everything is written.
const SETTLE: Duration = Duration::from_secs(20);

/// How long all of it may take.
pub(super) const TRIAL: Duration = Duration::from_secs(420);

/// Runs it on a cluster, with that controller in place of the one beside this program.
pub(super) fn run(bed: &Bed, program: Option<PathBuf>, checks: &mut Checks) -> Result<()> {
    if program.is_some() {
        bed.host("central").kill("controller")?;
        Controller::start(bed, program)?;
    }
    bed.enter_network("central")?;
    block_on(async {
        let client = kubelet::client(&bed.config().kubeconfig("admin")).await?;
        let controller = Controller::of(bed);
        let mut scene = Scene { bed, client, controller, world: before(), progress: Progress::new() };
        scene.fill().await?;
        scene.as_before(checks)?;
        scene.controller.kill()?;
        scene.meanwhile().await?;
        scene.controller.restart()?;
        let settled = controller.settled(LIMIT).await;
        checks.check("the next controller settles", told(settled));
        scene.after(checks).await
    })
}

fn a_pod(namespace: &str, name: &str, node: &str, of: Labels) -> Pod {
    Pod { namespace: namespace.to_owned(), name: name.to_owned(), node: node.to_owned(), labels: of }
}

/// What is there before. All of it sorts before the stubs.
fn before() -> World {
    let mut world = World::default();
    for name in ["aaa", "clients", "late", "mid", "srv"] {
        // The API server gives each namespace this label.
        world.namespaces.insert(name.to_owned(), labels([("kubernetes.io/metadata.name", name)]));
    }
    world.namespaces.insert(stubs::NAMESPACE.to_owned(), Labels::new());
    world.add_policy(Policy::closing("aaa", "deny", Labels::new()));
    world.add_policy(Policy::closing("late", "first", labels([("role", "other")])));
    world.add_policy(Policy::closing("mid", "closed", labels([("closed", "yes")])));
    let from = Peer::Namespaces(labels([("kubernetes.io/metadata.name", "aaa")]));
    let closing = Policy::closing("srv", "from-aaa", Labels::new());
    world.add_policy(Policy { allows: Some(from), ..closing });
    for pod in [
        a_pod("aaa", "before", "n1", Labels::new()),
        a_pod("clients", "client", "n2", Labels::new()),
        a_pod("late", "subject", "n1", labels([("role", "subject")])),
        a_pod("mid", "moved", "n1", labels([("closed", "no")])),
        a_pod("srv", "server", "n2", Labels::new()),
    ] {
        world.add_pod(pod);
    }
    stubs::pods(STUBS).into_iter().for_each(|pod| world.add_pod(pod));
    world
}

struct Scene<'a> {
    bed: &'a Bed,
    client: Client,
    controller: Controller<'a>,
    world: World,
    progress: Progress,
}

impl Scene<'_> {
    async fn fill(&self) -> Result<()> {
        load::namespaces(&self.client, &self.world.namespaces).await?;
        load::policies(&self.client, self.world.policies()).await?;
        stubs::create(self.bed, &self.client, STUBS).await?;
        self.progress.done(format_args!("{STUBS} pods that exist as objects only"));
        let real = self.world.pods.values().filter(|pod| pod.namespace != stubs::NAMESPACE);
        load::pods(&self.client, real).await?;
        for namespace in ["aaa", "clients", "late", "mid", "srv"] {
            pod::wait_ready(self.bed, namespace, LIMIT)?;
        }
        self.controller.settled(LIMIT).await?;
        self.progress.done("the pods on real nodes");
        Ok(())
    }

    /// A connection between pods of the book.
    fn packets(&self, checks: &mut Checks, what: &str, from: &str, to: &str, passes: bool) -> Result<()> {
        let client = &self.world.pods[from];
        let server = &self.world.pods[to];
        let expect = if passes {
            Expect::only(&format!("{} {}", server.name, self.address(client)?))
        } else {
            Expect::Dropped
        };
        let place = Place::Pod {
            node: client.node.clone(),
            namespace: client.namespace.clone(),
            name: client.name.clone(),
        };
        let dial =
            Dial::tcp(self.address(server)?, 8080).to_pod(self.bed).times(2).within(Duration::from_secs(1));
        let (_, verdict) = expect::settle(self.bed, &place, dial, &expect, SETTLE);
        checks.check(what, verdict);
        Ok(())
    }

    fn address(&self, pod: &Pod) -> Result<Ipv4Addr> {
        let path = "jsonpath={.status.podIP}";
        let ip = self.bed.kubectl(&["get", "pod", "-n", &pod.namespace, &pod.name, "-o", path])?;
        ip.parse().with_context(|| format!("address {ip:?} of {}/{}", pod.namespace, pod.name))
    }

    /// What each of these must be seen to do before, so that what it does later says something.
    fn as_before(&self, checks: &mut Checks) -> Result<()> {
        let client = "clients_client";
        self.packets(checks, "before: a pod in a closed namespace is silent", client, "aaa_before", false)?;
        self.packets(checks, "before: a pod that no policy selects answers", client, "late_subject", true)?;
        self.packets(
            checks,
            "before: a pod with a label that no policy selects answers",
            client,
            "mid_moved",
            true,
        )?;
        self.packets(checks, "before: a server answers whom it allows", "aaa_before", "srv_server", true)?;
        self.packets(checks, "before: and nobody else", client, "srv_server", false)?;
        self.progress.done("packets as they should be");
        Ok(())
    }

    /// Changes while there is no controller.
    async fn meanwhile(&mut self) -> Result<()> {
        let new = a_pod("aaa", "after", "n1", Labels::new());
        load::pods(&self.client, [&new]).await?;
        self.world.add_pod(new);
        if let Some(moved) = self.world.pods.get_mut("mid_moved") {
            moved.labels = labels([("closed", "yes")]);
            load::relabel(&self.client, std::slice::from_ref(moved)).await?;
        }
        let second = Policy::closing("late", "second", labels([("role", "subject")]));
        load::policies(&self.client, [&second]).await?;
        self.world.add_policy(second);
        self.progress.done("a pod, a label and a policy changed without a controller");
        Ok(())
    }

    async fn after(&self, checks: &mut Checks) -> Result<()> {
        pod::wait_ready(self.bed, "aaa", LIMIT)?;
        let watch = Watch::open(&self.bed.host("central").path(SOCKET)?, &self.world).await?;
        // Shortly, for a new pod's port may come a moment after; what is forgotten stays so.
        let right = eventually(Duration::from_secs(5), "NB holds what changed meanwhile", || {
            let found = watch.contents().differences(&self.world);
            let some: Vec<_> = found.iter().take(SHOWN).cloned().collect();
            anyhow::ensure!(found.is_empty(), "{} differences: {}", found.len(), some.join("; "));
            Ok(())
        });
        checks.check("NB holds what changed while there was no controller", told(right.await));
        let client = "clients_client";
        self.packets(
            checks,
            "a pod that was there in a closed namespace is silent",
            client,
            "aaa_before",
            false,
        )?;
        self.packets(
            checks,
            "a pod made meanwhile in a closed namespace is silent",
            client,
            "aaa_after",
            false,
        )?;
        self.packets(checks, "a pod that a new label closes is silent", client, "mid_moved", false)?;
        self.packets(checks, "a pod that a new policy closes is silent", client, "late_subject", false)?;
        self.packets(checks, "a pod made meanwhile reaches who allows it", "aaa_after", "srv_server", true)?;
        let verified = self.controller.verified(LIMIT).await;
        checks
            .check("its own comparison finds no difference", verified.map_err(|error| format!("{error:#}")));
        self.progress.done("packets after the restart");
        Ok(())
    }
}

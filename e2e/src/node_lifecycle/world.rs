//! The cluster that the scenes are played on, and how it is looked at.

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::leftovers;
use super::stream::Stream;
use crate::objects::Objects;
use crate::snapshot::Snapshot;
use testbed::cluster::Bed;
use testbed::tools::Answer;
use testbed::traffic::{self, Dial, Place};
use testbed::{exec, pod};

/// Where the pods are.
pub(super) const NAMESPACE: &str = "life";
/// How long a pod may take to run on a busy machine, and a cluster to recover.
pub(super) const HEAL: Duration = Duration::from_secs(90);

/// How long an error may take to be logged.
const SOON: Duration = Duration::from_secs(30);

/// A cluster with the pods `a1` and `a2` on n1, `b1` and `b2` on n2, which stay.
pub(super) struct World<'a> {
    objects: Objects<'a>,
    /// Pods of a burst.
    pub(super) burst: u16,
}

/// The pods that stay, and their nodes.
pub(super) const STAYING: [(&str, &str); 4] = [("a1", "n1"), ("a2", "n1"), ("b1", "n2"), ("b2", "n2")];

impl<'a> Deref for World<'a> {
    type Target = Objects<'a>;

    fn deref(&self) -> &Objects<'a> {
        &self.objects
    }
}

impl<'a> World<'a> {
    /// Makes the namespace and the pods that stay.
    pub(super) fn new(bed: &'a Bed, burst: u16) -> Result<Self> {
        let world = Self { objects: Objects { bed, namespace: NAMESPACE, heal: HEAL, soon: SOON }, burst };
        world.make_namespace()?;
        // Real pods wait for their account.
        exec::retry(HEAL, "the namespace has its account", || {
            bed.kubectl(&["get", "serviceaccount", "-n", NAMESPACE, "default"])
        })?;
        world.start_staying("")?;
        Ok(world)
    }

    /// Makes those of the pods that stay which are not there, on one node or all.
    pub(super) fn start_staying(&self, node: &str) -> Result<()> {
        let pods: Vec<_> = STAYING.iter().filter(|pod| node.is_empty() || pod.1 == node).collect();
        let manifests = pods.iter().map(|(name, node)| self.manifest(name, node)).collect::<Result<_>>()?;
        self.apply_all(manifests)?;
        let names: Vec<&str> = pods.iter().map(|pod| pod.0).collect();
        self.ready(&names)
    }

    /// Removes everything; then nothing of it may be there.
    pub(super) fn end(&self) -> Result<String> {
        self.bed.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=90s"])?;
        exec::retry(HEAL, "nothing is left", || {
            let left = crate::snapshot::logical_ports(self.bed, NAMESPACE)?;
            ensure!(left == 0, "{left} logical ports");
            leftovers::check(self.bed)
        })
    }

    /// Applies many objects at once.
    pub(super) fn apply_all(&self, items: Vec<Value>) -> Result<()> {
        self.apply(json!({"apiVersion": "v1", "kind": "List", "items": items}))
    }

    /// A pod that answers on port 8080.
    pub(super) fn manifest(&self, name: &str, node: &str) -> Result<Value> {
        let mut object = pod::with_image(self.bed, pod::manifest(NAMESPACE, name, Some(node)))?;
        // With 0 the API server would forget the pod before its node has ended it.
        object["spec"]["terminationGracePeriodSeconds"] = 1.into();
        Ok(object)
    }

    /// Makes such a pod; it may not run yet.
    pub(super) fn create(&self, name: &str, node: &str) -> Result<()> {
        self.apply(&self.manifest(name, node)?)
    }

    /// Makes one and waits until it answers to another node.
    pub(super) fn start(&self, name: &str, node: &str) -> Result<String> {
        self.create(name, node)?;
        self.ready(&[name])?;
        self.answers(name)
    }

    /// Waits until pods are Ready.
    pub(super) fn ready(&self, names: &[&str]) -> Result<()> {
        self.bed.pods_ready(NAMESPACE, Some(names), HEAL).with_context(|| {
            let path = "jsonpath={range .items[*]}{.involvedObject.name}: {.message}\n{end}";
            let filter = "--field-selector=type=Warning";
            let list =
                self.bed.kubectl(&["get", "events", "-n", NAMESPACE, filter, "-o", path]).unwrap_or_default();
            let about = |line: &&str| names.iter().any(|name| line.starts_with(&format!("{name}: ")));
            let last: Vec<_> = list.lines().rev().filter(about).take(3).collect();
            format!("{} not Ready; last warnings: {}", names.join(", "), last.join(" | "))
        })
    }

    /// A pod's address.
    pub(super) fn address(&self, name: &str) -> Result<Ipv4Addr> {
        let ip = self.field(&format!("pod/{name}"), ".status.podIP")?;
        ip.parse().with_context(|| format!("pod {name} has the address {ip:?}"))
    }

    /// The range of a node's pods.
    pub(super) fn subnet(&self, node: &str) -> Result<Ipv4Net> {
        let path = ".metadata.annotations.k8s\\.ovn\\.org/node-subnets";
        let text = self.field(&format!("node/{node}"), path)?;
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("ranges of {node}: {text:?}"))?;
        let first = value["default"][0].as_str().or(value["default"].as_str()).unwrap_or_default();
        first.parse().with_context(|| format!("range of {node}: {text}"))
    }

    /// A pod's name, UID, address, containers and how often these were restarted: what must not change.
    pub(super) fn identity(&self, name: &str) -> Result<String> {
        let path = ".metadata.uid} {.status.podIP} {.status.containerStatuses[*].containerID} \
                    {.status.containerStatuses[*].restartCount";
        Ok(format!("{name} {}", self.field(&format!("pod/{name}"), path)?))
    }

    /// The identities of all pods that stay.
    pub(super) fn identities(&self) -> Result<Vec<String>> {
        STAYING.iter().map(|(name, _)| self.identity(name)).collect()
    }

    /// Asks a pod from another node until it says its name.
    pub(super) fn answers(&self, name: &str) -> Result<String> {
        let node = self.field(&format!("pod/{name}"), ".spec.nodeName")?;
        let ip = self.address(name)?;
        let from = if node == "n1" { "n2" } else { "n1" };
        let begin = Instant::now();
        exec::retry(HEAL, &format!("{name} at {ip} answers {from}"), || self.ask(from, ip, name))?;
        let late = begin.elapsed();
        Ok(if late.as_secs() > 0 {
            format!("{name} answers at {ip} after {:.1} s", late.as_secs_f64())
        } else {
            format!("{name} answers at {ip}")
        })
    }

    /// Asks once.
    pub(super) fn ask(&self, from: &str, ip: Ipv4Addr, name: &str) -> Result<()> {
        let dial = Dial { netexec: true, ..Dial::tcp(ip, 8080).within(Duration::from_secs(2)) };
        let attempts = traffic::dial(self.bed, &Place::Host(from.to_owned()), dial)?;
        match attempts.first().map(|attempt| &attempt.answer) {
            Some(Answer::Reply(text)) if text.split(' ').next() == Some(name) => Ok(()),
            Some(Answer::Reply(text)) => bail!("{text:?} answers"),
            Some(Answer::Err(reason)) => bail!("{reason}"),
            None => bail!("no attempt"),
        }
    }

    /// A connection from `a1` on n1 to `b1` on n2, in use all the time.
    pub(super) fn stream(&self) -> Result<Stream> {
        Stream::open(self.bed, NAMESPACE, ("a1", "n1"), self.address("b1")?)
    }

    /// A file of a node, as this machine sees it.
    pub(super) fn file(&self, node: &str, path: &str) -> Result<PathBuf> {
        self.bed.host(node).path(path)
    }

    /// Runs a program in the namespaces of a node.
    pub(super) fn run(&self, node: &str, program: &str, args: &[&str]) -> Result<String> {
        exec::output(self.bed.host(node).command(program)?.args(args))
    }

    /// What the agent of a node answers.
    pub(super) fn page(&self, node: &str, path: &str) -> Result<String> {
        self.bed.agent(node).page(path)
    }

    /// `True`, `False` or `Unknown`: the node's condition Ready.
    pub(super) fn node_is_ready(&self, node: &str) -> Result<String> {
        self.field(&format!("node/{node}"), ".status.conditions[?(@.type==\"Ready\")].status")
    }

    /// Waits until the node's condition Ready has this value; says how long that took.
    pub(super) fn wait_node(&self, node: &str, ready: &str) -> Result<String> {
        self.eventually(&format!("Ready of {node} is {ready}"), || {
            let now = self.node_is_ready(node)?;
            ensure!(now == ready, "it is {now}");
            Ok(())
        })
    }

    /// Waits until everything is as it was.
    pub(super) fn nothing_left(&self, before: &Snapshot) -> Result<String> {
        self.eventually("nothing is left", || before.equals(&Snapshot::take(self.bed)?))
    }

    /// Tries until it holds; says how long that took.
    pub(super) fn eventually(&self, what: &str, check: impl FnMut() -> Result<()>) -> Result<String> {
        self.within(HEAL, what, check)
    }
}

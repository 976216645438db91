//! The cluster under test, and how its state and its errors are looked at.

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::expect::{self, Expect};
use crate::harness::Checks;
use crate::objects::Objects;
use testbed::cluster::config::{CONTROLLER_PORT, node_index};
use testbed::cluster::{Actor, Bed};
use testbed::traffic::{Dial, Place};
use testbed::{exec, pod};

/// Where the pods are.
pub(super) const NAMESPACE: &str = "hardship";
/// How long the cluster may take to recover.
pub(super) const HEAL: Duration = Duration::from_secs(60);
/// How long it may take until an error is reported.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// A cluster with the pods `good-1` on n1 and `good-2` on n2, which must never notice anything.
pub(super) struct World<'a> {
    objects: Objects<'a>,
    checks: &'a mut Checks,
}

impl<'a> Deref for World<'a> {
    type Target = Objects<'a>;

    fn deref(&self) -> &Objects<'a> {
        &self.objects
    }
}

impl<'a> World<'a> {
    /// The cluster with checks to make.
    pub(super) fn new(bed: &'a Bed, checks: &'a mut Checks) -> Self {
        Self { objects: Objects { bed, namespace: NAMESPACE, heal: HEAL, soon: SOON }, checks }
    }

    /// Makes the namespace and the good pods.
    pub(super) fn prepare(bed: &Bed) -> Result<()> {
        let mut checks = Checks::default();
        let world = World::new(bed, &mut checks);
        world.make_namespace()?;
        for (name, node) in [("good-1", "n1"), ("good-2", "n2")] {
            world.create(name, node, None)?;
            world.running(name, HEAL)?;
        }
        Ok(())
    }

    /// Does one check and counts it.
    pub(super) fn check(&mut self, what: &str, check: impl FnOnce(&Self) -> Result<String>) {
        let outcome = check(self).map_err(|error| format!("{error:#}"));
        self.checks.check(what, outcome);
    }

    /// Makes a pod that answers, with this value of `k8s.ovn.org/pod-networks`. Acts as the controller, as no other client may write
    /// it.
    pub(super) fn create(&self, name: &str, node: &str, networks: Option<&str>) -> Result<()> {
        let mut object = pod::manifest(NAMESPACE, name, Some(node));
        let Some(value) = networks else { return self.apply(object) };
        object["metadata"]["annotations"]["k8s.ovn.org/pod-networks"] = value.into();
        let mut command = self.bed.kubectl_command()?;
        command.args(Actor::controller().with_all_rights().flags());
        exec::input_output(command.args(["apply", "-f", "-"]), &object.to_string()).map(drop)
    }

    /// An annotation of ours of a pod or node, by its name without the prefix.
    pub(super) fn annotation(&self, object: &str, name: &str) -> Result<String> {
        self.field(object, &format!(".metadata.annotations.k8s\\.ovn\\.org/{name}"))
    }

    /// Writes an annotation of ours, or removes it, as the one who may: what nodes say of themselves as the node's agent,
    /// everything else as the controller.
    pub(super) fn annotate(&self, object: &str, name: &str, value: Option<&str>) -> Result<()> {
        let change = match value {
            Some(value) => format!("k8s.ovn.org/{name}={value}"),
            None => format!("k8s.ovn.org/{name}-"),
        };
        let actor = match object.strip_prefix("node/") {
            Some(node) if !["node-subnets", "node-id"].contains(&name) => Actor::agent(Some(node)),
            _ => Actor::controller(),
        };
        let args = ["annotate", "--overwrite", "-n", NAMESPACE, object, &change];
        self.bed.kubectl_as(&actor, &args).map(drop)
    }

    /// Waits until a pod runs; returns its address.
    pub(super) fn running(&self, name: &str, limit: Duration) -> Result<Ipv4Addr> {
        exec::retry(limit, &format!("pod {name} runs"), || {
            let status = self.field(&format!("pod/{name}"), ".status.phase},{.status.podIP")?;
            match status.split_once(',') {
                Some(("Running", ip)) => ip.parse().with_context(|| format!("address {ip:?}")),
                _ => bail!("its phase and address are {status:?}"),
            }
        })
    }

    /// Asks a running pod from its own node.
    pub(super) fn answers(&self, name: &str) -> Result<String> {
        let ip = self.running(name, HEAL)?;
        let node = self.field(&format!("pod/{name}"), ".spec.nodeName")?;
        // The node's own address among its pods is the second of its range of eight.
        let first = Ipv4Addr::new(10, 244, 0, 8 * (node_index(&node).context("no node")? - 1));
        let client = Ipv4Addr::from(u32::from(first) + 2);
        let expect = Expect::only(&format!("{name} {client}"));
        let outcome = expect::settle(self.bed, &Place::Host(node), Dial::tcp(ip, 8080), &expect, HEAL).1;
        outcome.map_err(|seen| anyhow!("pod {name} at {ip}: {seen}"))?;
        Ok(format!("{name} answers at {ip}"))
    }

    /// Both good pods answer.
    pub(super) fn others_go_on(&self) -> Result<String> {
        self.answers("good-1")?;
        self.answers("good-2")?;
        Ok(String::new())
    }

    /// Waits for an event about a pod or node; returns its note.
    pub(super) fn event(&self, object: &str, reason: &str) -> Result<String> {
        exec::retry(SOON, &format!("an event {reason} about {object}"), || {
            let all = self.bed.events(None, object)?;
            let found = all.into_iter().find(|(why, _)| why == reason);
            Ok(found.context("there is none")?.1)
        })
    }

    /// A page of the controller.
    pub(super) fn controller(&self, path: &str) -> Result<String> {
        self.bed.page("central", CONTROLLER_PORT, path)
    }

    /// Tries until it holds; says how long that took.
    pub(super) fn eventually(&self, limit: Duration, check: impl FnMut() -> Result<()>) -> Result<String> {
        self.within(limit, "it holds", check)
    }
}

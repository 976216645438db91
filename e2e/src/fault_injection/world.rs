//! The cluster under test, and how its state and its errors are looked at.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::snapshot::Snapshot;
use testbed::cluster::config::{CONTROLLER_PORT, node_index};
use testbed::cluster::{Actor, Bed};
use testbed::traffic::{self, Dial, Expect, Place};
use testbed::ui::Checks;
use testbed::{exec, pod};

/// Where the pods are.
pub(super) const NAMESPACE: &str = "hardship";
/// How long the cluster may take to heal.
pub(super) const HEAL: Duration = Duration::from_secs(60);
/// How long an error may take to be told.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// A cluster with the pods `good-1` on n1 and `good-2` on n2, which must never notice anything.
pub(super) struct World<'a> {
    pub(super) bed: &'a Bed,
    checks: &'a mut Checks,
}

impl<'a> World<'a> {
    /// The cluster with checks to make.
    pub(super) fn new(bed: &'a Bed, checks: &'a mut Checks) -> Self {
        Self { bed, checks }
    }

    /// Makes the namespace and the good pods.
    pub(super) fn prepare(bed: &Bed) -> Result<()> {
        let mut checks = Checks::default();
        let world = World::new(bed, &mut checks);
        world.apply(&format!(
            r#"{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{NAMESPACE}"}}}}"#
        ))?;
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

    /// `kubectl apply`.
    pub(super) fn apply(&self, object: &str) -> Result<()> {
        exec::input_output(self.bed.kubectl_command()?.args(["apply", "-f", "-"]), object).map(drop)
    }

    /// Makes a pod that answers, with this value of `k8s.ovn.org/pod-networks`: as the controller, since nobody else may.
    pub(super) fn create(&self, name: &str, node: &str, networks: Option<&str>) -> Result<()> {
        let mut object = pod::manifest(NAMESPACE, name, Some(node));
        let Some(value) = networks else { return self.apply(&object.to_string()) };
        object["metadata"]["annotations"]["k8s.ovn.org/pod-networks"] = value.into();
        let mut command = self.bed.kubectl_command()?;
        command.args(Actor::controller().with_all_rights().flags());
        exec::input_output(command.args(["apply", "-f", "-"]), &object.to_string()).map(drop)
    }

    /// Deletes pods and waits until they are gone.
    pub(super) fn delete(&self, names: &[&str]) -> Result<()> {
        let args = ["delete", "pod", "-n", NAMESPACE, "--ignore-not-found", "--timeout=60s"];
        self.bed.kubectl(&[&args, names].concat()).map(drop)
    }

    /// A field of a pod or node, by JSON path.
    pub(super) fn field(&self, object: &str, path: &str) -> Result<String> {
        self.bed.kubectl(&["get", object, "-n", NAMESPACE, "-o", &format!("jsonpath={{{path}}}")])
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
        let outcome = traffic::settle(self.bed, &Place::Host(node), Dial::tcp(ip, 8080), &expect, HEAL).1;
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
            let filter = format!("involvedObject.name={object},reason={reason}");
            let note = "jsonpath={.items[0].message}";
            let found = self.bed.kubectl(&["get", "events", "-A", "--field-selector", &filter, "-o", note]);
            let found = found.context("there is none")?;
            ensure!(!found.is_empty(), "there is none");
            Ok(found)
        })
    }

    /// The log of a process from here on.
    pub(super) fn log(&self, host: &str, process: &str) -> Log {
        let path = self.bed.config().log(host, process);
        let from = fs::read(&path).map_or(0, |text| text.len());
        Log { path, from }
    }

    /// A page of the controller.
    pub(super) fn controller(&self, path: &str) -> Result<String> {
        self.bed.page("central", CONTROLLER_PORT, path)
    }

    /// The state of everything that pods leave marks in.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(self.bed)
    }

    /// The same once it does not change any more.
    pub(super) fn quiet(&self) -> Result<Snapshot> {
        exec::retry(HEAL, "the cluster comes to rest", || {
            let first = self.snapshot()?;
            thread::sleep(Duration::from_secs(1));
            let second = self.snapshot()?;
            first.equals(&second)?;
            Ok(second)
        })
    }

    /// Tries until it holds; says how long that took.
    pub(super) fn eventually(&self, limit: Duration, check: impl Fn() -> Result<()>) -> Result<String> {
        let begin = Instant::now();
        exec::retry(limit, "it holds", check)?;
        Ok(format!("after {:.1} s", begin.elapsed().as_secs_f64()))
    }
}

/// A log from some moment on.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    from: usize,
}

impl Log {
    /// Waits for a line with all of these; returns it without colours.
    pub(super) fn tells(&self, words: &[&dyn fmt::Display]) -> Result<String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        exec::retry(SOON, &format!("{} says it", self.path.display()), || {
            let text = fs::read(&self.path)?;
            let text = plain(&String::from_utf8_lossy(text.get(self.from..).unwrap_or_default()));
            let line = text.lines().rev().find(|line| words.iter().all(|word| line.contains(word)));
            line.map(short).with_context(|| {
                format!("no line with all of {words:?}; the last is {:?}", text.lines().next_back())
            })
        })
    }
}

/// Fails unless the text has all of the words; returns it shortened.
pub(super) fn has(text: &str, words: &[&str]) -> Result<String> {
    let text = plain(text);
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} is not in: {}", text.trim());
    Ok(short(text.trim()))
}

/// Without the escape sequences that colour a terminal (ECMA-48: `ESC [`, parameters, `m`).
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    out
}

fn short(line: &str) -> String {
    let line: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(260) {
        Some((at, _)) => format!("{}..", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_hide_words() {
        let text = "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\x1b[3m=\x1b[0mb";
        assert_eq!(plain(text), "12:00  WARN a=b");
        assert_eq!(has(text, &["a=b"]).unwrap(), "12:00 WARN a=b");
        assert!(has(text, &["c"]).unwrap_err().to_string().contains("[\"c\"]"));
    }
}

//! Very many ports of a node's br-int that OVN has bound, without a device behind each: patch ports to a bridge of their own. OVN, OVS and the
//! agent treat them as they treat pods' ports.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use testbed::cluster::Bed;
use testbed::exec;

/// The logical switch, and the bridge at the other end of the patch ports.
const SWITCH: &str = "full-node";
const BRIDGE: &str = "br-full";
/// Ports that one transaction makes.
const BATCH: u32 = 250;
/// Until OVN has bound all.
const BOUND: Duration = Duration::from_secs(300);

/// So many ports of one node. They are removed by [`Ports::remove`].
#[derive(Debug)]
pub(super) struct Ports<'a> {
    bed: &'a Bed,
    node: &'a str,
    count: u32,
}

fn name(number: u32) -> String {
    format!("full-{number:04}")
}

/// MAC and IPv4 address of a port, as OVN writes them.
fn addresses(number: u32) -> String {
    let [_, _, high, low] = number.to_be_bytes();
    format!("0a:58:0a:c8:{high:02x}:{low:02x} 10.200.{high}.{low}")
}

impl<'a> Ports<'a> {
    /// Makes them and waits until OVN has bound all.
    pub(super) async fn add(bed: &'a Bed, node: &'a str, count: u32) -> Result<Self> {
        let ports = Self { bed, node, count };
        bed.nbctl(&["--may-exist", "ls-add", SWITCH])?;
        for numbers in batches(count) {
            let mut line = Vec::new();
            for number in numbers {
                let (name, addresses) = (name(number), addresses(number));
                let mut add = |words: &[&str]| line.extend(words.iter().map(|&word| word.to_owned()));
                add(&["--", "lsp-add", SWITCH, &name]);
                add(&["--", "lsp-set-addresses", &name, &addresses]);
                add(&["--", "lsp-set-port-security", &name, &addresses]);
            }
            tokio::task::block_in_place(|| bed.nbctl(&texts(&line))).context("logical ports")?;
        }
        ports.vsctl(&["--may-exist", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "fail-mode=secure"])?;
        for numbers in batches(count) {
            let mut line = Vec::new();
            for number in numbers {
                let (near, far) = (name(number), format!("peer-{number:04}"));
                let id = format!("external_ids:iface-id={near}");
                for (bridge, port, peer) in [("br-int", &near, &far), (BRIDGE, &far, &near)] {
                    let options = format!("options:peer={peer}");
                    let mut words = vec!["--", "add-port", bridge, port, "--", "set", "interface", port];
                    words.extend(["type=patch", &options]);
                    if bridge == "br-int" {
                        words.push(&id);
                    }
                    line.extend(words.into_iter().map(str::to_owned));
                }
            }
            ports.vsctl(&texts(&line)).context("ports of br-int")?;
        }
        ports.until_bound().await?;
        Ok(ports)
    }

    async fn until_bound(&self) -> Result<()> {
        let end = Instant::now() + exec::patient(BOUND);
        loop {
            let bound = tokio::task::block_in_place(|| self.bound())?;
            if bound >= self.count {
                return Ok(());
            }
            ensure!(Instant::now() < end, "OVN has bound {bound} of {} ports of {}", self.count, self.node);
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn bound(&self) -> Result<u32> {
        let list = self.bed.nbctl(&[
            "--bare",
            "--no-headings",
            "--columns=name",
            "find",
            "logical_switch_port",
            "up=true",
        ])?;
        Ok(u32::try_from(list.lines().filter(|line| line.starts_with("full-")).count())?)
    }

    /// Removes them.
    pub(super) fn remove(self) -> Result<()> {
        tokio::task::block_in_place(|| {
            for numbers in batches(self.count) {
                let line: Vec<String> = numbers
                    .flat_map(|number| {
                        ["--", "--if-exists", "del-port", "br-int", &name(number)].map(str::to_owned)
                    })
                    .collect();
                self.vsctl(&texts(&line))?;
            }
            self.vsctl(&["--if-exists", "del-br", BRIDGE])?;
            self.bed.nbctl(&["--if-exists", "ls-del", SWITCH])?;
            Ok(())
        })
    }

    fn vsctl(&self, args: &[&str]) -> Result<String> {
        let usual = ["--timeout=120", "--db=unix:/run/openvswitch/db.sock"];
        tokio::task::block_in_place(|| self.bed.ovs(self.node, "ovs-vsctl", &[&usual, args].concat()))
    }
}

fn batches(count: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    (0..count).step_by(BATCH as usize).map(move |from| from..count.min(from + BATCH))
}

/// A line of commands as arguments.
fn texts(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_all_ports_once() {
        let all: Vec<u32> = batches(603).flatten().collect();
        assert_eq!(all, (0..603).collect::<Vec<_>>());
        assert!(batches(603).all(|batch| batch.len() <= 250));
    }

    #[test]
    fn each_port_has_addresses_of_its_own() {
        assert_eq!(addresses(4999), "0a:58:0a:c8:13:87 10.200.19.135");
        let all: std::collections::BTreeSet<_> = (0..5000).map(addresses).collect();
        assert_eq!(all.len(), 5000);
    }
}

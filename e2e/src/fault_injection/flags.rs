//! Flags that cannot be: ranges that overlap, and kubeconfigs that are missing, unreadable, or name a server that is
//! not there.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::world::World;
use crate::objects::has;
use testbed::cluster::{agent_arguments, controller_arguments};
use testbed::exec::{self, Captured};

/// Exit code of `timeout` for a program that it had to end.
const ENDED: i32 = 124;
/// An address on which no server listens.
const NOWHERE: &str = "https://127.0.0.1:9";

/// Names and values of flags.
type Flags<'a> = &'a [(&'a str, &'a str)];

/// Runs a program of ours on a host for some seconds, with some flags exchanged for others.
fn attempt(world: &World<'_>, host: &str, seconds: u8, flags: Flags<'_>) -> Result<Captured> {
    let config = world.bed.config();
    let (program, mut arguments) = match host {
        "central" => ("slipstream-controller", controller_arguments(config)),
        node => ("slipstream-node-agent", agent_arguments(config, node)),
    };
    // Beside the one that runs; what a case says of them goes before.
    let ports: Flags<'_> = match host {
        "central" => &[("metrics-bind-address", "127.0.0.1:0"), ("network-api-bind-address", "127.0.0.1:0")],
        _ => &[("metrics-bind-address", "127.0.0.1:0")],
    };
    for (name, value) in ports.iter().chain(flags) {
        arguments.retain(|argument| !argument.starts_with(&format!("--{name}=")));
        arguments.push(format!("--{name}={value}"));
    }
    let mut command = world.bed.host(host).command("timeout")?;
    command.arg(seconds.to_string()).arg(config.program(program)).arg("run").args(arguments);
    exec::capture(&mut command, "")
}

/// The program must end by itself, badly, with all of these words.
fn refused(ended: &Captured, words: &[&str]) -> Result<String> {
    let code = ended.status.code();
    ensure!(
        code.is_some_and(|code| code != 0 && code != ENDED),
        "it ended with {}: {}",
        ended.status,
        ended.stderr
    );
    has(&ended.stderr, words)
}

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    overlaps(world);
    network_api(world);
    kubeconfigs(world)
}

fn overlaps(world: &mut World<'_>) {
    let cases: [(&str, Flags<'_>, &[&str]); 4] = [
        (
            "pods and services in one range",
            &[("cluster-subnets", "10.96.0.0/12/24")],
            &["10.96.0.0/12", "10.96.0.0/16", "overlap"],
        ),
        (
            "join subnet in the pods' range",
            &[("join-subnet", "10.244.64.0/18")],
            &["10.244.64.0/18", "10.244.0.0/16"],
        ),
        (
            "masquerade subnet in the join subnet",
            &[("masquerade-subnet", "100.64.3.0/29")],
            &["100.64.3.0/29", "100.64.0.0/16"],
        ),
        (
            "two pod ranges, one in the other",
            &[("cluster-subnets", "10.244.0.0/16/24,10.244.128.0/17/24")],
            &["10.244.0.0/16", "10.244.128.0/17"],
        ),
    ];
    for (what, flags, words) in cases {
        world.check(&format!("{what}: refused, naming both"), |world| {
            refused(&attempt(world, "central", 10, flags)?, words)
        });
    }
}

/// Callers of the API for virtual networks send their tokens.
fn network_api(world: &mut World<'_>) {
    let cases: [(&str, Flags<'_>, &[&str]); 2] = [
        (
            "on all addresses without a certificate",
            &[("network-api-bind-address", "0.0.0.0:0")],
            &["0.0.0.0:0", "--network-api-cert", "loopback"],
        ),
        (
            "with a certificate that is not there",
            &[("network-api-cert", "/nowhere.crt"), ("network-api-key", "/nowhere.key")],
            &["--network-api-cert", "/nowhere.crt"],
        ),
    ];
    for (what, flags, words) in cases {
        world.check(&format!("network API {what}: refused, naming the flag"), |world| {
            refused(&attempt(world, "central", 10, flags)?, words)
        });
    }
}

fn kubeconfigs(world: &mut World<'_>) -> Result<()> {
    let config = world.bed.config();
    let file = |name: &str| config.kubeconfig(name).display().to_string();
    let (missing, garbage, nowhere) = (file("missing"), file("garbage"), file("nowhere"));
    fs::write(&garbage, "clusters: [\n")?;
    for (host, who) in [("central", "controller"), ("n1", "agent")] {
        for (what, path) in [("missing", &missing), ("unreadable", &garbage)] {
            world.check(&format!("{who}, {what} kubeconfig: refused, naming the file"), |world| {
                refused(&attempt(world, host, 10, &[("kubeconfig", path.as_str())])?, &[path, "kubeconfig"])
            });
        }
    }
    let own = fs::read_to_string(config.kubeconfig("controller"))?;
    let mut object: serde_json::Value = serde_json::from_str(&own).context("the controller's kubeconfig")?;
    object["clusters"][0]["cluster"]["server"] = NOWHERE.into();
    fs::write(&nowhere, object.to_string())?;
    let unreachable = |world: &World<'_>, host: &str| {
        let ended = attempt(world, host, 6, &[("kubeconfig", nowhere.as_str())])?;
        ensure!(
            ended.status.code() == Some(ENDED),
            "it did not go on trying: {}: {}",
            ended.status,
            ended.stderr
        );
        has(&ended.stderr, &[NOWHERE, "refused", "trying"])?;
        Ok(String::new())
    };
    world.check("controller, API server not there: goes on trying, naming it", |world| {
        unreachable(world, "central")
    });
    world.check("agent, API server not there: goes on trying, naming it", |world| {
        let host = world.bed.host("n1");
        host.kill("node-agent")?;
        let outcome = unreachable(world, "n1");
        host.restart("node-agent")?;
        outcome
    });
    world.check("after the agent's start with the right one everybody goes on", World::others_go_on);
    fs::remove_file(&garbage)?;
    fs::remove_file(&nowhere)?;
    Ok(())
}

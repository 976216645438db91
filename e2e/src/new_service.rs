//! A service that is made while a node's agent is away, and asked from outside all the time: whoever is served, is served by OVN, which keeps
//! the client's address. For a moment the node's own translation could serve, which hides it, and whose connections break when OVN follows.

use std::fs::{self, File};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::demo::Pods;
use crate::harness::Checks;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::cluster::Bed;
use testbed::cluster::config::{EXT_IP, node_ip};
use testbed::exec;
use testbed::tools::{Answer, Attempt};
use testbed::traffic::{self, Place};

const NAMESPACE: &str = "shop";
const NAME: &str = "newcomer";
const NODE: &str = "n1";
const NODE_PORT: u16 = 30_192;
/// Where pods answer with their name and the client's address.
const BEHIND: u16 = 8080;
/// How long OVN has before the agent is back.
const AWAY: Duration = Duration::from_secs(3);
/// How long the agent may take to come back.
const BACK: Duration = Duration::from_secs(30);
/// How long the service is asked after that.
const ASKED: Duration = Duration::from_secs(4);
/// So many answers at least show something.
const ENOUGH: usize = 100;

pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let what = "a new service never hides a client from outside";
    checks.check(what, made(bed).map_err(|e| format!("{e:#}")));
    Ok(())
}

fn made(bed: &Bed) -> Result<String> {
    let (pod, address) =
        Pods::list(bed)?.find("web-1").map(|(name, ip)| (name.to_owned(), ip.to_string()))?;
    bed.host(NODE).kill("node-agent")?;
    let answers = create(bed, &address).and_then(|()| {
        thread::sleep(AWAY);
        asked(bed)
    });
    if answers.is_err() {
        // Other trials need the agent.
        bed.host(NODE).restart("node-agent")?;
    }
    let answers = answers?;
    bed.kubectl(&["delete", "service,endpointslice", "-n", NAMESPACE, NAME])?;
    let expected = format!("{pod} {EXT_IP}");
    let replies: Vec<&str> = answers
        .iter()
        .filter_map(|attempt| match &attempt.answer {
            Answer::Reply(text) => Some(text.as_str()),
            Answer::Err(_) => None,
        })
        .collect();
    let wrong: Vec<&str> = replies.iter().copied().filter(|reply| *reply != expected).collect();
    let text = format!("{} of {} attempts were served", replies.len(), answers.len());
    ensure!(wrong.is_empty(), "{text}; {} not by \"{expected}\" but \"{}\"", wrong.len(), wrong[0]);
    ensure!(replies.len() >= ENOUGH, "{text}, fewer than {ENOUGH}");
    Ok(text)
}

fn create(bed: &Bed, backend: &str) -> Result<()> {
    for object in objects(backend) {
        bed.apply(&object.to_string())?;
    }
    Ok(())
}

/// What was answered from before the agent is there until some time after.
fn asked(bed: &Bed) -> Result<Vec<Attempt>> {
    let said = tempfile::NamedTempFile::new().context("a file for answers")?;
    let mut client = traffic::command(bed, &Place::Host("ext".into()), &bed.config().program("testbed"))?;
    client.args(["probe", "dial", "--json", "--count", "1000000", "--timeout", "0.3"]);
    client.args([&node_ip(1).to_string(), &NODE_PORT.to_string()]);
    let out = File::create(said.path()).context("a file for answers")?;
    let mut running = client.stdin(Stdio::null()).stdout(out).spawn().context("cannot start the client")?;
    let back = bed
        .host(NODE)
        .restart("node-agent")
        .and_then(|()| exec::retry(BACK, "the agent is ready", || bed.agent(NODE).page("/readyz").map(drop)));
    thread::sleep(ASKED);
    running.kill().context("the client")?;
    let ended = running.wait().context("the client")?;
    back?;
    ensure!(ended.code().is_none(), "the client ended by itself: {ended}");
    let text = fs::read_to_string(said.path()).context("the answers")?;
    // The last line may be half of one.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn objects(backend: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "type": "NodePort", "externalTrafficPolicy": "Local",
                "ports": [{"name": "tcp", "protocol": "TCP", "port": BEHIND, "nodePort": NODE_PORT}],
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": "IPv4",
            "ports": [{"name": "tcp", "protocol": "TCP", "port": BEHIND}],
            "endpoints": [{"addresses": [backend], "nodeName": NODE, "conditions": {"ready": true}}],
        }),
    ]
}

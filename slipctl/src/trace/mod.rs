//! `slipctl trace`: what becomes of a packet from a pod, through the logical network and on each node, in the words of Kubernetes.

mod meaning;
mod objects;
mod ovn;
mod packet;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use api::ovn_name::pod_port;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Error;
use crate::cluster::Reach;
use objects::{Backend, Pod, Target};
use ovn::Traced;

/// Source port of the packet, unless one is given.
const SOURCE_PORT: u16 = 40_000;
/// Destination port, where neither the command nor the service says one.
const PORT: u16 = 80;

/// More passes of connection tracking than a packet has.
const PASSES: usize = 16;

/// What is traced.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NAMESPACE/POD that sends.
    from: String,
    /// NAMESPACE/POD, an address, or NAMESPACE/SERVICE (service/NAMESPACE/NAME where a pod has the same name).
    to: String,
    /// Destination port; by default the first one of the service, else 80.
    #[arg(long)]
    port: Option<u16>,
    /// Source port.
    #[arg(long, default_value_t = SOURCE_PORT)]
    source_port: u16,
    /// tcp, udp or sctp.
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp", "sctp"])]
    protocol: String,
    /// By the pods' IPv6 addresses.
    #[arg(long)]
    ipv6: bool,
    #[command(flatten)]
    reach: Reach,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    /// The packet, with the objects at its ends.
    packet: String,
    /// What the logical network does.
    steps: Vec<Told>,
    /// Where it comes out, or that it does not.
    verdict: String,
    /// Whether it arrives.
    delivered: bool,
    /// By node: what flow cache and OVS say, or why they cannot.
    nodes: BTreeMap<String, Vec<String>>,
}

/// A step in the words of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    /// The logical switch or router.
    at: String,
    /// `policy`, `service`, `route`, `translation`.
    kind: String,
    /// What it is, by its object.
    what: String,
}

/// Traces.
///
/// # Errors
/// An end is none, or kubectl or ovn-trace fails.
pub(crate) fn run(args: &Args) -> Result<Answer, Error> {
    let Args { port, source_port, protocol, ipv6, reach, .. } = args;
    let from = objects::pod(reach, &args.from, *ipv6)?;
    let ipv6 = match args.to.parse::<IpAddr>() {
        Ok(address) => address.is_ipv6(),
        Err(_) => *ipv6,
    };
    let from = if ipv6 == from.address.is_ipv6() { from } else { objects::pod(reach, &args.from, ipv6)? };
    let to = objects::target(reach, &args.to, ipv6, *port, protocol)?;
    let (destination, backend) = match &to {
        Target::Pod(pod) => (SocketAddr::new(pod.address, port.unwrap_or(PORT)), None),
        Target::Address(address) => (SocketAddr::new(*address, port.unwrap_or(PORT)), None),
        Target::Service { address, backends, .. } => (*address, backends.first().cloned()),
    };
    let microflow = packet::microflow(&from, &to, destination, *source_port, protocol)?;
    let arrives = match &to {
        Target::Pod(pod) => Some(Backend {
            address: destination,
            node: Some(pod.node.clone()),
            pod: Some(format!("{}/{}", pod.namespace, pod.name)),
        }),
        _ => backend.clone(),
    };
    let lb = backend.as_ref().map(|backend| format!("--lb-dst={}", backend.address));
    let mut command = vec!["ovn-trace", "--detailed"];
    // One for each pass of connection tracking; further ones would be of an established connection.
    command.extend(["--ct=new"; PASSES]);
    command.extend(lb.as_deref());
    command.extend([from.node.as_str(), &microflow]);
    let traced = ovn::read(&reach.on_central(&command)?);
    let steps = explained(reach, &traced)?;
    let (mut verdict, delivered) = verdict(&traced, &from, &to, backend.as_ref());
    if !delivered && let Some(policies) = denying(reach, &steps, &from, &to)? {
        verdict.push_str(&policies);
    }
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let name = format!("{}/{}", from.namespace, from.name);
    let here = nodes.entry(from.node.clone()).or_default();
    here.extend(packet::cached(reach, &from.node, &name, protocol, from.address, destination));
    if let Target::Pod(_) = to {
        here.extend(packet::by_ovs(
            reach,
            &from.node,
            protocol,
            SocketAddr::new(from.address, *source_port),
            destination,
        ));
    }
    if let Some(Backend { address, node: Some(node), pod: Some(pod) }) = &arrives
        && *node != from.node
    {
        let there = packet::cached(reach, node, pod, protocol, from.address, *address);
        nodes.insert(node.clone(), there);
    }
    Ok(Answer {
        packet: packet::described(&from, &to, destination, backend.as_ref(), protocol),
        steps,
        verdict,
        delivered,
        nodes,
    })
}

/// The steps that come of a row of the northbound database, each once.
fn explained(reach: &Reach, traced: &Traced) -> Result<Vec<Told>, Error> {
    let uuids: Vec<&str> = traced.steps.iter().map(|step| step.uuid.as_str()).collect();
    if uuids.is_empty() {
        return Ok(Vec::new());
    }
    let list =
        ["ovn-sbctl", "--format=json", "--if-exists", "--columns=_uuid,external_ids", "list", "Logical_Flow"];
    let hints = ovn::hints(&ovn::rows(&reach.on_central(&[&list, uuids.as_slice()].concat())?));
    let wanted: Vec<&str> = hints.values().map(String::as_str).collect();
    let mut meanings: BTreeMap<String, (&'static str, String)> = BTreeMap::new();
    for (table, columns) in meaning::TABLES {
        if wanted.is_empty() {
            break;
        }
        let columns = format!("--columns={columns}");
        let list = ["ovn-nbctl", "--format=json", "--if-exists", &columns, "list", table];
        for row in ovn::rows(&reach.on_central(&[&list, wanted.as_slice()].concat())?) {
            let uuid =
                row.get("_uuid").and_then(Value::as_str).and_then(|uuid| uuid.get(..8)).unwrap_or_default();
            meanings.insert(uuid.to_owned(), meaning::of_row(table, &row));
        }
    }
    let mut told: Vec<Told> = Vec::new();
    for step in &traced.steps {
        let found = hints.get(&step.uuid).and_then(|hint| meanings.get(hint));
        let one = match found {
            Some((_, what)) if what.is_empty() => continue,
            Some((kind, what)) => {
                Told { at: step.datapath.clone(), kind: (*kind).to_owned(), what: what.clone() }
            }
            None if step.stage.ends_with("lr_in_ip_routing") => {
                Told { at: step.datapath.clone(), kind: "route".to_owned(), what: step.matched.clone() }
            }
            None => continue,
        };
        if !told.contains(&one) {
            told.push(one);
        }
    }
    Ok(told)
}

/// Where the packet came out, and whether that is where it should.
fn verdict(traced: &Traced, from: &Pod, to: &Target, backend: Option<&Backend>) -> (String, bool) {
    let Some(port) = traced.outputs.last() else {
        let last = traced.steps.last().map(|step| format!(" in {} ({})", step.datapath, step.stage));
        let why = match to {
            Target::Service { backends, name, .. } if backends.is_empty() => {
                format!("; service {name} has no ready backend")
            }
            _ => String::new(),
        };
        return (format!("dropped{}{why}", last.unwrap_or_default()), false);
    };
    match to {
        Target::Pod(pod) if *port == pod_port(&pod.namespace, &pod.name) => {
            (format!("delivered to pod {}/{}", pod.namespace, pod.name), true)
        }
        Target::Service { name, .. } => {
            let backend = backend.map(|backend| format!(", backend {}", backend.address)).unwrap_or_default();
            (format!("delivered to a backend of service {name}{backend}, by logical port {port}"), true)
        }
        _ => (format!("leaves the logical network by port {port} of node {}", from.node), true),
    }
}

/// For a packet that a default rule denies: the policies that select the pod.
fn denying(reach: &Reach, steps: &[Told], from: &Pod, to: &Target) -> Result<Option<String>, Error> {
    let Some(deny) = steps.iter().rev().find(|step| step.what.starts_with("denied by default")) else {
        return Ok(None);
    };
    let egress = deny.what.contains("for egress");
    let (pod, direction) = match to {
        _ if egress => (from, "Egress"),
        Target::Pod(pod) => (pod, "Ingress"),
        _ => return Ok(None),
    };
    let policies = reach.list(&["networkpolicies", "-n", &pod.namespace])?;
    let names = objects::selecting(&policies, &pod.labels, direction);
    Ok(Some(format!(
        "; pod {}/{} is selected for {} by NetworkPolicy {}",
        pod.namespace,
        pod.name,
        direction.to_lowercase(),
        names.join(", ")
    )))
}

/// The answer as text.
pub(crate) fn text(answer: &Answer) -> String {
    let Answer { packet, steps, verdict, nodes, .. } = answer;
    let mut out = format!("{packet}\n\n");
    let width = |of: fn(&Told) -> &String| {
        steps.iter().map(|step| of(step).chars().count()).max().unwrap_or_default()
    };
    let (at, kind) = (width(|step| &step.at), width(|step| &step.kind));
    for step in steps {
        out.push_str(&format!("{:at$}  {:kind$}  {}\n", step.at, step.kind, step.what));
    }
    out.push_str(&format!("verdict: {verdict}\n"));
    for (node, lines) in nodes {
        out.push_str(&format!("\nnode {node}\n"));
        for line in lines {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

impl Answer {
    /// The answer as JSON.
    ///
    /// # Errors
    /// Never for this type.
    pub(crate) fn json(&self) -> Result<Value, Error> {
        serde_json::to_value(self).map_err(|error| Error::Program(format!("{}: {error}", json!("trace"))))
    }

    /// Whether the packet arrives.
    pub(crate) fn delivered(&self) -> bool {
        self.delivered
    }
}

#[cfg(test)]
mod tests;

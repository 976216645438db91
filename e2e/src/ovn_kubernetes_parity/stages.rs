//! Brings the cluster to a stage, and reads what is there.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use test_support::ovn_reference::{Stage, data, normalize};
use testbed::cluster::Bed;
use testbed::cluster::config::{CENTRAL_IP, NB_PORT};
use testbed::nodes::record::{DIRECTORY, PodRecord};
use testbed::{exec, pod};

/// The order in which the reference's pods were made, which decides their addresses.
const POD_ORDER: [&str; 5] = ["red/a", "red/b", "blue/c", "blue/d", "red/h"];

/// Applies the objects of a stage; all before it have been applied.
pub(super) fn apply(bed: &Bed, stage: Stage) -> Result<()> {
    match stage {
        Stage::Nodes => Ok(()),
        Stage::Pods => pods(bed),
        Stage::Services => services(bed),
        Stage::Policies => apply_text(bed, data::POLICIES),
    }
}

fn apply_text(bed: &Bed, text: &str) -> Result<()> {
    bed.apply(text).map(drop)
}

fn pods(bed: &Bed) -> Result<()> {
    apply_text(bed, data::NAMESPACES)?;
    let documents: Vec<&str> = data::PODS.split("\n---\n").collect();
    ensure!(documents.len() == POD_ORDER.len(), "the reference has {} pods", documents.len());
    for (pod, text) in POD_ORDER.iter().zip(documents) {
        apply_text(bed, text)?;
        let (namespace, name) = pod.split_once('/').context("order of pods")?;
        bed.kubectl(&[
            "wait",
            "-n",
            namespace,
            &format!("pod/{name}"),
            "--for=condition=Ready",
            "--timeout=60s",
        ])
        .with_context(|| format!("pod {pod} does not become Ready"))?;
    }
    servers(bed)
}

/// Servers on ports that the pods do not declare, and those outside the cluster.
fn servers(bed: &Bed) -> Result<()> {
    let program = bed.config().program("testbed").display().to_string();
    let serve = |name: &'static str| {
        vec![program.clone(), "probe".into(), "serve".into(), "--name".into(), name.to_owned()]
    };
    let start = |host: &str, process: &str, argv: Vec<String>| {
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        bed.host(host).start(process, &argv, &[])
    };
    let ports =
        |ports: &[u16]| ports.iter().flat_map(|p| ["--tcp".to_owned(), p.to_string()]).collect::<Vec<_>>();
    start("ext", "server", [serve("ext"), ports(&[9000])].concat())?;
    start("central", "server", [serve("api"), ports(&[9000])].concat())?;
    for (node, pod, more) in [("n1", "c", &[8085, 8091][..]), ("n2", "d", &[9999][..])] {
        let record = PodRecord::find(&bed.host(node).path(DIRECTORY)?, "blue", pod)?;
        let netns = record.netns.with_context(|| format!("pod blue/{pod} has no network of its own"))?;
        let enter = vec!["nsenter".to_owned(), format!("--net={netns}"), "--".to_owned()];
        start(node, &format!("more-{pod}"), [enter, serve(pod), ports(more)].concat())?;
    }
    Ok(())
}

fn services(bed: &Bed) -> Result<()> {
    apply_text(bed, data::SERVICES)?;
    for (service, address) in [("lb-local", "172.18.10.1"), ("lb", "172.18.10.2")] {
        let patch = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}).to_string();
        bed.kubectl(&[
            "patch",
            "service",
            "-n",
            "red",
            service,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])?;
    }
    pod::wait_ready(bed, "red", Duration::from_secs(30))
}

/// The northbound database as it is.
pub(super) fn northbound(bed: &Bed) -> Result<Value> {
    let config = bed.config();
    let mut dump = bed.host("central").command(config.ovs("ovsdb-client"))?;
    dump.args(["-f", "json", "dump", &format!("tcp:{CENTRAL_IP}:{NB_PORT}"), "OVN_Northbound"]);
    let schema =
        fs::read_to_string(config.schema("ovn-nb.ovsschema")).context("schema of the northbound database")?;
    normalize::database(&exec::output(&mut dump)?, &serde_json::from_str(&schema)?, &uids(bed)?)
}

fn uids(bed: &Bed) -> Result<HashMap<String, String>> {
    let pods: Value = serde_json::from_str(&bed.kubectl(&["get", "pods", "-A", "-o", "json"])?)?;
    let items = pods["items"].as_array().into_iter().flatten();
    Ok(items
        .filter_map(|p| {
            let meta = &p["metadata"];
            let (uid, namespace, name) =
                (meta["uid"].as_str()?, meta["namespace"].as_str()?, meta["name"].as_str()?);
            Some((uid.to_owned(), format!("uid-of-{namespace}/{name}")))
        })
        .collect())
}

/// Our annotations as they are, in the form of [`data::annotations`].
pub(super) fn annotations(bed: &Bed) -> Result<Value> {
    let mut tables = Map::new();
    for kind in ["nodes", "pods", "namespaces"] {
        let list: Value = serde_json::from_str(&bed.kubectl(&["get", kind, "-A", "-o", "json"])?)?;
        let rows: Vec<Value> = list["items"].as_array().into_iter().flatten().filter_map(annotated).collect();
        tables.insert(format!("annotations of {kind}"), Value::Array(rows));
    }
    Ok(Value::Object(tables))
}

/// An object with annotations that are of interest; values that are JSON are parsed.
fn annotated(object: &Value) -> Option<Value> {
    let mut row: Map<String, Value> = object["metadata"]["annotations"]
        .as_object()?
        .iter()
        .filter(|(key, _)| key.starts_with("k8s.ovn.org/") || key.starts_with("slipstream.dev/"))
        .map(|(key, value)| {
            let text = value.as_str().unwrap_or_default();
            let structured = text.starts_with(['{', '[']).then(|| serde_json::from_str(text).ok()).flatten();
            (key.clone(), structured.unwrap_or_else(|| value.clone()))
        })
        .collect();
    if row.is_empty() {
        return None;
    }
    let name = object["metadata"]["name"].as_str()?;
    let name = object["metadata"]["namespace"].as_str().map_or(name.to_owned(), |ns| format!("{ns}/{name}"));
    row.insert("_name".into(), name.into());
    Some(Value::Object(row))
}

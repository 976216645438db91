//! Connections that the demonstration tries, with the expected results.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};

use super::workloads::Pods;
use super::{counters, rows_6, rows_host};
use crate::expect::{self, Expect};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::{API_SERVICE_IP, EXT_IP, OUTSIDE_IP, node_index, node_ip};
use testbed::exec;
use testbed::traffic::{self, Dial, Place, median_ms};

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) verdict: Result<String, String>,
    /// Median over some connections.
    pub(super) ms: f64,
    /// What the agent of the client's node says about it.
    pub(super) path: String,
}

/// Connections that the latency is taken from.
const SAMPLES: u32 = 9;
/// Time for the cluster to settle after a change.
const LIMIT: Duration = Duration::from_secs(15);

/// One thing that is tried.
pub(super) struct Try {
    pub(super) what: &'static str,
    pub(super) from: Place,
    pub(super) dial: Dial,
    pub(super) expect: Expect,
}

/// Does everything in order.
pub(super) fn measure(bed: &Bed, checks: &mut Checks) -> Result<Vec<Row>> {
    bed.host("ext").start(
        "server",
        &[
            &bed.config().program("testbed").display().to_string(),
            "probe",
            "serve",
            "--name",
            "outside",
            "--tcp",
            "9000",
            "--bulk",
            "9001",
        ],
        &[],
    )?;
    let pods = Pods::list(bed)?;
    let mut rows = Vec::new();
    let mut all = tries(bed, &pods)?;
    if bed.config().dual_stack {
        all.extend(rows_6::tries(bed, &pods)?);
    }
    for one in all {
        let row = measure_one(bed, one);
        checks.note(row.what, row.verdict.is_ok());
        rows.push(row);
    }
    if bed.config().dual_stack {
        let row = measure_one(bed, rows_6::without_ipv6(bed)?);
        checks.note(row.what, row.verdict.is_ok());
        rows.push(row);
    }
    for one in [rows_host::denied, rows_host::allowed] {
        let row = measure_one(bed, one(bed, &pods)?);
        checks.note(row.what, row.verdict.is_ok());
        rows.push(row);
    }
    let row = bulk(bed, pods.find("client")?.0)?;
    checks.note(row.what, row.verdict.is_ok());
    rows.push(row);
    let row = api_server(bed, pods.find("client")?.0)?;
    checks.note(row.what, row.verdict.is_ok());
    rows.push(row);
    Ok(rows)
}

pub(super) fn pod(node: &str, name: &str) -> Place {
    Place::Pod { node: node.to_owned(), namespace: "shop".to_owned(), name: name.to_owned() }
}

fn tries(bed: &Bed, pods: &Pods) -> Result<Vec<Try>> {
    let ((client_pod, client), (web1_pod, web1)) = (pods.find("client")?, pods.find("web-1")?);
    let ((_, web2), (db_pod, db)) = (pods.find("web-2")?, pods.find("db")?);
    // The servers in real pods are agnhost's; outside there is always our own.
    let tcp = |host, port| Dial::tcp(host, port).to_pod(bed);
    let udp = |host, port| Dial::udp(host, port).to_pod(bed);
    let ips = bed.cluster_ips("shop", "web")?;
    let four = ips.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
    let service = four.with_context(|| format!("the service has no IPv4 address; it has {ips:?}"))?;
    let (n1, n2) = (node_ip(1), node_ip(2));
    let on = |host: &str| Place::Host(host.to_owned());
    let both = |seen: &str| Expect::All(vec![format!("web-1 {seen}"), format!("web-2 {seen}")]);
    let one = |what, from, dial, expect| Try { what, from, dial, expect };
    // OVN gives the gateway routers addresses of the join range in the order of their nodes.
    let join = |node: u8| format!("100.64.0.{}", node + 1);
    let mp0 = |pod: Ipv4Addr| {
        let [a, b, c, _] = pod.octets();
        Ipv4Addr::new(a, b, c, 2)
    };
    Ok(vec![
        one(
            "pod -> pod, same node",
            pod("n1", client_pod),
            tcp(web1, 8080),
            Expect::only(&format!("web-1 {client}")),
        ),
        one(
            "pod -> pod, across nodes",
            pod("n1", client_pod),
            tcp(web2, 8080),
            Expect::only(&format!("web-2 {client}")),
        ),
        one(
            "the same, UDP",
            pod("n1", client_pod),
            udp(web2, 5353),
            Expect::only(&format!("web-2 {client}")),
        ),
        one("pod -> ClusterIP", pod("n1", client_pod), tcp(service, 80), both(&client.to_string())),
        one("outside -> NodePort on n1", on("ext"), tcp(n1, 30080), both(&join(1))),
        one("outside -> NodePort on n2", on("ext"), tcp(n2, 30080), both(&join(2))),
        one(
            "pod -> outside, SNAT",
            pod("n1", client_pod),
            Dial::tcp(OUTSIDE_IP, 9000),
            Expect::only(&format!("outside {n1}")),
        ),
        one(
            "pod -> gateway, SNAT",
            pod("n2", db_pod),
            Dial::tcp(EXT_IP, 9000),
            Expect::only(&format!("outside {n2}")),
        ),
        one("node -> pod, own", on("n1"), tcp(web1, 8080), Expect::only(&format!("web-1 {}", mp0(web1)))),
        one(
            "node -> pod, other node's",
            on("n1"),
            tcp(web2, 8080),
            Expect::only(&format!("web-2 {}", mp0(web1))),
        ),
        one("policy: denied", pod("n1", client_pod), tcp(db, 5432), Expect::Dropped),
        one("policy: allowed", pod("n1", web1_pod), tcp(db, 5432), Expect::only(&format!("db {web1}"))),
    ])
}

fn measure_one(bed: &Bed, one: Try) -> Row {
    let Try { what, from, dial, expect } = one;
    let (dial, samples) = match expect {
        // Nothing to take a time from.
        Expect::Dropped | Expect::Refused => (dial.within(Duration::from_secs(1)), 1),
        _ => (dial, SAMPLES),
    };
    // The first try settles and warms up; the times are those of the second.
    let (first, verdict) = expect::settle(bed, &from, dial.times(samples), &expect, LIMIT);
    let answered = !matches!(expect, Expect::Dropped | Expect::Refused);
    let measured = if verdict.is_ok() && answered {
        traffic::dial(bed, &from, dial.times(samples)).unwrap_or(first)
    } else {
        first
    };
    let ms = if verdict.is_ok() && answered { median_ms(&measured) } else { f64::NAN };
    let protocol = if dial.udp { " udp" } else { "" };
    Row {
        what,
        to: format!("{}{protocol}", SocketAddr::new(dial.host, dial.port)),
        path: path(bed, &from),
        from: from.to_string(),
        verdict,
        ms,
    }
}

/// The way of packets on the client's node, from its agent. The outside world has none. The programs carry a packet to
/// OVS and count it; it is OVS that decides and forwards, and the table says so.
fn path(bed: &Bed, from: &Place) -> String {
    let node = match from {
        Place::Pod { node, .. } => node,
        Place::Host(host) if node_index(host).is_some() => host,
        Place::Host(_) => return "-".into(),
    };
    match counters::node_path(bed, node).as_deref() {
        Ok("ebpf") => "ebpf > ovs".into(),
        Ok(other) => other.to_owned(),
        Err(_) => "unknown".into(),
    }
}

/// The time that a probe tells: `… (12.3 ms)`.
fn told_ms(outcome: &Result<String>) -> f64 {
    let said = outcome.as_ref().ok();
    said.and_then(|said| said.split_once('(')?.1.split(' ').next()?.parse().ok()).unwrap_or(f64::NAN)
}

/// Many bytes from the outside to a pod. If a hop on the path rejects segments as too long, they come one at a time, and not all of
/// them in time.
fn bulk(bed: &Bed, client: &str) -> Result<Row> {
    let from = pod("n1", client);
    let mut command = traffic::command(bed, &from, &bed.config().program("testbed"))?;
    let outcome = exec::output(command.args(["probe", "bulk", &OUTSIDE_IP.to_string(), "9001"]));
    let ms = told_ms(&outcome);
    Ok(Row {
        what: "outside -> pod, 16 MiB",
        to: format!("{OUTSIDE_IP}:9001"),
        path: path(bed, &from),
        from: from.to_string(),
        verdict: outcome
            .map(|said| said.split_once(" (").map_or(said.clone(), |(bytes, _)| bytes.to_owned()))
            .map_err(|e| format!("{e:#}")),
        ms,
    })
}

/// HTTPS through the service address of the API server, whose certificate must hold for it.
fn api_server(bed: &Bed, client: &str) -> Result<Row> {
    let from = pod("n1", client);
    let attempt = || -> Result<String> {
        let mut client = traffic::command(bed, &from, &bed.config().program("testbed"))?;
        client.args([
            "probe",
            "get",
            &API_SERVICE_IP.to_string(),
            "443",
            "/readyz",
            "--timeout",
            "3",
            "--ca",
        ]);
        exec::output(client.arg(bed.config().pki("ca.crt")))
    };
    let outcome = exec::retry(LIMIT, "the API server answers", || {
        let said = attempt()?;
        anyhow::ensure!(said.starts_with("200 "), "status {said}");
        Ok(said)
    })
    .and_then(|_| attempt());
    let ms = told_ms(&outcome);
    Ok(Row {
        what: "pod -> API server, HTTPS",
        to: format!("{API_SERVICE_IP}:443"),
        path: path(bed, &from),
        from: from.to_string(),
        verdict: outcome.map(|_| "200, certificate valid".to_owned()).map_err(|e| format!("{e:#}")),
        ms,
    })
}

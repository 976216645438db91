//! Connections to a cluster IP: they are answered, and where there is a flow cache it carries them, whichever node the backend is on.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use testbed::cluster::Bed;
use testbed::demo::Pods;
use testbed::exec;
use testbed::tools::RoundTrips;
use testbed::traffic::{self, Place};
use testbed::ui::Checks;

/// Where the echoes listen. The demonstration's policies say nothing of the web servers, so it is open.
pub(crate) const PORT: &str = "7100";
/// Port of the services.
const SERVICE_PORT: u16 = 7200;
/// Round trips of a connection.
const COUNT: u64 = 2000;

/// Both protocols, to a backend of this node and to one of another, by each address of the service.
pub(crate) fn check(bed: &Bed, ebpf: bool, checks: &mut Checks) -> Result<()> {
    let pods = Pods::list(bed)?;
    let _echoes = [Echo::start(bed, "n1", "web-1")?, Echo::start(bed, "n2", "web-2")?];
    for (service, pod, node) in [("near", "web-1", "n1"), ("far", "web-2", "n2")] {
        let mut backends = vec![IpAddr::from(pods.find(pod)?.1)];
        if bed.config().dual_stack {
            backends.push(pods.find_6(pod)?.1.into());
        }
        for address in create(bed, "shop", service, SERVICE_PORT, &backends)? {
            for udp in [false, true] {
                let protocol = if udp { "UDP" } else { "TCP" };
                let what = format!("{protocol} to {address}, with its backend on {node}");
                let outcome = one(bed, address, udp, ebpf.then_some(node));
                checks.check(what, outcome.map_err(|e| format!("{e:#}")));
            }
        }
    }
    for service in ["near", "far"] {
        bed.kubectl(&["delete", "service", "-n", "shop", service])?;
        bed.kubectl(&["delete", "endpointslice", "-n", "shop", "-l", &format!("of={service}")])?;
    }
    Ok(())
}

/// A connection of the client on n1. `backend`: the node where the flow cache is to deliver its packets.
fn one(bed: &Bed, address: IpAddr, udp: bool, backend: Option<&str>) -> Result<String> {
    let fast = |node: &str| delivered(bed, node);
    let before = backend.map(|node| Ok::<_, anyhow::Error>([fast(node)?, fast("n1")?])).transpose()?;
    let mut client = client(bed)?;
    client.args(["--count", &COUNT.to_string(), "--seconds", "30"]);
    client.args(udp.then_some("--udp")).args([&address.to_string(), &SERVICE_PORT.to_string()]);
    // OVN has to hear of the service first.
    let said = exec::retry(Duration::from_secs(20), "the service answers", || exec::output(&mut client))?;
    let seen: RoundTrips =
        serde_json::from_str(&said).with_context(|| format!("the client said {said:?}"))?;
    let mut text = format!("{} answers, {} lost", seen.answers, seen.lost);
    ensure!(seen.answers > 100, "{text}");
    let (Some(node), Some([there, here])) = (backend, before) else { return Ok(text) };
    // Where the backend is on the client's node both directions are delivered there.
    let (asked, answered) = (fast(node)?.saturating_sub(there), fast("n1")?.saturating_sub(here));
    text += &format!("; the flow cache delivered {asked} on {node}, {answered} on n1");
    // Most of them: only the first packets and the refreshes go through OVS.
    let wanted = if node == "n1" { seen.answers * 3 / 2 } else { seen.answers * 3 / 4 };
    ensure!(asked > wanted && answered > wanted, "{text}");
    Ok(text)
}

/// Packets that the flow cache of a node has delivered to pods.
fn delivered(bed: &Bed, node: &str) -> Result<u64> {
    let counters = bed.agent(node).counters()?;
    let endpoints =
        counters["endpoints"].as_array().with_context(|| format!("no endpoints in {counters}"))?;
    let one = |of: &Value| of["in"]["fast"]["packets"].as_u64();
    endpoints.iter().map(|of| one(of).with_context(|| format!("no fast packets in {of}"))).sum()
}

/// Makes a service with these backends; its addresses.
pub(crate) fn create(
    bed: &Bed,
    namespace: &str,
    name: &str,
    port: u16,
    backends: &[IpAddr],
) -> Result<Vec<IpAddr>> {
    for object in objects(namespace, name, port, backends) {
        exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), &object.to_string())?;
    }
    let query = ["get", "service", "-n", namespace, name, "-o", "jsonpath={.spec.clusterIPs[*]}"];
    let said = bed.kubectl(&query)?;
    said.split_whitespace().map(|ip| ip.parse().with_context(|| format!("address {ip}"))).collect()
}

/// A service without a selector, and a slice for each family.
fn objects(namespace: &str, name: &str, port: u16, backends: &[IpAddr]) -> Vec<Value> {
    let ports = |field: &str, port: &Value| -> Value {
        ["TCP", "UDP"]
            .map(|protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, field: port}))
            .into_iter()
            .collect()
    };
    let echo: u16 = PORT.parse().unwrap_or_default();
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": ports("port", &json!(port))}
    })];
    objects.extend(backends.iter().map(|backend| {
        let family = if backend.is_ipv6() { "IPv6" } else { "IPv4" };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}", family.to_lowercase()), "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name, "of": name}
            },
            "addressType": family,
            "ports": ports("port", &json!(echo)),
            "endpoints": [{"addresses": [backend.to_string()], "conditions": {"ready": true}}]
        })
    }));
    objects
}

/// The demonstration's client, on n1, before its arguments.
pub(crate) fn client(bed: &Bed) -> Result<Command> {
    let place = Place::Pod { node: "n1".into(), namespace: "shop".into(), name: "client".into() };
    let mut command = traffic::command(bed, &place, &bed.config().program("testbed"))?;
    command.args(["probe", "rr"]);
    Ok(command)
}

/// An echo in a pod; it ends with this.
pub(crate) struct Echo(Child);

impl Echo {
    /// Starts one.
    pub(crate) fn start(bed: &Bed, node: &str, pod: &str) -> Result<Self> {
        let place = Place::Pod { node: node.into(), namespace: "shop".into(), name: pod.into() };
        let mut command = traffic::command(bed, &place, &bed.config().program("testbed"))?;
        command.args(["probe", "echo", PORT]).stdin(Stdio::null());
        Ok(Self(command.spawn().context("cannot start an echo")?))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

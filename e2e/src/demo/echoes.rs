//! Echoes and services in front of them, for connections that last.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use testbed::cluster::Bed;
use testbed::tools::RoundTrips;
use testbed::traffic::{self, Place};

/// Where the echoes listen. The demonstration's policies say nothing of the web servers, so it is open.
pub const PORT: u16 = 7100;

/// CPU of the echoes and of who asks them.
pub(super) const CPU: &str = "0";

/// An echo at a place; it ends with this.
#[derive(Debug)]
pub struct Echo(Child);

impl Echo {
    /// Starts one in a pod of namespace `shop`.
    pub fn in_pod(bed: &Bed, node: &str, pod: &str) -> Result<Self> {
        Self::at(bed, &Place::Pod { node: node.into(), namespace: "shop".into(), name: pod.into() })
    }

    /// Starts one anywhere.
    pub fn at(bed: &Bed, place: &Place) -> Result<Self> {
        let command = traffic::command(bed, place, &bed.config().program("testbed"))?;
        Self::start(command).with_context(|| format!("in {place}"))
    }

    /// Starts one by a command that runs the traffic tool, before its arguments; it listens when this returns.
    pub fn start(mut command: Command) -> Result<Self> {
        command.args(["probe", "echo", "--cpu", CPU, &PORT.to_string()]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start an echo")?;
        let said = child.stdout.take().context("no pipe from an echo")?;
        let echo = Self(child);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).context("what an echo says")?;
        ensure!(!line.is_empty(), "an echo ended before it listened");
        Ok(echo)
    }
}

/// A client of echoes at a place, before its arguments.
pub fn client(bed: &Bed, place: &Place) -> Result<Command> {
    let mut command = traffic::command(bed, place, &bed.config().program("testbed"))?;
    command.args(["probe", "rr"]);
    Ok(command)
}

/// What a client saw. `said`: its output.
pub fn round_trips(said: &str) -> Result<RoundTrips> {
    serde_json::from_str(said).with_context(|| format!("the client said {said:?}"))
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service in front of echoes, without a selector.
#[derive(Clone, Debug)]
pub struct Service<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub port: u16,
    /// Addresses of the echoes, each with the name of its node.
    pub backends: &'a [(IpAddr, &'a str)],
    /// For both protocols.
    pub node_port: Option<u16>,
    /// `externalTrafficPolicy: Local`.
    pub local: bool,
}

impl Service<'_> {
    /// Makes it; its cluster IPs.
    pub fn create(&self, bed: &Bed) -> Result<Vec<IpAddr>> {
        for object in self.objects() {
            bed.apply(&object.to_string())?;
        }
        bed.cluster_ips(self.namespace, self.name)
    }

    /// Makes it with that cluster IP; its cluster IPs.
    pub fn create_at(&self, bed: &Bed, cluster_ip: IpAddr) -> Result<Vec<IpAddr>> {
        let mut objects = self.objects();
        objects[0]["spec"]["clusterIP"] = cluster_ip.to_string().into();
        for object in objects {
            bed.apply(&object.to_string())?;
        }
        bed.cluster_ips(self.namespace, self.name)
    }

    /// Deletes it.
    pub fn delete(&self, bed: &Bed) -> Result<()> {
        bed.delete::<core::Service>(self.namespace, self.name)?;
        bed.delete_labelled::<EndpointSlice>(self.namespace, &format!("of={}", self.name))
    }

    /// The service, and a slice for each family.
    fn objects(&self) -> Vec<Value> {
        let Self { namespace, name, .. } = self;
        let ports = |port: u16, node_port: Option<u16>| -> Value {
            ["TCP", "UDP"]
                .map(|protocol| {
                    let mut object =
                        json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": port});
                    if let Some(node_port) = node_port {
                        object["nodePort"] = node_port.into();
                    }
                    object
                })
                .into_iter()
                .collect()
        };
        let mut spec =
            json!({"ipFamilyPolicy": "PreferDualStack", "ports": ports(self.port, self.node_port)});
        if self.node_port.is_some() {
            spec["type"] = "NodePort".into();
            spec["externalTrafficPolicy"] = if self.local { "Local" } else { "Cluster" }.into();
        }
        let mut objects = vec![json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": spec
        })];
        for (family, six) in [("IPv4", false), ("IPv6", true)] {
            let endpoints: Vec<Value> = self
                .backends
                .iter()
                .filter(|(address, _)| address.is_ipv6() == six)
                .map(|(address, node)| {
                    json!({"addresses": [address.to_string()], "nodeName": node, "conditions": {"ready": true}})
                })
                .collect();
            if endpoints.is_empty() {
                continue;
            }
            objects.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{}", family.to_lowercase()), "namespace": namespace,
                    "labels": {"kubernetes.io/service-name": name, "of": name}
                },
                "addressType": family,
                "ports": ports(PORT, None),
                "endpoints": endpoints
            }));
        }
        objects
    }
}

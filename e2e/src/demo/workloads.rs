//! The pods of the demonstration: those of the examples where pods are stand-ins, and Deployments with the same
//! labels, ports and places where they are real.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use testbed::cluster::config::Runtime;
use testbed::cluster::{Bed, objects};

/// As an operator would write them.
const PODS: &str = include_str!("../../../deploy/examples/20-pods.yaml");

/// One of the Deployments: its name, which is its server's too, the label `app`, its node, and the ports of its
/// server by name.
struct Workload {
    name: &'static str,
    app: &'static str,
    node: &'static str,
    tcp: Option<(&'static str, u16)>,
    udp: Option<(&'static str, u16)>,
}

const WEB: Workload =
    Workload { name: "web-1", app: "web", node: "n1", tcp: Some(("http", 8080)), udp: Some(("query", 5353)) };

const WORKLOADS: &[Workload] = &[
    WEB,
    Workload { name: "web-2", node: "n2", ..WEB },
    Workload { name: "client", app: "client", tcp: None, udp: None, ..WEB },
    Workload { name: "db", app: "db", node: "n2", tcp: Some(("sql", 5432)), udp: None },
];

/// What `kubectl apply` is given, with a name for it.
pub(super) fn manifest(bed: &Bed) -> Result<(&'static str, String)> {
    if bed.config().runtime == Runtime::Netns {
        return Ok(("20-pods.yaml", PODS.to_owned()));
    }
    let image = bed.runtime().image(bed.config())?;
    let items: Vec<Value> = WORKLOADS.iter().map(|workload| deployment(workload, &image)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    Ok(("deployments", list.to_string()))
}

fn deployment(workload: &Workload, image: &str) -> Value {
    let Workload { name, app, node, tcp, udp } = workload;
    let port = |port: &Option<(&str, u16)>, protocol: &str| {
        port.map(|(name, number)| json!({"name": name, "containerPort": number, "protocol": protocol}))
    };
    let ports: Vec<Value> = [port(tcp, "TCP"), port(udp, "UDP")].into_iter().flatten().collect();
    let mut args = vec![if tcp.is_some() { "netexec" } else { "pause" }.to_owned()];
    args.extend(tcp.map(|(_, number)| format!("--http-port={number}")));
    args.extend(tcp.map(|_| format!("--udp-port={}", udp.map_or(-1, |(_, number)| i32::from(number)))));
    let ready =
        tcp.map(|(name, _)| json!({"httpGet": {"path": "/hostname", "port": name}, "periodSeconds": 1}));
    let labels = json!({"app": app, "slipstream.dev/example": name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    // By which its server is known.
                    "hostname": name,
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {"name": "main", "image": image, "args": args, "ports": ports, "readinessProbe": ready},
                    ],
                },
            },
        },
    })
}

/// The pods that run: name and addresses.
pub struct Pods(Vec<(String, Vec<IpAddr>)>);

impl Pods {
    /// Reads them.
    pub fn list(bed: &Bed) -> Result<Self> {
        let one = |pod: &Pod| -> Result<(String, Vec<IpAddr>)> {
            let (name, ips) = (pod.name_any(), objects::addresses(pod)?);
            ensure!(!ips.is_empty(), "pod {name} has no address");
            Ok((name, ips))
        };
        bed.list("shop", "")?.iter().map(one).collect::<Result<_>>().map(Self)
    }

    /// The pod of that name, or of the Deployment of that name, with its IPv4 address.
    pub fn find(&self, name: &str) -> Result<(&str, Ipv4Addr)> {
        let (pod, ips) = self.look_up(name)?;
        let ip = ips.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
        Ok((pod, ip.with_context(|| format!("pod {pod} has no IPv4 address"))?))
    }

    /// The pod of that name, or of the Deployment of that name, with its IPv6 address.
    pub fn find_6(&self, name: &str) -> Result<(&str, Ipv6Addr)> {
        let (pod, ips) = self.look_up(name)?;
        let ip = ips.iter().find_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
        Ok((pod, ip.with_context(|| format!("pod {pod} has no IPv6 address"))?))
    }

    fn look_up(&self, name: &str) -> Result<(&str, &[IpAddr])> {
        let made_for =
            |pod: &str| pod.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        let found = self.0.iter().find(|(pod, _)| made_for(pod));
        found.map(|(pod, ips)| (pod.as_str(), ips.as_slice())).with_context(|| format!("no pod of {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_its_own_name_or_its_deployments() {
        let pods = Pods(vec![
            ("web-1-5d-x2".into(), vec![Ipv4Addr::new(10, 0, 0, 1).into()]),
            ("web-10".into(), vec![Ipv4Addr::new(10, 0, 0, 2).into()]),
            ("db".into(), vec![Ipv4Addr::new(10, 0, 0, 3).into(), Ipv6Addr::LOCALHOST.into()]),
        ]);
        assert_eq!(pods.find("web-1").unwrap().0, "web-1-5d-x2");
        assert_eq!(pods.find("db").unwrap().1, Ipv4Addr::new(10, 0, 0, 3));
        assert_eq!(pods.find_6("db").unwrap().1, Ipv6Addr::LOCALHOST);
        assert!(pods.find("client").is_err() && pods.find_6("web-1").is_err());
    }

    #[test]
    fn a_deployment_serves_the_ports_of_its_example() {
        let text = deployment(&WEB, "image").to_string();
        assert!(text.contains("--http-port=8080") && text.contains("--udp-port=5353"), "{text}");
        let db = deployment(&WORKLOADS[3], "image").to_string();
        assert!(db.contains("--http-port=5432") && db.contains("--udp-port=-1"), "{db}");
    }
}

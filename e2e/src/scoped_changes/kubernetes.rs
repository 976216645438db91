//! Changes of Kubernetes' objects, each with what undoes it.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use testbed::cluster::Bed;

use super::change::{Change, Expected};
use super::scene::{NAMESPACE, apply, ingress, pod_of, service};

/// How long objects may take to go.
const GONE: Duration = Duration::from_secs(60);

/// Objects that come and go.
fn objects(name: &str, expected: Expected, object: Value) -> Change {
    let text = object.to_string();
    Change::new(
        name,
        expected,
        move |bed| apply(bed, std::slice::from_ref(&object)),
        move |bed| bed.remove(&text, GONE),
    )
}

fn label(pod: &'static str, from: &'static str, to: &'static str) -> Change {
    let set = |bed: &Bed, value: &str| -> Result<()> {
        bed.patch::<Pod>(NAMESPACE, pod, &json!({"metadata": {"labels": {"role": value}}}))
    };
    Change::new(
        &format!("role of {pod}: {from} to {to}"),
        Expected::Scopes,
        move |bed| set(bed, to),
        move |bed| set(bed, from),
    )
}

/// All of them.
pub(super) fn changes(bed: &Bed) -> Result<Vec<Change>> {
    let scoped = Expected::Scopes;
    let role = |role: &str| json!([{"podSelector": {"matchLabels": {"role": role}}}]);
    let namespaces = json!([{"namespaceSelector": {}}]);
    let block = json!([{"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.1.0/28"]}}]);
    let policy = |name: &str, spec: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    };
    let web = json!({"matchLabels": {"role": "web"}});
    let deny = json!({"podSelector": web, "policyTypes": ["Ingress"]});
    let egress = json!({"podSelector": web, "policyTypes": ["Egress"],
        "egress": [{"to": role("client"), "ports": [{"port": 80}, {"port": 8080}]}]});
    let all =
        json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}});
    let dual = bed.config().dual_stack;
    Ok(vec![
        objects("pod on n2", scoped, pod_of(bed, "other", "n2", "none")?),
        objects("pod on n2 that a policy's peers include", scoped, pod_of(bed, "other", "n2", "client")?),
        objects("pod on n1", scoped, pod_of(bed, "here", "n1", "none")?),
        objects("pod on n1 with a policy", scoped, pod_of(bed, "here", "n1", "guarded")?),
        objects("pod on n2 that is an endpoint", scoped, pod_of(bed, "other", "n2", "web")?),
        objects("pod on n1 that is an endpoint", scoped, pod_of(bed, "here", "n1", "web")?),
        label("g", "idle", "client"),
        label("c", "idle", "client"),
        label("c", "idle", "guarded"),
        label("f", "client", "web"),
        objects("policy by pods", scoped, ingress("p", "web", &role("client"), &json!([]))),
        objects(
            "policy by pods and port",
            scoped,
            ingress("p", "web", &role("idle"), &json!([{"port": 8080}])),
        ),
        objects(
            "policy with a named port",
            scoped,
            ingress("p", "web", &role("idle"), &json!([{"port": "http"}])),
        ),
        objects("policy by namespaces", scoped, ingress("p", "web", &namespaces, &json!([]))),
        objects("policy by block", scoped, ingress("p", "web", &block, &json!([]))),
        objects("policy that refuses", scoped, policy("p", deny)),
        objects("policy for egress", scoped, policy("p", egress)),
        objects("policy for all pods", scoped, policy("p", all)),
        objects("service", scoped, service("s", "web", false, dual)),
        objects("service with affinity", scoped, service("s", "web", true, dual)),
        objects("service without endpoints", scoped, service("s", "nobody", false, dual)),
        objects(
            "namespace",
            scoped,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "scoped-other"}}),
        ),
        objects("node", Expected::Any, node),
    ])
}

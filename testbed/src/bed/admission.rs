//! The policies of `deploy/admission.yaml` on the API server.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Bed;
use super::access::Actor;
use crate::exec;

/// The policies and their bindings.
pub const MANIFEST: &str = include_str!("../../../deploy/admission.yaml");
/// How long the API server may take to act by a policy. It looks for new ones once a second.
const IN_FORCE: Duration = Duration::from_secs(30);

/// Waits until every policy is in force: what each forbids is refused, in requests that change nothing.
pub fn wait_in_force(bed: &Bed) -> Result<()> {
    bed.api(async || {
        let admin = bed.client(None).await?;
        let agent = bed.client(Some(&Actor::agent(None).with_all_rights())).await?;
        let end = Instant::now() + exec::patient(IN_FORCE);
        loop {
            match in_force(&admin, &agent).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error.context("admission policies")),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    })
}

async fn in_force(admin: &Client, agent: &Client) -> Result<()> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "probe", "annotations": {"k8s.ovn.org/pod-networks": "{}"}},
        "spec": {
            "serviceAccountName": "slipstream-controller",
            "containers": [{"name": "main", "image": "none"}],
        },
    }))?;
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "kube-system");
    refused("slipstream-pod-networks", pods.create(&dry, &pod).await)?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "probe", "annotations": {"k8s.ovn.org/pod-networks": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    let bindings: Api<Binding> = Api::namespaced(admin.clone(), "kube-system");
    let outcome = bindings.create(&dry, &serde_json::from_value(binding)?).await;
    refused("slipstream-pod-bindings", outcome)?;
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "probe", "annotations": {"k8s.ovn.org/node-subnets": "{}"}},
    }))?;
    refused("slipstream-node-annotations", Api::<Node>::all(admin.clone()).create(&dry, &node).await)?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "probe"}}))?;
    refused("slipstream-node-agent", Api::<Node>::all(agent.clone()).create(&dry, &node).await)
}

fn refused<T>(policy: &str, outcome: kube::Result<T>) -> Result<()> {
    match outcome {
        Ok(_) => bail!("policy {policy} is not in force"),
        // By that policy and not by something else.
        Err(kube::Error::Api(status)) if status.message.contains(&format!("'{policy}'")) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the API server's own look at the expressions finds nothing wrong with them; says how many policies there are.
pub async fn type_checked(admin: &Client) -> Result<String> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    let mut count = 0;
    for policy in policies.list(&ListParams::default()).await? {
        let name = policy.name_any();
        if !name.starts_with("slipstream-") {
            continue;
        }
        let status = policy.status.unwrap_or_default();
        ensure!(status.observed_generation == policy.metadata.generation, "{name} is not looked at yet");
        let warnings = status.type_checking.and_then(|checking| checking.expression_warnings);
        if let Some(warning) = warnings.unwrap_or_default().first() {
            bail!("{name}: {}: {}", warning.field_ref, warning.warning);
        }
        count += 1;
    }
    ensure!(count > 0, "there are no policies");
    Ok(format!("{count} policies"))
}

#[cfg(test)]
mod tests {
    use api::annotation;

    use super::MANIFEST;

    /// The policy of that name.
    fn policy(name: &str) -> &'static str {
        MANIFEST
            .split("\n---\n")
            .find(|object| {
                object.contains("kind: ValidatingAdmissionPolicy\n")
                    && object.contains(&format!("metadata: {{name: {name}}}"))
            })
            .unwrap()
    }

    /// The annotations that expressions name: between single quotes, by the domains of our keys.
    fn keys(text: &str) -> Vec<&str> {
        let mut keys: Vec<_> = ["k8s.ovn.org/", "slipstream.dev/"]
            .into_iter()
            .flat_map(|domain| text.match_indices(domain))
            .filter(|(at, _)| text[..*at].ends_with('\''))
            .filter_map(|(at, _)| text[at..].split('\'').next())
            // The type of conditions begins with it.
            .filter(|key| *key != "slipstream.dev/")
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    const OF_CONTROLLER: [&str; 3] =
        [annotation::NODE_SUBNETS, annotation::NODE_ID, annotation::CLUSTER_NETWORK];
    const OF_AGENT: [&str; 9] = [
        annotation::ZONE_NAME,
        annotation::NODE_ENCAP_IPS,
        annotation::NODE_CHASSIS_ID,
        annotation::L3_GATEWAY_CONFIG,
        annotation::HOST_CIDRS,
        annotation::NODE_PRIMARY_IFADDR,
        annotation::NODE_MASQUERADE_SUBNET,
        annotation::USERSPACE_TSO,
        annotation::PHYSICAL_NETWORKS,
    ];

    fn sorted(lists: &[&[&'static str]]) -> Vec<&'static str> {
        let mut all = lists.concat();
        all.sort_unstable();
        all
    }

    #[test]
    fn policies_name_the_annotations_that_the_programs_write() {
        assert_eq!(keys(policy("slipstream-pod-networks")), [annotation::POD_NETWORKS]);
        assert_eq!(keys(policy("slipstream-pod-bindings")), [annotation::POD_NETWORKS]);
        assert_eq!(keys(policy("slipstream-node-annotations")), sorted(&[&OF_CONTROLLER, &OF_AGENT]));
        assert_eq!(keys(policy("slipstream-node-agent")), sorted(&[&OF_AGENT]));
    }

    #[test]
    fn every_policy_is_bound_and_denies() {
        let bound: Vec<_> = MANIFEST.split("\n---\n").filter(|o| o.contains("PolicyBinding\n")).collect();
        let policies = MANIFEST.matches("kind: ValidatingAdmissionPolicy\n").count();
        assert_eq!((bound.len(), policies), (5, 5));
        assert!(bound.iter().all(|object| object.contains("validationActions: [Deny]")));
        assert_eq!(MANIFEST.matches("failurePolicy: Fail").count(), policies);
    }
}

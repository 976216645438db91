//! Certificates of nodes. An agent asks by a CertificateSigningRequest; the API server says in it which node the agent's token is bound
//! to, and the certificate's name is that node's chassis, so that no node can act for another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::annotation::NODE_CHASSIS_ID;
use api::certificate::{AGENT, NODE_OF_TOKEN, SIGNER};
use futures::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use super::authority::{self, Authority};

/// How often requests that could not be served are tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Judges and signs requests.
#[derive(Debug)]
pub(super) struct Signer {
    requests: Api<CertificateSigningRequest>,
    nodes: Api<Node>,
    /// User name of agents.
    account: String,
}

impl Signer {
    pub(super) fn new(client: kube::Client, namespace: &str) -> Self {
        Self {
            requests: Api::all(client.clone()),
            nodes: Api::all(client),
            account: format!("system:serviceaccount:{namespace}:{AGENT}"),
        }
    }

    /// Signs for as long as there is an authority. Never returns.
    pub(super) async fn run(self, authority: watch::Receiver<Option<Arc<Authority>>>) -> Result<()> {
        let (reader, writer) = reflector::store();
        let config = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
        let watch = watcher(self.requests.clone(), config).default_backoff();
        let mut events = std::pin::pin!(reflector(writer, watch));
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        let error = api::error::chain(&error);
                        tracing::warn!(error, "watch of certificate requests; retrying");
                        continue;
                    }
                    None => anyhow::bail!("the watch of certificate requests has ended"),
                },
                () = tokio::time::sleep(RETRY) => {}
            }
            let Some(authority) = authority.borrow().clone() else { continue };
            for request in reader.state().iter().filter(|request| is_open(request)) {
                if let Err(error) = self.serve(request, &authority).await {
                    let (request, error) = (request.name_any(), format!("{error:#}"));
                    tracing::warn!(request, error, "certificate request; retrying");
                }
            }
        }
    }

    async fn serve(&self, request: &CertificateSigningRequest, authority: &Authority) -> Result<()> {
        let name = request.name_any();
        let pem = String::from_utf8_lossy(&request.spec.request.0).into_owned();
        let nodes = self.nodes.list_metadata(&ListParams::default().match_any()).await.context("nodes")?;
        let params = PatchParams::default();
        let condition = |kind: &str, reason: &str, message: String| {
            json!({"status": {"conditions": [
                {"type": kind, "status": "True", "reason": reason, "message": message}]}})
        };
        let judged = judge(request, &pem, &self.account, &nodes.items);
        let (chassis, node) = match judged {
            Ok(judged) => judged,
            Err(Refusal::NotYet(why)) => anyhow::bail!(why),
            Err(Refusal::Never(why)) => {
                let denied = condition("Denied", "SlipstreamRefused", why.clone());
                let patch = Patch::Merge(&denied);
                self.requests
                    .patch_subresource("approval", &name, &params, &patch)
                    .await
                    .context("denial")?;
                tracing::warn!(request = name, why, "certificate request denied");
                return Ok(());
            }
        };
        let certificate = authority.sign(&pem, &chassis)?;
        let approved =
            condition("Approved", "SlipstreamApproved", format!("chassis {chassis} of node {node}"));
        let patch = Patch::Merge(&approved);
        self.requests.patch_subresource("approval", &name, &params, &patch).await.context("approval")?;
        let bytes = k8s_openapi::ByteString(certificate.into_bytes());
        let patch = Patch::Merge(json!({"status": {"certificate": bytes}}));
        self.requests.patch_status(&name, &params, &patch).await.context("certificate")?;
        tracing::info!(request = name, node, chassis, "certificate of a node signed");
        Ok(())
    }
}

/// Whether a request has neither a certificate nor a refusal.
fn is_open(request: &CertificateSigningRequest) -> bool {
    let Some(status) = &request.status else { return true };
    let is_refused = |kind: &str| matches!(kind, "Denied" | "Failed");
    let conditions = status.conditions.iter().flatten();
    status.certificate.is_none() && !conditions.map(|c| c.type_.as_str()).any(is_refused)
}

/// Why a request is not granted.
#[derive(Debug)]
enum Refusal {
    /// The request will never be signed, for this reason.
    Never(String),
    /// The node has not said yet which chassis it is.
    NotYet(String),
}

/// The chassis and the node that a request is for.
fn judge(
    request: &CertificateSigningRequest,
    pem: &str,
    account: &str,
    nodes: &[PartialObjectMeta<Node>],
) -> std::result::Result<(String, String), Refusal> {
    let never = |why| Err(Refusal::Never(why));
    let spec = &request.spec;
    if spec.username.as_deref() != Some(account) {
        return never(format!("it is from {:?}, and only {account} may ask", spec.username.as_deref()));
    }
    let extra: BTreeMap<_, _> = spec.extra.iter().flatten().collect();
    let bound = extra.get(&NODE_OF_TOKEN.to_owned()).map(|values| values.as_slice());
    let Some([node]) = bound else {
        return never(format!("the token of the request is bound to no node ({NODE_OF_TOKEN})"));
    };
    let chassis = match authority::name_of(pem) {
        Ok(chassis) => chassis,
        Err(error) => return never(format!("spec.request: {error:#}")),
    };
    let claims = |of: &&PartialObjectMeta<Node>| of.annotations().get(NODE_CHASSIS_ID) == Some(&chassis);
    // A node that claims another one's chassis later than that one was made does not get it.
    let first = nodes
        .iter()
        .filter(claims)
        .min_by_key(|node| (node.creation_timestamp().map(|time| time.0), node.name_any()));
    match first {
        Some(first) if first.name_any() == *node => Ok((chassis, node.clone())),
        Some(first) => never(format!(
            "chassis {chassis} is node {}'s, and the token is bound to {node}",
            first.name_any()
        )),
        None => Err(Refusal::NotYet(format!("node {node} has no annotation {NODE_CHASSIS_ID}: {chassis}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::tests::request as pem_for;
    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:kube-system:slipstream-node-agent";

    fn node(name: &str, chassis: &str, made: &str) -> PartialObjectMeta<Node> {
        serde_json::from_value(json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": name, "creationTimestamp": made,
            "annotations": {NODE_CHASSIS_ID: chassis}}}))
        .unwrap()
    }

    fn judged(user: &str, bound: &[&str], chassis: &str) -> std::result::Result<(String, String), Refusal> {
        let pem = pem_for(chassis);
        let request = serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {
            "request": k8s_openapi::ByteString(pem.clone().into_bytes()), "signerName": SIGNER,
            "username": user, "extra": {NODE_OF_TOKEN: bound}}}))
        .unwrap();
        assert!(is_open(&request));
        let nodes = [
            node("n1", "a", "2026-01-01T00:00:00Z"),
            node("n2", "b", "2026-01-02T00:00:00Z"),
            node("n3", "a", "2026-01-03T00:00:00Z"),
        ];
        judge(&request, &pem, ACCOUNT, &nodes)
    }

    #[test]
    fn a_node_gets_its_own_chassis_and_no_other() {
        assert_eq!(judged(ACCOUNT, &["n1"], "a").unwrap(), ("a".to_owned(), "n1".to_owned()));
        for (user, bound, chassis, why) in [
            (ACCOUNT, &["n2"][..], "a", "node n1's"),
            (ACCOUNT, &["n3"], "a", "node n1's"),
            (ACCOUNT, &["n1"], "c", "no annotation"),
            (ACCOUNT, &[], "a", "bound to no node"),
            ("system:node:n1", &["n1"], "a", "only"),
        ] {
            let refusal = judged(user, bound, chassis).unwrap_err();
            assert_eq!(matches!(refusal, Refusal::NotYet(_)), chassis == "c");
            let (Refusal::Never(said) | Refusal::NotYet(said)) = refusal;
            assert!(said.contains(why), "{said}");
        }
    }
}

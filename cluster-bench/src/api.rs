//! The API server: how it is reached, and its refusals in words that help.

use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::api::{Api, ListParams, LogParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::objects::{LABEL, MINE};
use crate::options::Where;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take. A client says how far it is more often.
const ANSWER: Duration = Duration::from_secs(30);

/// A cluster, and the namespace in it.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    url: String,
}

impl Cluster {
    /// Reads the kubeconfig. Nothing is asked yet.
    pub(crate) async fn open(place: &Where) -> Result<Self> {
        // Fails only when a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = match &place.kubeconfig {
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))
            }
            None => Kubeconfig::read().context("no --kubeconfig, and that of kubectl cannot be read"),
        }?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let mut config = config.context("kubeconfig: its current context cannot be used")?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(ANSWER);
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).context("kubeconfig: no client can be made of it")?;
        Ok(Self { client, namespace: place.namespace.clone(), url })
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// All pods of runs.
    pub(crate) async fn list_pods(&self) -> Result<Vec<Pod>> {
        self.pods()
            .list(&mine())
            .await
            .map(|list| list.items)
            .map_err(|error| self.explain(error, "list pods"))
    }

    /// Events of a pod, oldest first. None where they cannot be read: they only explain.
    pub(crate) async fn events(&self, pod: &str) -> Vec<Event> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let of = ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={pod}"));
        let mut events = api.list(&of).await.map(|list| list.items).unwrap_or_default();
        events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
        events
    }

    /// What a pod has said. Empty where that cannot be read.
    pub(crate) async fn last_log(&self, pod: &str) -> String {
        let params = LogParams { tail_lines: Some(5), ..LogParams::default() };
        self.pods().logs(pod, &params).await.unwrap_or_default()
    }

    /// An error, with what was to be done and what helps.
    pub(crate) fn explain(&self, error: kube::Error, doing: &str) -> Error {
        match error {
            kube::Error::Api(status) => refused(status.code, &status.message, doing),
            other => {
                // The chain of causes; `api::error::chain` belongs to the product, on which this package does not depend.
                let mut text = other.to_string();
                let mut cause = std::error::Error::source(&other);
                while let Some(inner) = cause {
                    let more = inner.to_string();
                    if !text.contains(&more) {
                        text = format!("{text}: {more}");
                    }
                    cause = inner.source();
                }
                anyhow!("cannot {doing}: the API server at {} is not reached: {text}", self.url)
            }
        }
    }
}

/// What the API server has refused.
fn refused(code: u16, message: &str, doing: &str) -> Error {
    match code {
        401 => anyhow!(
            "cannot {doing}: the API server does not know the user of this kubeconfig (401: {message})"
        ),
        // The message names user, verb and resource.
        403 => anyhow!("cannot {doing}: {message}; `run --print-rbac` prints what gives a user the rights"),
        _ => anyhow!("cannot {doing}: {message} ({code})"),
    }
}

/// Selects what this program has made.
pub(crate) fn mine() -> ListParams {
    ListParams::default().labels(&format!("{LABEL}={MINE}"))
}

/// Whether there is no such object.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The API server's words, if it forbids something.
pub(crate) fn forbidden(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if status.code == 403 => Some(status.message.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_is_forbidden_and_what_helps() {
        let error =
            refused(403, "pods is forbidden: User \"x\" cannot create resource \"pods\"", "create pods");
        let text = error.to_string();
        assert!(text.contains("cannot create resource \"pods\"") && text.contains("--print-rbac"), "{text}");
        assert!(refused(401, "Unauthorized", "list pods").to_string().contains("does not know the user"));
    }
}

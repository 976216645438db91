//! Everything that talks to the API server: watches, annotations, events, the lease.

pub mod annotate;
pub mod events;
pub mod lease;
pub mod watch;

use anyhow::Context;

/// A client by kubeconfig file, or by the pod's service account where none is given.
pub async fn client(kubeconfig: Option<&std::path::Path>) -> anyhow::Result<kube::Client> {
    let config = match kubeconfig {
        Some(path) => {
            let shown = path.display();
            let file = kube::config::Kubeconfig::read_from(path)
                .with_context(|| format!("--kubeconfig {shown}: a readable kubeconfig file is needed"))?;
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {shown}: its current context cannot be used"))?
        }
        None => kube::Config::incluster()
            .context("no --kubeconfig given and not running in a pod with a service account")?,
    };
    let server = config.cluster_url.clone();
    tracing::info!(%server, "Kubernetes API");
    kube::Client::try_from(config)
        .with_context(|| format!("API server {server}: the client cannot be set up"))
}

/// An error with all its causes: what a client of the API says alone is often no more than "connect".
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // Some errors repeat their causes.
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

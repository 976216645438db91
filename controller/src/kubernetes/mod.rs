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
    kube::Client::try_from(config)
        .with_context(|| format!("API server {server}: the client cannot be set up"))
}

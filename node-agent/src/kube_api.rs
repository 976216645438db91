//! The client of the Kubernetes API: where the server is, and how long it may take.

use std::time::Duration;

use anyhow::Context;
use kube::client::ClientBuilder;
use kube::runtime::watcher;
use tower::util::MapFutureLayer;

use crate::args::Config;

/// How long a call that writes may take, answer included.
pub const CALL: Duration = Duration::from_secs(10);
/// How long the server may take to begin an answer; it reads all of a long list before that.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a watch lasts before it is made anew, in seconds. Without a word for little longer it is taken for dead: the server
/// may have gone without a sign.
const WATCH_SECONDS: u32 = 60;
/// Nothing may be silent for longer: what a watch lasts, and what it is given beyond that.
const SILENCE: Duration = Duration::from_secs(90);

/// A client of the Kubernetes API.
///
/// # Errors
/// The kubeconfig or the service account cannot be used; the error names the flag.
pub async fn client(config: &Config) -> anyhow::Result<kube::Client> {
    // Fails when it was installed before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut kube_config = match &config.kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path);
            let file = file.with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default())
                .await
                .with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?
        }
        None => kube::Config::incluster().context("no --kubeconfig, and not inside a cluster")?,
    };
    if let Some(url) = &config.api_server {
        kube_config.cluster_url = url.parse().with_context(|| {
            format!("--api-server `{url}`: a URL is needed, such as https://172.18.0.10:6443")
        })?;
    }
    kube_config.read_timeout = Some(SILENCE);
    tracing::info!(server = %kube_config.cluster_url, "Kubernetes API");
    let builder = ClientBuilder::try_from(kube_config).context("client of the Kubernetes API")?;
    let in_time = MapFutureLayer::new(|answer| async move {
        let late = |_elapsed| format!("no answer from the Kubernetes API within {ANSWER:?}").into();
        tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    });
    Ok(builder.with_layer(&in_time).build())
}

/// How everything is watched: the first list comes out of the server's memory instead of its database, which a hundred agents
/// that start at once would wear out, and a watch that died without a word is noticed.
pub fn watching() -> watcher::Config {
    watcher::Config::default().any_semantic().timeout(WATCH_SECONDS)
}

/// What a call gave, or that it took longer than [`CALL`].
///
/// # Errors
/// The call's own, or the time.
pub async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(CALL, call).await {
        Ok(done) => Ok(done?),
        Err(_elapsed) => anyhow::bail!("no answer from the Kubernetes API within {CALL:?}"),
    }
}

//! The certificates of OVN's databases. There are two authorities, so that a node's certificate is none of the servers: one signs
//! the databases' servers, northd and the controller, and the northbound database accepts no others; the other one signs nodes, which
//! the southbound database accepts too, in the role `ovn-controller`.
//!
//! Every replica of the controller does this, the leader or not: nothing can be written into a database before there are certificates,
//! and what two do at the same time the API server's versions sort out.

mod authority;
mod signer;
mod store;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use supervision::Tasks;
use tokio::sync::watch;

use authority::Authority;
use store::Store;

/// Names of the Secrets that hold authorities and certificates.
pub use store::SECRETS;

/// How often everything is looked through. A certificate is renewed when a third of its 90 days is left.
const LOOK: Duration = Duration::from_secs(600);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What is made, and where it is put.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of Secrets, ConfigMap, and the agents' service account.
    pub namespace: String,
    /// Directory of the controller's own certificate.
    pub directory: PathBuf,
    /// Whether authorities that are missing are made here; otherwise they are waited for.
    pub create: bool,
}

/// Starts the tasks.
pub fn start(tasks: &Tasks, client: &kube::Client, settings: Settings) {
    let (nodes, authority) = watch::channel(None);
    let signer = signer::Signer::new(client.clone(), &settings.namespace);
    tasks.spawn("certificates", keep(Store::new(client.clone(), settings), nodes));
    tasks.spawn("certificate-requests", signer.run(authority));
}

/// Keeps everything there and valid. Never returns.
async fn keep(store: Store, nodes: watch::Sender<Option<Arc<Authority>>>) -> Result<()> {
    let mut wait = RETRY.0;
    loop {
        match store.keep().await {
            Ok(authority) => {
                nodes.send_replace(Some(Arc::new(authority)));
                wait = RETRY.0;
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "certificates of OVN's databases; retrying");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    }
}

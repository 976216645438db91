//! Whether the API server can be reached, which decides whether a migration of an uplink stays.

use std::time::Duration;

/// Interval of requests that check the API server.
pub(super) const PROBES: Duration = Duration::from_secs(1);
/// Timeout of such a request.
const ANSWER: Duration = Duration::from_secs(5);

/// Waits until the API server responds.
pub(super) async fn until_answers(client: &kube::Client) {
    while !answers(client).await {
        tokio::time::sleep(PROBES).await;
    }
}

/// Whether the API server responds, with any status.
pub(super) async fn answers(client: &kube::Client) -> bool {
    match tokio::time::timeout(ANSWER, client.apiserver_version()).await {
        Ok(Ok(_) | Err(kube::Error::Api(_))) => true,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the API server does not respond");
            false
        }
        Err(_elapsed) => false,
    }
}

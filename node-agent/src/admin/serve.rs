//! HTTP servers of the agent: metrics, health and status on a TCP port; these and the admin API on a unix socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{View, http, router};
use crate::kernel::unix_socket;
use crate::node::Node;

/// Retry interval for listening on a port or socket.
const RETRY: Duration = Duration::from_secs(30);

/// HTTP application of the agent. Clones share it.
#[derive(Clone)]
pub struct Application {
    node: Node,
    view: Arc<dyn View>,
    stopped: watch::Receiver<bool>,
}

impl Application {
    /// Creates the application of `node`. Servers stop when `stopped` becomes true.
    pub fn new(node: Node, view: Arc<dyn View>, stopped: watch::Receiver<bool>) -> Self {
        Self { node, view, stopped }
    }

    /// Read-only routes, served without authentication.
    fn readable(&self) -> Router {
        http::router(self.node.clone(), Arc::clone(&self.view))
    }

    /// Serves metrics, health and status at `address`. While the address is in use, the condition `metrics` is not met and listening
    /// is retried.
    ///
    /// # Errors
    /// The server failed.
    pub async fn on_port(self, address: SocketAddr) -> std::io::Result<()> {
        let mut reported = false;
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::error!(%address, %error, "cannot listen for metrics and health (--metrics-bind-address); retrying");
                    }
                    self.node.health.not_met("metrics", format!("{address}: {error}"));
                }
            }
            tokio::time::sleep(RETRY).await;
        };
        if reported {
            self.node.health.met("metrics");
        }
        let application = self.readable();
        axum::serve(listener, application).with_graceful_shutdown(until(self.stopped)).await
    }

    /// Serves all routes, for `slipctl`, on a unix socket that only root can access. Retries while the socket cannot be created.
    ///
    /// # Errors
    /// The server failed.
    pub async fn on_socket(self, socket: PathBuf) -> std::io::Result<()> {
        let listener = loop {
            match unix_socket::listen(&socket) {
                Ok(listener) => break listener,
                Err(error) => {
                    tracing::error!(socket = %socket.display(), %error, "cannot listen for slipctl (--admin-socket); retrying");
                }
            }
            tokio::time::sleep(RETRY).await;
        };
        let application = self.readable().merge(router(Arc::clone(&self.view)));
        axum::serve(listener, application).with_graceful_shutdown(until(self.stopped)).await
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender was dropped: the process is exiting.
    let _ = stopped.wait_for(|s| *s).await;
}

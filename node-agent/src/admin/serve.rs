//! Listening: one application on a port, and whole on a unix socket.

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

/// Before a port or socket that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// The agent's HTTP application. Clones share it.
#[derive(Clone)]
pub struct Application {
    node: Node,
    view: Arc<dyn View>,
    stopped: watch::Receiver<bool>,
}

impl Application {
    /// The application of `node`, which ends when `stopped` becomes true.
    pub fn new(node: Node, view: Arc<dyn View>, stopped: watch::Receiver<bool>) -> Self {
        Self { node, view, stopped }
    }

    /// What anybody who reaches the port may read.
    fn readable(&self) -> Router {
        http::router(self.node.clone(), Arc::clone(&self.view))
    }

    /// Serves metrics, health and status at `address`. While the port is taken, the condition `metrics` is not met, and it is tried
    /// again.
    ///
    /// # Errors
    /// The server ended.
    pub async fn on_port(self, address: SocketAddr) -> std::io::Result<()> {
        let mut reported = false;
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::error!(%address, %error, "metrics and health are not served (--metrics-bind-address)");
                    }
                    self.node.health.bad("metrics", format!("{address}: {error}"));
                }
            }
            tokio::time::sleep(RETRY).await;
        };
        if reported {
            self.node.health.good("metrics");
        }
        let application = self.readable();
        axum::serve(listener, application).with_graceful_shutdown(until(self.stopped)).await
    }

    /// Serves all of it, for `slipctl`, on a unix socket that only root reaches. While it cannot be made, it is tried again.
    ///
    /// # Errors
    /// The server ended.
    pub async fn on_socket(self, socket: PathBuf) -> std::io::Result<()> {
        let listener = loop {
            match unix_socket::listen(&socket) {
                Ok(listener) => break listener,
                Err(error) => {
                    tracing::error!(socket = %socket.display(), %error, "slipctl is not served (--admin-socket)");
                }
            }
            tokio::time::sleep(RETRY).await;
        };
        let application = self.readable().merge(router(Arc::clone(&self.view)));
        axum::serve(listener, application).with_graceful_shutdown(until(self.stopped)).await
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the program.
    let _ = stopped.wait_for(|s| *s).await;
}

//! Health check node ports of services with external traffic policy Local: load balancers check whether a node has backends. The
//! response has the format of kube-proxy.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use api::NamespacedName;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use parking_lot::RwLock;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::services::NodeService;

/// Response header with the number of backends, used by load balancers as weight.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Response on one port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    service: NamespacedName,
    backends: usize,
}

#[derive(Debug)]
struct Server {
    answer: Arc<RwLock<Answer>>,
    task: JoinHandle<()>,
}

/// The health check servers of this node.
#[derive(Debug, Default)]
pub struct HealthServers {
    servers: HashMap<u16, Server>,
}

impl HealthServers {
    /// Serves exactly the health check node ports of `services`. Ports that cannot be opened are logged and retried by the next call.
    pub async fn update(&mut self, services: &[NodeService]) {
        let mut wanted: BTreeMap<u16, Answer> = BTreeMap::new();
        for service in services {
            if let Some(port) = service.health_check_port {
                wanted.entry(port).or_insert_with(|| Answer {
                    service: service.name.clone(),
                    backends: service.local_backends,
                });
            }
        }
        self.servers.retain(|port, server| {
            let keep = wanted.contains_key(port) && !server.task.is_finished();
            if !keep {
                server.task.abort();
            }
            keep
        });
        for (port, answer) in wanted {
            if let Some(server) = self.servers.get(&port) {
                *server.answer.write() = answer;
                continue;
            }
            let service = answer.service.clone();
            match start(port, answer).await {
                Ok(server) => {
                    info!(port, %service, "health check node port open");
                    self.servers.insert(port, server);
                }
                Err(error) => warn!(port, %service, %error, "cannot listen on the health check node port"),
            }
        }
    }
}

impl Drop for HealthServers {
    fn drop(&mut self) {
        for server in self.servers.values() {
            server.task.abort();
        }
    }
}

async fn start(port: u16, answer: Answer) -> std::io::Result<Server> {
    // One socket for both families; IPv4 only if the kernel has no IPv6.
    let listener = match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await?,
    };
    let answer = Arc::new(RwLock::new(answer));
    let app = Router::new().fallback(handle).with_state(Arc::clone(&answer));
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            warn!(port, %error, "health check node port server ended");
        }
    });
    Ok(Server { answer, task })
}

async fn handle(State(answer): State<Arc<RwLock<Answer>>>) -> impl IntoResponse {
    let answer = answer.read().clone();
    let status = if answer.backends > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (
        status,
        [(header::CONTENT_TYPE, "application/json".to_owned()), (WEIGHT, answer.backends.to_string())],
        body(&answer),
    )
}

fn body(answer: &Answer) -> String {
    let NamespacedName { namespace, name } = &answer.service;
    json!({
        "service": { "namespace": namespace, "name": name },
        "localEndpoints": answer.backends,
        "serviceProxyHealthy": true,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::gateway::services::fixture;

    async fn get(port: u16) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        Some(text)
    }

    #[tokio::test]
    async fn a_node_with_backends_says_200_without_503_and_the_port_closes_with_the_service() {
        // A free port, instead of the service's own.
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let service = |node: &str| {
            let mut services = fixture::reference_services(node);
            services.retain(|s| s.health_check_port.is_some());
            services[0].health_check_port = Some(free);
            services
        };
        let mut servers = HealthServers::default();
        servers.update(&service("n1")).await;
        let text = get(free).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.to_lowercase().contains("x-load-balancing-endpoint-weight: 1"), "{text}");
        assert!(text.contains(r#""name":"lb-local""#) && text.contains(r#""localEndpoints":1"#), "{text}");
        servers.update(&service("n2")).await;
        let text = get(free).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        servers.update(&[]).await;
        tokio::task::yield_now().await;
        assert!(get(free).await.is_none());
    }
}

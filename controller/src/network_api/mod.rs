//! Virtual networks over HTTP: create, delete, query and update, as `slipctl network` does it, for programs that speak neither kubectl nor
//! the API server's own language.
//!
//! Every request carries a token of Kubernetes and is carried out with it: the API server knows the caller, decides by the caller's
//! rights and writes the caller into its audit log. The controller adds none of its own rights.

mod answer;
mod operations;
#[cfg(test)]
mod tests;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use api::NamespacedName;
use api::virtual_network::check_name;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use kube::config::AuthInfo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::{ErrorKind, Metrics};
use answer::{Answer, Failure};
use operations::Networks;

/// Bytes of a request's body at most.
const MAX_BODY: usize = 64 * 1024;
/// Requests that are carried out at once; a creation waits for the controller.
const AT_ONCE: usize = 32;
/// How long the controller may take to judge a network.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the API listens.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address and port.
    pub address: SocketAddr,
    /// PEM files of the server's certificate and of its key; read again when they change.
    pub tls: Option<(PathBuf, PathBuf)>,
}

impl Settings {
    /// Fails where tokens would go over a network in the clear.
    ///
    /// # Errors
    /// The address is no loopback address, and there is no certificate.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.tls.is_some() || self.address.ip().is_loopback(),
            "--network-api-bind-address {}: callers send their tokens, so --network-api-cert and --network-api-key are needed; without \
             them the address must be a loopback address",
            self.address
        );
        Ok(())
    }
}

/// What all requests share.
#[derive(Clone)]
struct Shared {
    /// The API server, without credentials.
    server: kube::Config,
    places: Arc<Semaphore>,
    patience: Duration,
}

/// Binds the address and returns what serves it. `config`: for the API server; its credentials are not used.
///
/// # Errors
/// The settings fail [`Settings::check`], the address cannot be listened on, or certificate and key cannot be read.
pub async fn bind(
    settings: &Settings,
    config: kube::Config,
    metrics: &Metrics,
) -> anyhow::Result<impl Future<Output = std::io::Result<()>> + use<>> {
    settings.check()?;
    let listener = TcpListener::bind(settings.address)
        .await
        .with_context(|| format!("--network-api-bind-address {}: cannot listen", settings.address))?;
    let tls = match &settings.tls {
        Some((cert, key)) => Some(tls::Files::read(cert.clone(), key.clone(), metrics.clone())?),
        None => None,
    };
    let pages = pages(config, PATIENCE, metrics.clone());
    Ok(async move {
        match tls {
            Some(files) => {
                let (listener, accepting) = tls::Listener::start(listener, files)?;
                tokio::select! {
                    served = axum::serve(listener, pages) => served,
                    ended = accepting => Err(std::io::Error::other(format!("no connection is accepted any more: {ended:?}"))),
                }
            }
            None => axum::serve(listener, pages).await,
        }
    })
}

fn pages(mut server: kube::Config, patience: Duration, metrics: Metrics) -> Router {
    let count = move |response: Response| {
        if response.status().is_server_error() {
            metrics.error(ErrorKind::NetworkApi);
        }
        std::future::ready(response)
    };
    server.auth_info = AuthInfo::default();
    let shared = Shared { server, places: Arc::new(Semaphore::new(AT_ONCE)), patience };
    Router::new()
        .route("/v1/networks", get(list_all))
        .route("/v1/namespaces/{namespace}/networks", get(list).post(create))
        .route("/v1/namespaces/{namespace}/networks/{name}", get(query).patch(update).delete(delete))
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "there is no such page"))
        .method_not_allowed_fallback(async || {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "this page has no such method")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(count))
        .with_state(shared)
}

impl Shared {
    /// The networks as the caller may see them.
    fn networks(&self, headers: &HeaderMap) -> Result<Networks, Failure> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_full| {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again")
        })?;
        let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let token = token.filter(|token| !token.is_empty()).ok_or_else(|| {
            Failure::new(
                StatusCode::UNAUTHORIZED,
                "header `Authorization: Bearer TOKEN` is needed, with a token of the Kubernetes API server",
            )
        })?;
        let mut config = self.server.clone();
        config.auth_info.token = Some(token.to_owned().into());
        let client = kube::Client::try_from(config)
            .map_err(|error| Failure::new(StatusCode::BAD_GATEWAY, api::error::chain(&error)))?;
        Ok(Networks { client, patience: self.patience, _place: place })
    }
}

async fn list_all(State(shared): State<Shared>, headers: HeaderMap) -> Result<Answer, Failure> {
    shared.networks(&headers)?.list(None).await
}

async fn list(
    State(shared): State<Shared>,
    Path(namespace): Path<String>,
    headers: HeaderMap,
) -> Result<Answer, Failure> {
    shared.networks(&headers)?.list(Some(label(&namespace)?)).await
}

async fn query(
    State(shared): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Answer, Failure> {
    shared.networks(&headers)?.query(&named(&namespace, &name)?).await
}

async fn create(
    State(shared): State<Shared>,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Answer, Failure> {
    let (networks, body) = (shared.networks(&headers)?, body?.0);
    label(&namespace)?;
    to_its_end(async move { networks.create(&namespace, &body).await }).await
}

async fn update(
    State(shared): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Answer, Failure> {
    let (networks, body, name) = (shared.networks(&headers)?, body?.0, named(&namespace, &name)?);
    to_its_end(async move { networks.update(&name, &body).await }).await
}

async fn delete(
    State(shared): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Answer, Failure> {
    let (networks, name) = (shared.networks(&headers)?, named(&namespace, &name)?);
    to_its_end(async move { networks.delete(&name).await }).await
}

/// A name of the path, which becomes part of a path of the API server.
fn label(text: &str) -> Result<&str, Failure> {
    check_name(text)
        .map(|()| text)
        .map_err(|error| Failure::new(StatusCode::BAD_REQUEST, format!("path: {}", error.problem)))
}

fn named(namespace: &str, name: &str) -> Result<NamespacedName, Failure> {
    Ok(NamespacedName::new(label(namespace)?, label(name)?))
}

/// Carries out an operation also if its caller goes away meanwhile, so that nothing is left half made.
async fn to_its_end(
    operation: impl Future<Output = Result<Answer, Failure>> + Send + 'static,
) -> Result<Answer, Failure> {
    tokio::spawn(operation)
        .await
        .unwrap_or_else(|ended| Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, ended.to_string())))
}

//! Paths of services, and what was carried by each.

use std::sync::Arc;
use std::time::Duration;

use api::NamespacedName;
use api::admin as wire;
use axum::body::Bytes;
use axum::extract::State;

use super::{AdminError, Answer, View, blocking, flow_cache, no_cache, read};
use crate::flow_cache::{Backend, CacheControl, LONGEST_LOAN, ServiceError, Sums, Totals};

impl From<ServiceError> for AdminError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Unknown(_) => Self::NotFound(error.to_string()),
            ServiceError::NotListed(_) | ServiceError::Store(_) => Self::Cannot(error.to_string()),
            ServiceError::Cache(error) => error.into(),
        }
    }
}

/// Control of the node's flow cache, if there is one.
fn control(view: &dyn View) -> Result<Arc<dyn CacheControl>, AdminError> {
    flow_cache(view)?;
    view.control().ok_or_else(|| no_cache(view))
}

fn name(text: &str) -> Result<NamespacedName, AdminError> {
    text.parse().map_err(|error| AdminError::Bad(format!("service {error}")))
}

/// The path of a service that nothing was asked for is the node's, where that is `ovs`.
fn on_the_node(shown: wire::ServicePath, node: wire::PathStatus) -> wire::ServicePath {
    match (shown.path.path, node.path) {
        (wire::Path::Ebpf, wire::Path::Ovs) => wire::ServicePath { path: node, ..shown },
        _ => shown,
    }
}

pub(super) async fn list(State(view): State<Arc<dyn View>>) -> Answer<Vec<wire::ServicePath>> {
    blocking(move || {
        let list = control(&*view)?.services().list();
        Ok(list.into_iter().map(|shown| on_the_node(shown, view.path())).collect())
    })
    .await
}

pub(super) async fn path(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<wire::ServicePath> {
    let request: wire::ServicePathRequest = read(&body)?;
    blocking(move || {
        let (control, name) = (control(&*view)?, name(&request.service)?);
        let services = control.services();
        let shown = match (request.path, request.for_ms) {
            (None, None) => services.path(&name)?,
            (None, Some(0)) => services.lend(&name, wire::Path::Ebpf, Duration::ZERO)?,
            (None, Some(_)) => return Err(AdminError::Bad("forMs without a path can only be 0".to_owned())),
            (Some(path), None) => services.set(&name, path)?,
            (Some(path), Some(ms)) if Duration::from_millis(ms) <= LONGEST_LOAN => {
                services.lend(&name, path, Duration::from_millis(ms))?
            }
            (Some(_), Some(ms)) => {
                let most = LONGEST_LOAN.as_millis();
                return Err(AdminError::Bad(format!("forMs `{ms}`: must be at most {most}")));
            }
        };
        Ok(on_the_node(shown, view.path()))
    })
    .await
}

pub(super) async fn totals(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<wire::ServiceTotals> {
    let request: wire::ServiceTotalsRequest = read(&body)?;
    blocking(move || {
        let (control, name) = (control(&*view)?, name(&request.service)?);
        let services = control.services();
        let totals = services.totals(&name)?;
        let at_ms = view.now_ms();
        let service = on_the_node(services.path(&name)?, view.path());
        Ok(wire::ServiceTotals { at_ms, service, backends: totals.into_iter().filter_map(backend).collect() })
    })
    .await
}

fn backend((of, totals): (Backend, Totals)) -> Option<wire::BackendTotals> {
    let protocol = match of.protocol {
        api::Protocol::Tcp => wire::CachedProtocol::Tcp,
        api::Protocol::Udp => wire::CachedProtocol::Udp,
        // The flow cache has none.
        api::Protocol::Sctp => return None,
    };
    let sums = |Sums { to_backend, from_backend, connections }| wire::PathTotals {
        to_backend,
        from_backend,
        connections,
    };
    let Totals { fast, slow } = totals;
    Some(wire::BackendTotals {
        port: of.port,
        protocol,
        address: of.address,
        fast: sums(fast),
        slow: sums(slow),
    })
}

//! eBPF programs of a container's interfaces, if the node uses them: one endpoint for each interface, under the interface's id
//! ([`attach::interface_id`]).

use std::collections::BTreeSet;
use std::time::Duration;

use api::error::chain;

use crate::attach;
use crate::bpf::{Endpoint, EndpointState, Programs};
use crate::datapath::Datapath;
use crate::node::timing::timed;
use crate::pod::AttachError;

/// Attaches eBPF programs to the endpoints of a container. Returns the time taken.
///
/// # Errors
/// The programs of an endpoint cannot be attached; its completed steps are undone, and the endpoints after it are not touched.
pub async fn add(
    datapath: &Datapath,
    container: &str,
    endpoints: Vec<Endpoint>,
) -> Result<Duration, AttachError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(Duration::ZERO) };
    let add = move || {
        let mut endpoints = endpoints.iter();
        endpoints.try_for_each(|one| programs.lock().add_endpoint(one).map_err(|error| chain(&error)))
    };
    let (done, took) = timed(tokio::task::spawn_blocking(add)).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|reason| AttachError::Programs { container: container.to_owned(), reason })?;
    Ok(took)
}

/// Detaches the eBPF programs of one endpoint; an unknown endpoint is ignored.
///
/// # Errors
/// A program or map entry could not be removed.
pub async fn remove(datapath: &Datapath, id: &str) -> Result<(), AttachError> {
    let only = BTreeSet::from([id.to_owned()]);
    remove_these(datapath, id, move |_| only).await.1
}

/// Detaches the eBPF programs of all endpoints of a container. Returns their ids, with the container's own in any case.
///
/// # Errors
/// Beside the ids: what could not be removed. Every endpoint is tried.
pub async fn remove_all(datapath: &Datapath, container: &str) -> (BTreeSet<String>, Result<(), AttachError>) {
    let own = container.to_owned();
    let all = move |programs: &Programs| {
        let of_container = programs.endpoint_ids().filter(|id| attach::container_of(id) == own);
        let mut ids: BTreeSet<String> = of_container.map(str::to_owned).collect();
        ids.insert(own.clone());
        ids
    };
    let (mut ids, done) = remove_these(datapath, container, all).await;
    ids.insert(container.to_owned());
    (ids, done)
}

async fn remove_these(
    datapath: &Datapath,
    container: &str,
    which: impl FnOnce(&Programs) -> BTreeSet<String> + Send + 'static,
) -> (BTreeSet<String>, Result<(), AttachError>) {
    let Some(programs) = datapath.programs.clone() else { return (BTreeSet::new(), Ok(())) };
    let remove = move || {
        let mut programs = programs.lock();
        let ids = which(&programs);
        let left = ids.iter().filter_map(|id| programs.remove_endpoint(id).err());
        let left: Vec<String> = left.map(|failures| failures.to_string()).collect();
        (ids, left.join("; "))
    };
    let done = tokio::task::spawn_blocking(remove).await;
    let (ids, left) = done.unwrap_or_else(|e| (BTreeSet::new(), e.to_string()));
    let failed = |reason| AttachError::Programs { container: container.to_owned(), reason };
    (ids, if left.is_empty() { Ok(()) } else { Err(failed(left)) })
}

/// Ids of interfaces with eBPF programs, and whether all of their programs are attached and have their addresses.
///
/// # Errors
/// The reading thread has ended.
pub async fn list(datapath: &Datapath) -> Result<Vec<(String, bool)>, AttachError> {
    let Some(programs) = datapath.programs.clone() else { return Ok(Vec::new()) };
    // An endpoint migrated from another map layout has lost its settings, and is updated.
    let whole = |e: &EndpointState| e.alive && e.mac != [0; 6];
    let list = move || {
        let states = programs.lock().endpoints();
        states.into_iter().map(|state| (state.id.clone(), whole(&state))).collect()
    };
    let done = tokio::task::spawn_blocking(list).await;
    done.map_err(|e| AttachError::Thread { what: "list of eBPF endpoints".to_owned(), reason: e.to_string() })
}

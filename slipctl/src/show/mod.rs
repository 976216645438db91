//! Text output: renders the structs of [`api::admin`] as strings. No I/O.

pub(crate) mod audit;
pub(crate) mod flows;
pub(crate) mod service_path;
pub(crate) mod services;
pub(crate) mod status;
pub(crate) mod tunnels;

/// Name of the pod, or the short container id when the pod is unknown.
pub(crate) fn pod_or_container(pod: Option<&str>, container: &str) -> String {
    pod.map_or_else(|| short_id(container), str::to_owned)
}

/// First 12 characters of a container id, as container runtimes display it.
pub(crate) fn short_id(container: &str) -> String {
    container.chars().take(12).collect()
}

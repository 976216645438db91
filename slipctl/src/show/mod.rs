//! The agent's answers as text. Pure: from structs to strings.

pub(crate) mod audit;
pub(crate) mod flows;
pub(crate) mod status;
pub(crate) mod tunnels;

/// The pod, or the beginning of the container's id where the pod is not known.
pub(crate) fn pod_or_container(pod: Option<&str>, container: &str) -> String {
    pod.map_or_else(|| short_id(container), str::to_owned)
}

/// The beginning of a container id, as container runtimes show it.
pub(crate) fn short_id(container: &str) -> String {
    container.chars().take(12).collect()
}

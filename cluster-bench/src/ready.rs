//! Why a pod is not ready, in the words of the kubelet, the scheduler or an event. Pure.

use k8s_openapi::api::core::v1::{ContainerState, Event, Pod};

/// Reasons of a waiting container that waiting does not help against.
const FINAL: &[&str] = &[
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
];

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// All of its containers have ended well.
    Done,
    /// Not yet, for this reason.
    Not(String),
    /// The pod will never be ready, for this reason.
    Never(String),
}

/// The state of a pod. Events are asked for where the pod itself says nothing.
pub(crate) fn state(pod: &Pod, events: &[Event]) -> State {
    let name = pod.metadata.name.as_deref().unwrap_or("a pod");
    let say = |what: String| format!("pod {name}: {what}");
    let Some(status) = &pod.status else { return State::Not(say("nothing is known of it yet".into())) };
    let words = |reason: &Option<String>, message: &Option<String>| match (reason, message) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (Some(one), None) | (None, Some(one)) => one.clone(),
        (None, None) => "no reason is given".to_owned(),
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return State::Never(say("it is being removed by somebody else".into()));
    }
    let containers = status.container_statuses.iter().flatten();
    let states: Vec<&ContainerState> = containers.filter_map(|container| container.state.as_ref()).collect();
    match status.phase.as_deref() {
        Some("Succeeded") => return State::Done,
        Some("Failed") => {
            let ended = states.iter().find_map(|state| state.terminated.as_ref());
            let text = match ended {
                _ if status.reason.is_some() => words(&status.reason, &status.message),
                Some(end) if end.reason.as_deref() == Some("Error") && end.message.is_none() => {
                    format!("ended with code {}", end.exit_code)
                }
                Some(end) => {
                    format!("ended with code {}: {}", end.exit_code, words(&end.reason, &end.message))
                }
                None => words(&status.reason, &status.message),
            };
            return State::Never(say(text));
        }
        _ => {}
    }
    let is_true = |condition: &str| {
        status.conditions.iter().flatten().any(|c| c.type_ == condition && c.status == "True")
    };
    if is_true("Ready") {
        return State::Ready;
    }
    if let Some(waiting) = states.iter().find_map(|state| state.waiting.as_ref()) {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let text = say(words(&waiting.reason, &waiting.message));
        if FINAL.contains(&reason) {
            return State::Never(text);
        }
        // While it is being created the kubelet says nothing more, but events do.
        if reason != "ContainerCreating" && reason != "PodInitializing" {
            return State::Not(text);
        }
    }
    let scheduled =
        status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(condition) = scheduled {
        return State::Not(say(words(&condition.reason, &condition.message)));
    }
    let warning = events.iter().rfind(|event| event.type_.as_deref() == Some("Warning"));
    State::Not(say(warning.map_or_else(
        || {
            let runs = states.iter().any(|state| state.running.is_some());
            let how = if runs {
                "its containers run, but it is not ready"
            } else {
                "its containers are being created"
            };
            how.to_owned()
        },
        |event| words(&event.reason, &event.message),
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(status: Value) -> State {
        state(&serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap(), &[])
    }

    #[test]
    fn what_is_not_ready_says_why_in_the_words_of_who_knows() {
        let waiting = |reason: &str| {
            of(
                json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "words"}}}]}),
            )
        };
        assert_eq!(waiting("ImagePullBackOff"), State::Not("pod p: ImagePullBackOff: words".into()));
        assert_eq!(waiting("RunContainerError"), State::Never("pod p: RunContainerError: words".into()));
        let unscheduled =
            of(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}]}));
        assert_eq!(
            unscheduled,
            State::Not("pod p: Unschedulable: 0/2 nodes are available: 2 Insufficient cpu.".into())
        );
    }

    #[test]
    fn an_end_says_its_code_or_who_ended_it() {
        let ended = |extra: Value| {
            let mut status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]});
            status.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            of(status)
        };
        assert_eq!(ended(json!({})), State::Never("pod p: ended with code 137".into()));
        let evicted = ended(json!({"reason": "Evicted", "message": "low on memory"}));
        assert_eq!(evicted, State::Never("pod p: Evicted: low on memory".into()));
        assert_eq!(of(json!({"phase": "Succeeded"})), State::Done);
    }

    #[test]
    fn an_event_speaks_where_the_pod_does_not() {
        let pod = json!({"metadata": {"name": "p"}, "status": {"phase": "Pending"}});
        let event = json!({"metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "FailedCreatePodSandBox",
            "message": "plugin says no"});
        let events: Vec<Event> = vec![serde_json::from_value(event).unwrap()];
        let state = state(&serde_json::from_value(pod).unwrap(), &events);
        assert_eq!(state, State::Not("pod p: FailedCreatePodSandBox: plugin says no".into()));
        let ready = of(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        assert_eq!(ready, State::Ready);
    }
}

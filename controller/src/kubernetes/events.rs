//! Kubernetes events on the node or pod that a notice is about.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::state::Notice;

/// Longest note of an event, bytes (by the API).
const NOTE: usize = 1000;

/// Publishes notices as events. One that cannot be published is in the log anyway.
pub async fn run(client: Client, identity: String, mut notices: mpsc::UnboundedReceiver<Notice>) {
    let reporter = Reporter { controller: "slipstream-controller".to_owned(), instance: Some(identity) };
    let recorder = Recorder::new(client, reporter);
    while let Some(notice) = notices.recv().await {
        let Some(object) = notice.object else { continue };
        let reason = notice.kind.reason();
        let mut note = notice.message;
        if note.len() > NOTE {
            let end = (0..=NOTE).rev().find(|at| note.is_char_boundary(*at)).unwrap_or_default();
            note.truncate(end);
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Allocate".to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(object.kind.to_owned()),
            name: Some(object.name),
            namespace: object.namespace,
            uid: Some(object.uid),
            ..ObjectReference::default()
        };
        if let Err(error) = recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "an event could not be published");
        }
    }
}

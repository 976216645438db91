//! Kubernetes events on the object that a notice is about. Nothing waits for them: an event that cannot be published in time is
//! in the log anyway.

use std::collections::{BTreeMap, VecDeque};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use api::error::chain;

use super::TIMEOUT;
use crate::metrics::{ErrorKind, Metrics};
use crate::state::{Notice, ObjectRef};

/// Longest note of an event, bytes (by the API).
const NOTE: usize = 1000;
/// Events being published at once.
const AT_ONCE: usize = 32;
/// Events being published at once in one namespace, where an admission webhook may hang.
const NAMESPACE_AT_ONCE: usize = 4;
/// Events that wait to be published; beyond this the oldest are dropped.
const WAITING: usize = 1024;

/// Publishes notices as events, until the other end of the channel is gone.
pub async fn run(
    client: Client,
    identity: String,
    mut notices: mpsc::UnboundedReceiver<Notice>,
    metrics: Metrics,
) {
    let reporter = Reporter { controller: "slipstream-controller".to_owned(), instance: Some(identity) };
    let recorder = Recorder::new(client, reporter);
    let mut waiting = VecDeque::new();
    let mut publishing = FuturesUnordered::new();
    let mut busy: BTreeMap<Option<String>, usize> = BTreeMap::new();
    loop {
        while publishing.len() < AT_ONCE
            && let Some((event, object)) = take(&mut waiting, &busy)
        {
            *busy.entry(object.namespace.clone()).or_default() += 1;
            publishing.push(publish(&recorder, event, object));
        }
        tokio::select! {
            notice = notices.recv() => {
                let Some(notice) = notice else { return };
                waiting.extend(event(notice));
                if waiting.len() > WAITING {
                    waiting.pop_front();
                    metrics.error(ErrorKind::Event);
                }
            }
            Some((object, result)) = publishing.next() => {
                if let Err(error) = result {
                    metrics.error(ErrorKind::Event);
                    tracing::warn!(%object, error, "an event could not be published");
                }
                let left = busy.remove(&object.namespace).unwrap_or_default().saturating_sub(1);
                if left > 0 {
                    busy.insert(object.namespace, left);
                }
            }
        }
    }
}

/// The first waiting notice whose namespace has a place left.
fn take(
    waiting: &mut VecDeque<(Event, ObjectRef)>,
    busy: &BTreeMap<Option<String>, usize>,
) -> Option<(Event, ObjectRef)> {
    let has_place =
        |(_, object): &(Event, ObjectRef)| busy.get(&object.namespace).is_none_or(|n| *n < NAMESPACE_AT_ONCE);
    let first = waiting.iter().position(has_place)?;
    waiting.remove(first)
}

async fn publish(recorder: &Recorder, event: Event, object: ObjectRef) -> (ObjectRef, Result<(), String>) {
    let reference = ObjectReference {
        api_version: Some(object.api_version().to_owned()),
        kind: Some(object.kind.to_owned()),
        name: Some(object.name.clone()),
        namespace: object.namespace.clone(),
        uid: Some(object.uid.clone()).filter(|uid| !uid.is_empty()),
        ..ObjectReference::default()
    };
    let result = match tokio::time::timeout(TIMEOUT, recorder.publish(&event, &reference)).await {
        Ok(result) => result.map_err(|error| chain(&error)),
        Err(_elapsed) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
    };
    (object, result)
}

/// The event of a notice; none where the object is known by name only.
fn event(notice: Notice) -> Option<(Event, ObjectRef)> {
    let object = notice.object?;
    let mut note = notice.message;
    note.truncate(note.floor_char_boundary(NOTE));
    let event = Event {
        type_: EventType::Warning,
        reason: notice.kind.reason().to_owned(),
        note: Some(note),
        action: "Allocate".to_owned(),
        secondary: None,
    };
    Some((event, object))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::fake;
    use crate::state::NoticeKind;

    #[tokio::test]
    async fn events_that_hang_hold_up_no_other_namespace() {
        let (seen, mut events) = mpsc::unbounded_channel();
        let answer = async move |uri: axum::http::Uri, body: String| {
            if uri.path().contains("/guarded/") {
                return std::future::pending().await;
            }
            let event: Value = serde_json::from_str(&body).unwrap();
            seen.send(event.clone()).unwrap();
            fake::object(event)
        };
        let client = fake::serve(Router::new().fallback(answer)).await;
        let (notices, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(client, "test".to_owned(), queue, Metrics::default()));
        for (namespace, count) in [("guarded", 100), ("shop", 1)] {
            for n in 0..count {
                let object = ObjectRef {
                    kind: "NetworkPolicy",
                    namespace: Some(namespace.to_owned()),
                    name: format!("policy-{n}"),
                    uid: format!("uid-{n}"),
                };
                let (kind, message) = (NoticeKind::Malformed, "what is wrong".to_owned());
                notices.send(Notice { kind, object: Some(object), message }).unwrap();
            }
        }
        let event = tokio::time::timeout(Duration::from_secs(5), events.recv()).await.unwrap().unwrap();
        let regarding = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "namespace": "shop",
            "name": "policy-0", "uid": "uid-0" });
        assert_eq!(event["regarding"], regarding);
        assert_eq!(
            (&event["reason"], &event["note"]),
            (&json!("NetworkAnnotationUnusable"), &json!("what is wrong"))
        );
    }

    #[test]
    fn a_notes_end_is_cut_off_between_characters() {
        let object = ObjectRef { kind: "Pod", namespace: None, name: String::new(), uid: String::new() };
        let message = "x".repeat(NOTE - 1) + "ö";
        let notice = Notice { kind: NoticeKind::Conflict, object: Some(object), message };
        let (event, _) = event(notice).unwrap();
        assert_eq!(event.note.map(|note| note.len()), Some(NOTE - 1));
        assert_eq!(event.reason, "HostPortConflict");
    }
}

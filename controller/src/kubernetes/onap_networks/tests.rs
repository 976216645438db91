use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::*;
use crate::kubernetes::fake;

const CONFIG: &str = r#"{"cnitype": "ovn", "subnet": "172.16.24.0/24", "gateway": "172.16.24.1"}"#;

fn name() -> NamespacedName {
    NamespacedName::new("shop", "old")
}

fn known(config: &str, is_gone: bool) -> Known {
    let object =
        json!({"metadata": {"name": "old", "namespace": "shop", "uid": "u1"}, "spec": {"config": config}});
    let object = serde_json::from_value(object).unwrap();
    Known { object, is_gone, due: Instant::now(), wait: RETRY.0, told: String::new() }
}

/// A VirtualNetwork of the name, as the API server has it.
fn made(owner: Option<&str>, subnet: &str, ready: &str, conflict: &str) -> Value {
    let owners: Vec<Value> = owner
        .map(|uid| json!({"apiVersion": API_VERSION, "kind": KIND, "name": "old", "uid": uid}))
        .into_iter()
        .collect();
    let condition =
        |kind: &str, status: &str| json!({"type": kind, "status": status, "message": "it overlaps another"});
    json!({"apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
        "metadata": {"name": "old", "namespace": "shop", "uid": "n1", "generation": 1, "ownerReferences": owners},
        "spec": {"scope": "Cluster", "reach": "Outside", "subnets": [subnet], "gateways": ["172.16.24.1"]},
        "status": {"observedGeneration": 1, "conditions": [condition("Ready", ready), condition("Conflict", conflict)]}})
}

/// A server with that VirtualNetwork, or none, and the requests that it got.
async fn server(there: Option<Value>, refuses: bool) -> (Client, Arc<Mutex<Vec<String>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&log);
    let pages = Router::new().fallback(async move |method: Method, uri: Uri, body: String| -> Response {
        seen.lock().unwrap().push(format!("{method} {} {body}", uri.path()));
        match (method, there) {
            (Method::POST, _) if refuses => fake::refusal(422, "spec.subnets: no"),
            (Method::POST, _) => fake::object(serde_json::from_str(&body).unwrap()),
            (_, Some(there)) => fake::object(there),
            (_, None) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"});
                (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
            }
        }
    });
    (fake::serve(pages).await, log)
}

async fn settled(there: Option<Value>, known: &Known) -> (Found, Vec<String>) {
    let (client, log) = server(there, false).await;
    let found = settle(&client, &name(), known).await.unwrap();
    let log = log.lock().unwrap().clone();
    (found, log)
}

#[tokio::test]
async fn a_network_is_made_that_belongs_to_the_object() {
    let (found, log) = settled(None, &known(CONFIG, false)).await;
    assert_eq!(found, Found::Underway);
    assert!(
        log[1].starts_with("POST /apis/slipstream.dev/v1alpha1/namespaces/shop/virtualnetworks "),
        "{log:?}"
    );
    let body: Value =
        serde_json::from_str(log[1].split_once(" {").map(|(_, rest)| format!("{{{rest}")).unwrap().as_str())
            .unwrap();
    assert_eq!(
        (&body["kind"], &body["apiVersion"]),
        (&json!("VirtualNetwork"), &json!("slipstream.dev/v1alpha1"))
    );
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["uid"], &owner["kind"], &owner["apiVersion"]),
        (&json!("u1"), &json!(KIND), &json!(API_VERSION))
    );
    assert_eq!(
        body["spec"],
        json!({"scope": "Cluster", "reach": "Outside", "subnets": ["172.16.24.0/24"], "gateways": ["172.16.24.1"]})
    );
}

#[tokio::test]
async fn what_is_wrong_is_told_and_what_is_right_is_left_alone() {
    let own = |subnet: &str, ready: &str, conflict: &str| Some(made(Some("u1"), subnet, ready, conflict));
    let right = settled(own("172.16.24.0/24", "True", "False"), &known(CONFIG, false)).await;
    assert_eq!((right.0, right.1.len()), (Found::Right, 1));
    for (there, config, kind, word) in [
        (None, r#"{"subnet": 7}"#, NoticeKind::Malformed, "spec.config.subnet"),
        (
            Some(made(None, "172.16.24.0/24", "True", "False")),
            CONFIG,
            NoticeKind::NetworkConflict,
            "was not made of this object",
        ),
        (
            Some(made(Some("other"), "172.16.24.0/24", "True", "False")),
            CONFIG,
            NoticeKind::NetworkConflict,
            "has its name",
        ),
        (own("172.16.25.0/24", "True", "False"), CONFIG, NoticeKind::Malformed, "cannot be changed"),
        (own("172.16.24.0/24", "False", "True"), CONFIG, NoticeKind::NetworkConflict, "it overlaps another"),
        (own("172.16.24.0/24", "False", "False"), CONFIG, NoticeKind::Malformed, "is not ready"),
    ] {
        let (found, log) = settled(there, &known(config, false)).await;
        let Found::Told(told, message) = found else { panic!("{word}: {found:?}") };
        assert!(told == kind && message.contains(word), "{word}: {told:?} {message}");
        assert!(log.iter().all(|line| line.starts_with("GET ")), "{log:?}");
    }
    let (client, _) = server(None, true).await;
    let found = settle(&client, &name(), &known(CONFIG, false)).await.unwrap();
    assert!(
        matches!(found, Found::Told(NoticeKind::Refused, message) if message.contains("spec.subnets: no"))
    );
}

#[tokio::test]
async fn with_the_object_its_network_goes_and_nobody_elses() {
    let there = made(Some("u1"), "172.16.24.0/24", "True", "False");
    let (found, log) = settled(Some(there.clone()), &known(CONFIG, true)).await;
    assert_eq!(found, Found::Right);
    assert!(log[1].starts_with("DELETE ") && log[1].contains(r#""preconditions":{"uid":"n1"}"#), "{log:?}");
    for other in
        [made(None, "172.16.24.0/24", "True", "False"), made(Some("u2"), "172.16.24.0/24", "True", "False")]
    {
        let (found, log) = settled(Some(other), &known(CONFIG, true)).await;
        assert_eq!((found, log.len()), (Found::Right, 1), "{log:?}");
    }
    let (found, _) = settled(None, &known("", true)).await;
    assert_eq!(found, Found::Right);
}

#[tokio::test]
async fn something_is_told_once_and_waits_grow() {
    let (client, _) = server(Some(made(None, "172.16.24.0/24", "True", "False")), false).await;
    let mut all = BTreeMap::from([(name(), known(CONFIG, false))]);
    let (notices, mut told) = mpsc::unbounded_channel();
    let metrics = Metrics::default();
    for _ in 0..12 {
        settle_next(&client, &mut all, &notices, &metrics).await;
    }
    let notice = told.try_recv().unwrap();
    let object = notice.object.unwrap();
    assert_eq!((object.kind, object.uid.as_str(), object.api_version()), (KIND, "u1", API_VERSION));
    assert!(
        notice.message.starts_with("onapNetwork shop/old: ") && told.try_recv().is_err(),
        "{}",
        notice.message
    );
    assert_eq!(all[&name()].wait, RETRY.1);
    // A list without it.
    take(&mut all, &mut Vec::new(), Event::InitDone);
    assert!(all[&name()].is_gone);
    settle_next(&client, &mut all, &notices, &metrics).await;
    assert!(all.is_empty(), "a VirtualNetwork that is not its own is none of its business");
}

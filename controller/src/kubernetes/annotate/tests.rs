use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use serde_json::json;

use super::*;
use crate::kubernetes::fake;
use crate::state::ObjectRef;

/// Longest wait for anything that should happen at once.
const MOMENT: Duration = Duration::from_secs(3);

/// A writer that is connected to a server whose answer depends on the path of the object.
struct Writer {
    patches: mpsc::UnboundedSender<Patch>,
    forgotten: mpsc::UnboundedSender<String>,
    done: mpsc::UnboundedReceiver<Annotated>,
    notices: mpsc::UnboundedReceiver<Notice>,
    metrics: Metrics,
}

impl Writer {
    async fn start<F>(answer: impl Fn(String) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let pages =
            Router::new().fallback(async move |uri: axum::http::Uri| answer(uri.path().to_owned()).await);
        let client = fake::serve(pages).await;
        let (patches, patch_queue) = mpsc::unbounded_channel();
        let (forgotten, forgotten_queue) = mpsc::unbounded_channel();
        let (done_sender, done) = mpsc::unbounded_channel();
        let (notice_sender, notices) = mpsc::unbounded_channel();
        let ends = Ends {
            patches: patch_queue,
            forgotten: forgotten_queue,
            done: done_sender,
            notices: notice_sender,
        };
        let metrics = Metrics::default();
        tokio::spawn(run(client, ends, metrics.clone()));
        Self { patches, forgotten, done, notices, metrics }
    }

    fn write(&self, namespace: &str, name: &str) {
        let object = ObjectRef {
            kind: "Pod",
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
        };
        let annotations = BTreeMap::from([("k8s.ovn.org/pod-networks", "{}".to_owned())]);
        self.patches.send(Patch { object, annotations }).unwrap();
    }

    async fn done(&mut self) -> Annotated {
        tokio::time::timeout(MOMENT, self.done.recv()).await.expect("an answer within a moment").unwrap()
    }
}

fn written() -> Response {
    fake::object(
        json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "x" } }),
    )
}

fn is_of(path: &str, namespace: &str) -> bool {
    path.starts_with(&format!("/api/v1/namespaces/{namespace}/"))
}

#[tokio::test]
async fn pods_whose_annotation_is_refused_hold_up_no_other_namespace() {
    let mut writer = Writer::start(async |path: String| match is_of(&path, "guarded") {
        true => fake::refusal(403, "admission webhook \"guard\" denied the request: no"),
        false => written(),
    })
    .await;
    for n in 0..40 {
        writer.write("guarded", &format!("pod-{n}"));
    }
    // In the queue for long enough to be reported.
    let notice = tokio::time::timeout(MOMENT, writer.notices.recv()).await.unwrap().unwrap();
    writer.write("kube-system", "dns");
    assert_eq!(writer.done().await, Annotated::Written("uid-of-dns".to_owned()));
    assert_eq!(notice.kind.reason(), "NetworkAnnotationNotWritten");
    let object = notice.object.unwrap();
    assert_eq!(object.namespace.as_deref(), Some("guarded"));
    for part in
        [&format!("pod guarded/{}", object.name), "k8s.ovn.org/pod-networks", "webhook \"guard\" denied"]
    {
        assert!(notice.message.contains(part), "{part}: {}", notice.message);
    }
    assert!(writer.metrics.errors(ErrorKind::Annotation) >= 40);
    assert!(writer.metrics.text().contains("slipstream_controller_annotations_waiting 40"));
}

#[tokio::test]
async fn pods_whose_annotation_hangs_hold_up_no_other_namespace() {
    let mut writer = Writer::start(async |path: String| match is_of(&path, "guarded") {
        true => std::future::pending().await,
        false => written(),
    })
    .await;
    for n in 0..40 {
        writer.write("guarded", &format!("pod-{n}"));
    }
    for n in 0..40 {
        writer.write("kube-system", &format!("dns-{n}"));
    }
    let mut names = BTreeSet::new();
    for _ in 0..40 {
        let Annotated::Written(uid) = writer.done().await else { panic!("nothing is gone") };
        names.insert(uid);
    }
    assert!(names.len() == 40 && names.iter().all(|uid| uid.starts_with("uid-of-dns-")), "{names:?}");
}

#[tokio::test]
async fn a_collision_is_tried_again_and_another_uid_is_the_end() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut writer = Writer::start(move |path: String| {
        let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            match path.ends_with("/collides") {
                true if first => fake::refusal(
                    409,
                    "Operation cannot be fulfilled on pods \"collides\": the object has been modified; please apply your \
                     changes to the latest version and try again",
                ),
                true => written(),
                false => fake::refusal(
                    409,
                    "Operation cannot be fulfilled on pods \"other\": Precondition failed: UID in precondition: 1, UID in \
                     object meta: 2",
                ),
            }
        }
    })
    .await;
    writer.write("x", "collides");
    assert_eq!(writer.done().await, Annotated::Written("uid-of-collides".to_owned()));
    assert_eq!(writer.metrics.errors(ErrorKind::Annotation), 1);
    writer.write("x", "other");
    assert_eq!(writer.done().await, Annotated::Gone("uid-of-other".to_owned()));
}

#[tokio::test]
async fn a_pod_that_goes_while_it_is_refused_is_let_go() {
    let mut writer = Writer::start(async |_| fake::refusal(500, "webhook is away")).await;
    writer.write("x", "a");
    tokio::time::timeout(MOMENT, writer.notices.recv()).await.unwrap().unwrap();
    writer.forgotten.send("uid-of-a".to_owned()).unwrap();
    let start = Instant::now();
    while !writer.metrics.text().contains("slipstream_controller_annotations_waiting 0") {
        assert!(start.elapsed() < MOMENT);
        tokio::task::yield_now().await;
    }
}

#[test]
fn what_an_answer_means() {
    let verdict = |code: u16, message: &str| {
        let status =
            kube::core::Status { code, message: message.to_owned(), ..kube::core::Status::default() };
        judge(&kube::Error::Api(Box::new(status)))
    };
    assert_eq!(verdict(404, "pods \"a\" not found"), Verdict::Gone);
    assert_eq!(verdict(422, "Pod \"a\" is invalid: metadata.uid: Invalid value"), Verdict::Gone);
    for (code, message) in [(422, "spec: no"), (400, "no"), (401, "no"), (429, "later"), (503, "away")] {
        assert_eq!(verdict(code, message), Verdict::Refused(format!("{message} ({code})")));
    }
}

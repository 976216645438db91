//! Makes IPAMClaims of StatefulSets' pods, and writes the status of all claims.

use api::NamespacedName;
use api::ipam_claim::{API_VERSION, Claim, IpamClaim, KIND};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::reports::Report;
use crate::metrics::ErrorKind;
use crate::state::{ClaimReport, ClaimStatus, NewClaim, Notice, NoticeKind, ObjectRef};

impl Report for ClaimReport {
    const KIND: ErrorKind = ErrorKind::IpamClaim;

    fn object(&self) -> &ObjectRef {
        &self.object
    }

    fn key(&self) -> String {
        format!("{}/{}", self.object.namespace.as_deref().unwrap_or_default(), self.object.name)
    }

    async fn write(&self, client: &Client) -> kube::Result<()> {
        let Some(status) = &self.status else { return Ok(()) };
        let space = self.object.namespace.as_deref().unwrap_or_default();
        let api: Api<IpamClaim> = Api::namespaced(client.clone(), space);
        let name = &self.object.name;
        let found = match (api.get_opt(name).await?, &self.new) {
            (Some(found), _) => found,
            (None, Some(new)) => api.create(&PostParams::default(), &claim(space, name, new)).await?,
            (None, None) => return Ok(()),
        };
        let uid = found.metadata.uid.as_deref().unwrap_or_default();
        // Another object of the name has reports of its own.
        if !self.object.uid.is_empty() && self.object.uid != uid {
            return Ok(());
        }
        // What was made by somebody else meanwhile says itself what it keeps.
        let has_its_own = |claim: &Claim| self.new.is_some() && !claim.ips.is_empty();
        let is_right = |claim: &Claim| claim.ips == status.ips && claim.pod == status.pod;
        if found.read().is_ok_and(|claim| has_its_own(&claim) || is_right(&claim)) {
            return Ok(());
        }
        let ClaimStatus { ips, pod } = status;
        let patch = json!({"metadata": {"uid": uid}, "status": {"ips": ips, "ownerPod": pod}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    fn refused(&self, error: &str) -> Option<Notice> {
        let pod = &self.status.as_ref()?.pod;
        let object = ObjectRef::named("Pod", &NamespacedName::new(self.object.namespace.as_deref()?, pod));
        let name = &self.object.name;
        let message = format!(
            "pod {pod}: the API server refuses IPAMClaim {name}, which is to keep the pod's addresses, so these end with the pod: {error}"
        );
        Some(Notice { kind: NoticeKind::Network, object: Some(object), message })
    }
}

/// The object of a claim that is made here. It goes with its StatefulSet.
fn claim(namespace: &str, name: &str, new: &NewClaim) -> IpamClaim {
    let NewClaim { network, interface, set } = new;
    let owner = OwnerReference {
        api_version: set.api_version.clone(),
        kind: "StatefulSet".to_owned(),
        name: set.name.clone(),
        uid: set.uid.clone(),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = json!({"network": network, "interface": interface});
    IpamClaim {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        metadata,
        spec,
        status: Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use axum::Router;
    use axum::http::{Method, StatusCode};
    use axum::response::IntoResponse;

    use tokio::sync::mpsc;

    use super::*;
    use crate::index::convert::StatefulSet;
    use crate::kubernetes::fake;
    use crate::kubernetes::reports::{COLLECT, run};
    use crate::metrics::Metrics;

    #[derive(Default)]
    struct Server {
        object: Option<Value>,
        refuses: bool,
        /// What was sent: method and last part of the path.
        calls: Vec<String>,
    }

    /// An API server with one claim, or none.
    async fn server(object: Option<Value>, refuses: bool) -> (Client, Arc<Mutex<Server>>) {
        let state = Arc::new(Mutex::new(Server { object, refuses, calls: Vec::new() }));
        let kept = Arc::clone(&state);
        let pages =
            Router::new().fallback(async move |method: Method, uri: axum::http::Uri, body: String| {
                let mut state = kept.lock().unwrap();
                let last = uri.path().rsplit('/').next().unwrap_or_default();
                if method != Method::GET {
                    state.calls.push(format!("{method} {last}"));
                }
                let status = |code: u16, reason: &str| {
                    let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                        "message": reason});
                    (StatusCode::from_u16(code).unwrap(), text.to_string()).into_response()
                };
                let sent: Value = serde_json::from_str(&body).unwrap_or_default();
                if method == Method::POST {
                    if state.refuses {
                        return status(403, "exceeded quota");
                    }
                    assert_eq!((&sent["apiVersion"], &sent["kind"]), (&json!(API_VERSION), &json!(KIND)));
                    let mut made = sent;
                    made["metadata"]["uid"] = json!("made");
                    state.object = Some(made);
                } else if method == Method::PATCH {
                    state.object.as_mut().unwrap()["status"] = sent["status"].clone();
                }
                match &state.object {
                    Some(object) => fake::object(object.clone()).into_response(),
                    None => status(404, "NotFound"),
                }
            });
        (fake::serve(pages).await, state)
    }

    fn object(uid: &str, status: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"namespace": "x", "name": "db-0.net1", "uid": uid},
            "spec": {"network": "x/blue", "interface": "net1"}, "status": status})
    }

    fn report(uid: &str, is_new: bool) -> ClaimReport {
        let name = NamespacedName::new("x", "db-0.net1");
        let set =
            StatefulSet { api_version: "apps/v1".to_owned(), name: "db".to_owned(), uid: "set".to_owned() };
        let new = NewClaim { network: "x/blue".to_owned(), interface: "net1".to_owned(), set };
        ClaimReport {
            object: ObjectRef { uid: uid.to_owned(), ..ObjectRef::named(KIND, &name) },
            status: Some(ClaimStatus {
                ips: vec!["172.16.24.2/24".parse().unwrap()],
                pod: "db-0".to_owned(),
            }),
            new: is_new.then_some(new),
        }
    }

    async fn until(state: &Mutex<Server>, there: impl Fn(&Server) -> bool) {
        for _ in 0..500 {
            if there(&state.lock().unwrap()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("calls: {:?}", state.lock().unwrap().calls);
    }

    #[tokio::test]
    async fn a_claim_is_made_with_its_set_and_its_status_written_once() {
        let (client, state) = server(None, false).await;
        let (reports, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(client, queue, mpsc::unbounded_channel().0, Metrics::default()));
        reports.send(report("", true)).unwrap();
        until(&state, |server| server.calls.len() == 2).await;
        reports.send(report("made", false)).unwrap();
        tokio::time::sleep(COLLECT * 2).await;
        let server = state.lock().unwrap();
        assert_eq!(server.calls, ["POST ipamclaims", "PATCH status"]);
        let object = server.object.as_ref().unwrap();
        assert_eq!(object["status"], json!({"ips": ["172.16.24.2/24"], "ownerPod": "db-0"}));
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "set");
        task.abort();
    }

    #[tokio::test]
    async fn what_another_claim_of_the_name_keeps_is_left_alone() {
        let others = json!({"ips": ["172.16.24.77/24"], "ownerPod": "before"});
        for (uid, is_new) in [("", true), ("gone", false)] {
            let (client, state) = server(Some(object("other", others.clone())), false).await;
            report(uid, is_new).write(&client).await.unwrap();
            assert!(state.lock().unwrap().calls.is_empty());
        }
        let (client, state) = server(None, false).await;
        report("gone", false).write(&client).await.unwrap();
        assert!(state.lock().unwrap().calls.is_empty(), "a claim of a user is not made here");
    }

    #[tokio::test]
    async fn a_claim_that_is_refused_is_told_once_and_given_up_with_its_pod() {
        let (client, state) = server(None, true).await;
        let (reports, queue) = mpsc::unbounded_channel();
        let (notices, mut told) = mpsc::unbounded_channel();
        let metrics = Metrics::default();
        let task = tokio::spawn(run(client, queue, notices, metrics.clone()));
        reports.send(report("", true)).unwrap();
        let notice = tokio::time::timeout(Duration::from_secs(5), told.recv()).await.unwrap().unwrap();
        assert!(
            notice.message.contains("pod db-0: the API server refuses IPAMClaim db-0.net1"),
            "{}",
            notice.message
        );
        assert!(notice.message.contains("exceeded quota"), "{}", notice.message);
        assert_eq!(metrics.errors(ErrorKind::IpamClaim), 1);
        // A newer report is tried soon, and not told again.
        reports.send(report("", true)).unwrap();
        until(&state, |server| server.calls.len() == 2).await;
        reports.send(ClaimReport { status: None, new: None, ..report("", true) }).unwrap();
        tokio::time::sleep(COLLECT * 2).await;
        assert_eq!(state.lock().unwrap().calls.len(), 2);
        assert!(told.try_recv().is_err());
        task.abort();
    }
}

//! This node's pods, as far as plugging them in and their host ports need to know. Fed by one watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::annotation::{AnnotationError, POD_NETWORKS, POD_PATH, PodNetwork, PodNetworks};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::host_ports::{Claims, HostPorts};
use crate::kube::client;
use crate::metrics::Metrics;
use crate::ovs::ports::PodPort;
use api::error::chain;

/// Annotation of a mirror pod: what the kubelet passes as the UID of the static pod behind it.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation that asks the `bandwidth` plugin to limit what a pod sends.
const EGRESS_BANDWIDTH: &str = "kubernetes.io/egress-bandwidth";
/// Label that KubeVirt gives to pods of virtual machines.
const KUBEVIRT: &str = "kubevirt.io";

/// How long a request may be ahead of the watch: the runtime knows a pod that we have not been told of yet.
const UNKNOWN_POD_WAIT: Duration = Duration::from_secs(10);

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodInfo {
    /// `metadata.uid`.
    pub uid: String,
    /// UID of the static pod this one mirrors, if it does.
    pub mirror_uid: Option<String>,
    /// Annotation [`POD_NETWORKS`] as it stands.
    pub networks: Option<String>,
    /// Annotation [`POD_PATH`] as it stands.
    pub path: Option<String>,
    /// Why what is in it passes packets on: a virtual machine has another stack behind a tap device.
    pub forwards: Option<&'static str>,
    /// The `bandwidth` plugin is asked to limit what it sends, and needs the `ingress` qdisc of the host veth for it.
    pub limits_sending: bool,
}

impl PodInfo {
    fn is(&self, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| uid == self.uid || self.mirror_uid.as_deref() == Some(uid))
    }
}

/// The pod's addresses are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The API has no such pod on this node.
    #[error("pod {pod} is not known on this node (waited {after:?}){detail}")]
    Unknown {
        /// The pod.
        pod: PodKey,
        /// How long we waited for it.
        after: Duration,
        /// What is known instead.
        detail: String,
    },
    /// The pod went away, or another one took its name, while we waited.
    #[error("pod {pod} with UID {uid} was deleted or replaced while waiting for its addresses")]
    Gone {
        /// The pod.
        pod: PodKey,
        /// The UID that is gone.
        uid: String,
    },
    /// The controller has not written the annotation.
    #[error(
        "pod {pod}: no annotation k8s.ovn.org/pod-networks after {after:?}; is slipstream-controller running?"
    )]
    NoAddresses {
        /// The pod.
        pod: PodKey,
        /// How long we waited.
        after: Duration,
    },
    /// The annotation cannot be read.
    #[error("pod {pod}: {source}")]
    Annotation {
        /// The pod.
        pod: PodKey,
        /// What is wrong with it.
        source: AnnotationError,
    },
}

impl PodError {
    /// True when trying again later may help.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Annotation { .. })
    }
}

/// The pods. Clones share them.
#[derive(Debug, Clone)]
pub struct Pods {
    pods: Arc<RwLock<HashMap<PodKey, PodInfo>>>,
    /// Counts changes; 0 until the first full list is in.
    version: watch::Sender<u64>,
    /// Who serves which host port; `None` until the first full list is in.
    host_ports: watch::Sender<Option<HostPorts>>,
}

impl Default for Pods {
    fn default() -> Self {
        Self { pods: Arc::default(), version: watch::Sender::new(0), host_ports: watch::Sender::new(None) }
    }
}

impl Pods {
    /// Takes a new or changed pod.
    pub fn apply(&self, key: PodKey, info: PodInfo) {
        let old = self.pods.write().insert(key, info.clone());
        if old.as_ref() != Some(&info) {
            self.bump();
        }
    }

    /// Forgets a pod.
    pub fn delete(&self, key: &PodKey) {
        if self.pods.write().remove(key).is_some() {
            self.bump();
        }
    }

    /// Takes the full list in place of what was there.
    pub fn reset(&self, all: HashMap<PodKey, PodInfo>) {
        *self.pods.write() = all;
        self.bump();
    }

    fn bump(&self) {
        self.version.send_modify(|v| *v += 1);
    }

    /// True once a full list has been read.
    pub fn is_synced(&self) -> bool {
        *self.version.borrow() > 0
    }

    /// Waits for the first full list; `false` when `timeout` passes first.
    pub async fn synced(&self, timeout: Duration) -> bool {
        let mut version = self.version.subscribe();
        tokio::time::timeout(timeout, version.wait_for(|v| *v > 0)).await.is_ok_and(|r| r.is_ok())
    }

    /// Tells of every change of any pod.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Who serves which host port of this node; `None` until the first full list is in.
    pub fn host_ports(&self) -> watch::Receiver<Option<HostPorts>> {
        self.host_ports.subscribe()
    }

    fn set_host_ports(&self, claims: &Claims) {
        let served = Some(claims.served());
        self.host_ports.send_if_modified(|old| {
            let news = *old != served;
            if news {
                *old = served;
            }
            news
        });
    }

    /// What is known of a pod.
    pub fn get(&self, key: &PodKey) -> Option<PodInfo> {
        self.pods.read().get(key).cloned()
    }

    /// The pod that an OVS port was made for; not another one of its name.
    pub fn of_port(&self, port: &PodPort) -> Option<PodInfo> {
        let (namespace, name) = port.iface_id.split_once('_')?;
        let key = PodKey { namespace: namespace.to_owned(), name: name.to_owned() };
        self.get(&key).filter(|pod| pod.uid == port.iface_id_ver)
    }

    /// True when a pod with this UID is on the node.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.pods.read().values().any(|info| info.uid == uid)
    }

    /// Waits for a pod's addresses: returns its UID in the API and its place on the cluster network.
    ///
    /// `uid` is what the runtime said. The wait ends early when the pod goes away.
    pub async fn addresses(
        &self,
        key: &PodKey,
        uid: Option<&str>,
        timeout: Duration,
    ) -> Result<(String, PodNetwork), PodError> {
        let mut version = self.version.subscribe();
        let start = tokio::time::Instant::now();
        let mut seen: Option<String> = None;
        loop {
            version.mark_unchanged();
            let now = self.get(key);
            let limit = match (&now, &seen) {
                (Some(info), _) if info.is(uid) => {
                    if let Some(value) = &info.networks {
                        let network = PodNetworks::default_of(value);
                        let network =
                            network.map_err(|source| PodError::Annotation { pod: key.clone(), source })?;
                        return Ok((info.uid.clone(), network));
                    }
                    seen = Some(info.uid.clone());
                    timeout
                }
                (_, Some(uid)) => return Err(PodError::Gone { pod: key.clone(), uid: uid.clone() }),
                _ => UNKNOWN_POD_WAIT.min(timeout),
            };
            if tokio::time::timeout_at(start + limit, version.changed()).await.is_err() {
                let pod = key.clone();
                return Err(match (now, seen) {
                    (_, Some(_)) => PodError::NoAddresses { pod, after: limit },
                    (now, None) => PodError::Unknown { pod, after: limit, detail: other(now, uid) },
                });
            }
        }
    }
}

fn other(now: Option<PodInfo>, uid: Option<&str>) -> String {
    match (now, uid) {
        (Some(info), Some(uid)) => format!("; one with UID {} is, the runtime asks for {uid}", info.uid),
        _ => String::new(),
    }
}

/// Follows the API's pods of one node, for ever. What is not used is dropped as it comes.
pub async fn follow(client: Client, node: String, pods: Pods, metrics: Metrics) {
    let config = client::watching().fields(&format!("spec.nodeName={node}"));
    let stream = watcher::watcher(Api::<Pod>::all(client), config).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut claims = Claims::default();
    // What a new list has told so far.
    let (mut fresh, mut fresh_claims) = (HashMap::new(), Claims::default());
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(pod)) => {
                let (key, info) = trim(&pod);
                pods.apply(key, info);
                if claims.apply(&pod) {
                    pods.set_host_ports(&claims);
                }
            }
            Ok(Event::Delete(pod)) => {
                pods.delete(&trim(&pod).0);
                if claims.delete(&pod) {
                    pods.set_host_ports(&claims);
                }
            }
            Ok(Event::Init) => {
                fresh.clear();
                fresh_claims = Claims::default();
            }
            Ok(Event::InitApply(pod)) => {
                let (key, info) = trim(&pod);
                fresh.insert(key, info);
                fresh_claims.apply(&pod);
            }
            Ok(Event::InitDone) => {
                pods.reset(std::mem::take(&mut fresh));
                claims = std::mem::take(&mut fresh_claims);
                pods.set_host_ports(&claims);
            }
            Err(error) => {
                metrics.api_failure("watch pods");
                tracing::warn!(error = chain(&error), "watch of this node's pods; trying again");
            }
        }
    }
}

fn trim(pod: &Pod) -> (PodKey, PodInfo) {
    let key = PodKey { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
    let annotation = |name: &str| pod.annotations().get(name).cloned();
    let info = PodInfo {
        uid: pod.uid().unwrap_or_default(),
        mirror_uid: annotation(MIRROR),
        networks: annotation(POD_NETWORKS),
        path: annotation(POD_PATH),
        forwards: forwards(pod),
        limits_sending: pod.annotations().contains_key(EGRESS_BANDWIDTH),
    };
    (key, info)
}

/// Packets out of a tunnel keep marks of that, which are harmless where they end at a socket. Whoever passes them on may cut
/// aggregates up, or tell a device wrong offsets.
fn forwards(pod: &Pod) -> Option<&'static str> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    if pod.labels().contains_key(KUBEVIRT) {
        Some("the pod runs a virtual machine (label kubevirt.io)")
    } else if class.is_some_and(|class| class.starts_with("kata")) {
        Some("the pod runs in a virtual machine (its runtimeClassName begins with kata)")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_a_virtual_machine_is_known_by_its_label_or_its_runtime() {
        let pod = |label: &str, class: Option<&str>| {
            let mut pod = Pod::default();
            pod.metadata.labels = Some([(label.to_owned(), "virt-launcher".to_owned())].into());
            pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
                runtime_class_name: class.map(str::to_owned),
                ..Default::default()
            });
            trim(&pod).1.forwards
        };
        assert!(pod("kubevirt.io", None).is_some() && pod("app", Some("kata-qemu")).is_some());
        assert_eq!((pod("app", None), pod("app", Some("gvisor"))), (None, None));
    }

    const NETWORKS: &str =
        r#"{"default":{"ip_addresses":["10.244.0.3/24"],"mac_address":"0a:58:0a:f4:00:03"}}"#;
    const LONG: Duration = Duration::from_secs(60);

    fn key() -> PodKey {
        PodKey { namespace: "red".to_owned(), name: "a".to_owned() }
    }

    fn info(uid: &str, networks: Option<&str>) -> PodInfo {
        PodInfo { uid: uid.to_owned(), networks: networks.map(str::to_owned), ..PodInfo::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_ends_when_the_annotation_comes() {
        let pods = Pods::default();
        pods.reset(HashMap::from([(key(), info("u1", None))]));
        let (key, waiting) = (key(), pods.clone());
        let wait = tokio::spawn(async move { waiting.addresses(&key, Some("u1"), LONG).await });
        tokio::task::yield_now().await;
        pods.apply(self::key(), info("u1", Some(NETWORKS)));
        let (uid, network) = wait.await.unwrap().unwrap();
        assert_eq!((uid.as_str(), network.ip_addresses[0].to_string().as_str()), ("u1", "10.244.0.3/24"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_pod_ends_the_wait_and_an_older_one_does_not_answer_for_the_new() {
        let pods = Pods::default();
        pods.apply(key(), info("old", Some(NETWORKS)));
        let error = pods.addresses(&key(), Some("new"), LONG).await.unwrap_err();
        assert!(error.to_string().contains("UID old is, the runtime asks for new"), "{error}");

        pods.apply(key(), info("new", None));
        let waiting = pods.clone();
        let wait = tokio::spawn(async move { waiting.addresses(&key(), Some("new"), LONG).await });
        tokio::task::yield_now().await;
        pods.delete(&key());
        assert!(matches!(wait.await.unwrap().unwrap_err(), PodError::Gone { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_malformed_annotation_is_an_error_at_once_and_a_missing_one_after_the_wait() {
        let pods = Pods::default();
        pods.apply(key(), info("u1", Some("{")));
        let error = pods.addresses(&key(), None, LONG).await.unwrap_err();
        assert!(
            !error.is_transient()
                && error.to_string().contains("pod red/a: annotation k8s.ovn.org/pod-networks"),
            "{error}"
        );
        pods.apply(key(), info("u1", None));
        let error = pods.addresses(&key(), None, LONG).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("slipstream-controller"), "{error}");
    }

    #[tokio::test]
    async fn a_static_pod_is_found_by_the_uid_of_its_manifest() {
        let pods = Pods::default();
        let mirror = PodInfo { mirror_uid: Some("hash".to_owned()), ..info("u1", Some(NETWORKS)) };
        pods.apply(key(), mirror);
        assert_eq!(pods.addresses(&key(), Some("hash"), LONG).await.unwrap().0, "u1");
    }
}

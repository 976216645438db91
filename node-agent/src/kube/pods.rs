//! Pods of this node, with the data needed by CNI calls, host ports and eligibility; fed by one watch.

use api::NamespacedName;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::annotation::{
    AnnotationError, EGRESS_BANDWIDTH, MIRROR_POD, POD_NETWORKS, POD_PATH, PodNetwork, PodNetworks,
};
use api::pod_attachments::SELECTIONS;
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

/// Label of KubeVirt on pods of virtual machines.
const KUBEVIRT: &str = "kubevirt.io";

/// How long a CNI call may be ahead of the watch, for a pod that the watch has not delivered yet.
const UNKNOWN_POD_WAIT: Duration = Duration::from_secs(10);

/// Data of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodInfo {
    /// `metadata.uid`.
    pub uid: String,
    /// UID of the static pod, if this is a mirror pod.
    pub mirror_uid: Option<String>,
    /// Value of annotation [`POD_NETWORKS`].
    pub networks: Option<String>,
    /// Value of annotation [`SELECTIONS`].
    pub selections: Option<String>,
    /// Value of annotation [`POD_PATH`].
    pub path: Option<String>,
    /// Why the pod forwards packets of others: a virtual machine has its own network stack behind a tap device.
    pub forwards: Option<&'static str>,
    /// The pod is being deleted: nobody gives it addresses any more.
    pub is_going: bool,
    /// The pod has an egress limit by the `bandwidth` plugin, which needs the `ingress` qdisc of the host veth.
    pub limits_sending: bool,
}

/// A pod's addresses on its networks, from annotation [`POD_NETWORKS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAddresses {
    /// UID of the pod in the API.
    pub uid: String,
    /// The cluster network's; none where another plugin has it.
    pub default: Option<PodNetwork>,
    /// Addresses on other networks, by the keys of the annotation. Each names the pod's interface.
    pub others: BTreeMap<String, PodNetwork>,
}

impl PodInfo {
    fn is(&self, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| uid == self.uid || self.mirror_uid.as_deref() == Some(uid))
    }
}

/// The addresses of a pod are not available.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// No such pod on this node.
    #[error("pod {pod} is not known on this node (waited {after:?}){detail}")]
    Unknown {
        /// The pod.
        pod: NamespacedName,
        /// Time waited.
        after: Duration,
        /// Additional information.
        detail: String,
    },
    /// The pod was deleted or replaced during the wait.
    #[error("pod {pod} with UID {uid} was deleted or replaced while waiting for its addresses")]
    Gone {
        /// The pod.
        pod: NamespacedName,
        /// UID of the deleted pod.
        uid: String,
    },
    /// The controller has not written the annotation.
    #[error(
        "pod {pod}: no annotation k8s.ovn.org/pod-networks after {after:?}; is slipstream-controller running?"
    )]
    NoAddresses {
        /// The pod.
        pod: NamespacedName,
        /// Time waited.
        after: Duration,
    },
    /// The annotation is invalid.
    #[error("pod {pod}: {source}")]
    Annotation {
        /// The pod.
        pod: NamespacedName,
        /// Error of the annotation.
        source: AnnotationError,
    },
}

impl PodError {
    /// True when a retry may succeed.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Annotation { .. })
    }
}

/// Pods of this node. Clones share them.
#[derive(Debug, Clone)]
pub struct Pods {
    pods: Arc<RwLock<HashMap<NamespacedName, PodInfo>>>,
    /// Counter of changes; 0 until the first full list is complete.
    version: watch::Sender<u64>,
    /// Serving pod of each host port; `None` until the first full list is complete.
    host_ports: watch::Sender<Option<HostPorts>>,
}

impl Default for Pods {
    fn default() -> Self {
        Self { pods: Arc::default(), version: watch::Sender::new(0), host_ports: watch::Sender::new(None) }
    }
}

impl Pods {
    /// Adds or updates a pod.
    pub fn apply(&self, key: NamespacedName, info: PodInfo) {
        let old = self.pods.write().insert(key, info.clone());
        if old.as_ref() != Some(&info) {
            self.bump();
        }
    }

    /// Removes a pod.
    pub fn delete(&self, key: &NamespacedName) {
        if self.pods.write().remove(key).is_some() {
            self.bump();
        }
    }

    /// Replaces all pods by a full list.
    pub fn reset(&self, all: HashMap<NamespacedName, PodInfo>) {
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

    /// Receiver that is notified of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Serving pod of each host port of this node; `None` until the first full list is complete.
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

    /// Data of a pod.
    pub fn get(&self, key: &NamespacedName) -> Option<PodInfo> {
        self.pods.read().get(key).cloned()
    }

    /// Data of the pod of an OVS port; `None` if the pod was replaced by another one of the same name.
    pub fn of_port(&self, port: &PodPort) -> Option<PodInfo> {
        self.get(&port.pod()?).filter(|pod| pod.uid == port.iface_id_ver)
    }

    /// True when a pod with this UID is on the node.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.pods.read().values().any(|info| info.uid == uid)
    }

    /// Waits for the addresses of a pod on all of its networks.
    ///
    /// `uid` is the UID passed by the runtime. The wait ends early when the pod is deleted.
    ///
    /// # Errors
    /// The addresses are not there in time, the annotation cannot be read, or the pod was deleted or replaced.
    pub async fn addresses(
        &self,
        key: &NamespacedName,
        uid: Option<&str>,
        timeout: Duration,
    ) -> Result<PodAddresses, PodError> {
        let mut version = self.version.subscribe();
        let start = tokio::time::Instant::now();
        let mut seen: Option<String> = None;
        loop {
            version.mark_unchanged();
            let now = self.get(key);
            let limit = match (&now, &seen) {
                (Some(info), _) if info.is(uid) => {
                    if let Some(value) = &info.networks {
                        let (default, others) = PodNetworks::read(value)
                            .map_err(|source| PodError::Annotation { pod: key.clone(), source })?;
                        return Ok(PodAddresses { uid: info.uid.clone(), default, others });
                    }
                    // A kubelet ends a pod only when its ADD has ended.
                    if info.is_going {
                        return Err(PodError::Gone { pod: key.clone(), uid: info.uid.clone() });
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
        (Some(info), Some(uid)) => {
            format!("; it has UID {} in the API, but the container runtime passed {uid}", info.uid)
        }
        _ => String::new(),
    }
}

/// Watches the pods of one node and keeps `pods` current. Never returns.
pub async fn follow(client: Client, node: String, pods: Pods, metrics: Metrics) {
    let config = client::watching().fields(&format!("spec.nodeName={node}"));
    let stream = watcher::watcher(Api::<Pod>::all(client), config).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut claims = Claims::default();
    // The incomplete new list.
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
                tracing::warn!(error = chain(&error), "watch of this node's pods failed; retrying");
            }
        }
    }
}

fn trim(pod: &Pod) -> (NamespacedName, PodInfo) {
    let key = NamespacedName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
    let annotation = |name: &str| pod.annotations().get(name).cloned();
    let info = PodInfo {
        uid: pod.uid().unwrap_or_default(),
        mirror_uid: annotation(MIRROR_POD),
        networks: annotation(POD_NETWORKS),
        selections: annotation(SELECTIONS),
        path: annotation(POD_PATH),
        forwards: forwards(pod),
        is_going: pod.metadata.deletion_timestamp.is_some(),
        limits_sending: pod.annotations().contains_key(EGRESS_BANDWIDTH),
    };
    (key, info)
}

/// Why a pod forwards packets instead of being their destination. Packets from a tunnel keep encapsulation metadata, which is
/// harmless at a socket, but makes a forwarder segment aggregates wrongly or pass wrong offsets to a device.
fn forwards(pod: &Pod) -> Option<&'static str> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    if pod.labels().contains_key(KUBEVIRT) {
        Some("the pod runs a virtual machine (label kubevirt.io)")
    } else if class.is_some_and(|class| class.starts_with("kata")) {
        Some("the pod runs in a virtual machine (runtimeClassName starts with kata)")
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

    fn key() -> NamespacedName {
        NamespacedName { namespace: "red".to_owned(), name: "a".to_owned() }
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
        let found = wait.await.unwrap().unwrap();
        let address = found.default.unwrap().ip_addresses[0].to_string();
        assert_eq!((found.uid.as_str(), address.as_str()), ("u1", "10.244.0.3/24"));
        assert!(found.others.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_pod_ends_the_wait_and_an_older_one_does_not_answer_for_the_new() {
        let pods = Pods::default();
        pods.apply(key(), info("old", Some(NETWORKS)));
        let error = pods.addresses(&key(), Some("new"), LONG).await.unwrap_err();
        assert!(
            error.to_string().contains("UID old in the API, but the container runtime passed new"),
            "{error}"
        );

        pods.apply(key(), info("new", None));
        let waiting = pods.clone();
        let wait = tokio::spawn(async move { waiting.addresses(&key(), Some("new"), LONG).await });
        tokio::task::yield_now().await;
        pods.delete(&key());
        assert!(matches!(wait.await.unwrap().unwrap_err(), PodError::Gone { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_being_deleted_waits_no_longer_and_keeps_what_it_has() {
        let pods = Pods::default();
        pods.apply(key(), info("u1", None));
        let waiting = pods.clone();
        let wait = tokio::spawn(async move { waiting.addresses(&key(), Some("u1"), LONG).await });
        tokio::task::yield_now().await;
        pods.apply(key(), PodInfo { is_going: true, ..info("u1", None) });
        assert!(matches!(wait.await.unwrap().unwrap_err(), PodError::Gone { .. }));
        pods.apply(key(), PodInfo { is_going: true, ..info("u1", Some(NETWORKS)) });
        assert!(pods.addresses(&key(), Some("u1"), LONG).await.is_ok());
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
        assert_eq!(pods.addresses(&key(), Some("hash"), LONG).await.unwrap().uid, "u1");
    }

    #[tokio::test]
    async fn addresses_on_other_networks_come_with_those_of_the_cluster_network() {
        let pods = Pods::default();
        let other = r#"{"shop/blue":{"ip_addresses":["172.16.0.3/24"],"mac_address":"0a:58:ac:10:00:03","interface":"net1"},"#;
        pods.apply(key(), info("u1", Some(&NETWORKS.replacen('{', other, 1))));
        let found = pods.addresses(&key(), None, LONG).await.unwrap();
        assert_eq!(found.others["shop/blue"].interface.as_deref(), Some("net1"));
        pods.apply(key(), info("u1", Some(&NETWORKS.replacen('{', &other.replace("net1", ""), 1))));
        let error = pods.addresses(&key(), None, LONG).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("`shop/blue.interface`"), "{error}");
    }

    #[test]
    fn a_pods_ports_on_every_network_are_that_pods() {
        let pods = Pods::default();
        pods.apply(key(), info("u1", None));
        let port = |iface_id: &str, uid: &str| PodPort {
            name: "p".to_owned(),
            iface_id: iface_id.to_owned(),
            iface_id_ver: uid.to_owned(),
            sandbox: "c1".to_owned(),
            pod_interface: "eth0".to_owned(),
            mac: String::new(),
            addresses: String::new(),
        };
        for iface_id in ["red_a", "shop.blue_red_a", "shop.blue.my_if_red_a"] {
            assert!(pods.of_port(&port(iface_id, "u1")).is_some(), "{iface_id}");
            assert!(pods.of_port(&port(iface_id, "u2")).is_none(), "{iface_id}");
        }
        for iface_id in ["red_b", "a", "red_a_b"] {
            assert!(pods.of_port(&port(iface_id, "u1")).is_none(), "{iface_id}");
        }
    }
}

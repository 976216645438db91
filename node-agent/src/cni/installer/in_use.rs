//! Detects whether the container runtime uses Slipstream's CNI configuration: it uses the first file of the directory by name. If a file
//! of another plugin sorts first, that plugin connects all new pods, without network policies and without an error. Where another plugin has
//! the cluster's network, the first file must be one of Multus.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Node as NodeObject, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;

use crate::cni::installer::configurations::{CONF, first_configuration, is_configuration};
use crate::cni::installer::multus::Multus;
use crate::kube::announce;
use crate::kube::client::in_time;
use crate::node::Node;

/// Type of the condition on the Node object.
pub const CONDITION: &str = api::annotation::CNI_CONFIGURATION_IN_USE;
/// Name of the warning in the agent.
const WARNING: &str = "cni-configuration";
/// Name of the warning when the condition cannot be written.
const WRITE: &str = "node-condition";

/// CNI configurations that the runtime prefers to Slipstream's, in the runtime's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// Configuration file of Slipstream.
    ours: PathBuf,
    /// Files that sort before it.
    before: Vec<PathBuf>,
    /// The first of all, if it is a configuration of Multus.
    multus: Option<Multus>,
    /// Whether Slipstream has the cluster's network.
    default_network: bool,
}

impl InUse {
    /// Lists the configuration directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn look(directory: &Path, default_network: bool) -> std::io::Result<Self> {
        let mut before = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_configuration(&name)
                && name.as_encoded_bytes() < CONF.as_bytes()
                && !entry.file_type()?.is_dir()
            {
                before.push(entry.path());
            }
        }
        before.sort();
        // A file that is gone meanwhile is looked at again, as its going wakes who looks.
        let multus = Multus::in_use(directory).unwrap_or_default();
        if !default_network {
            before = first_configuration(directory)?.into_iter().collect();
        }
        Ok(Self { ours: directory.join(CONF), before, multus, default_network })
    }

    /// Number of files that sort first; of none where there is none of ours.
    pub fn before(&self) -> usize {
        if self.default_network { self.before.len() } else { 0 }
    }

    /// Problem and remedy; `None` when Slipstream's configuration is in use.
    pub fn problem(&self) -> Option<String> {
        if !self.default_network {
            return self.without_multus();
        }
        let first = self.before.first()?;
        if let Some(Multus { other_default }) = &self.multus {
            let other = other_default.as_ref()?;
            return Some(format!(
                "the container runtime uses Multus ({}), which calls {other} for the cluster's network instead of {}: new pods are \
                 not connected by Slipstream; name {CONF} there, or run Slipstream with --default-network=false",
                first.display(),
                self.ours.display()
            ));
        }
        let others = match self.before.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!(
            "the container runtime uses {}{others} instead of {}: new pods are not connected by Slipstream; remove that file, or \
             give it a name that sorts after {CONF}, and restart the pods that were made meanwhile",
            first.display(),
            self.ours.display()
        ))
    }

    /// What is wrong where another plugin has the cluster's network, which [`Self::problem`] tells; `None` if nothing is.
    fn without_multus(&self) -> Option<String> {
        if self.multus.is_some() {
            return None;
        }
        let uses = match self.before.first() {
            Some(first) => format!("uses {}, which is no configuration of Multus", first.display()),
            None => "has no configuration".to_owned(),
        };
        Some(format!(
            "the container runtime {uses}: no call comes for a pod's interfaces on virtual networks; with --default-network=false install \
             Multus as the first configuration"
        ))
    }

    fn condition(&self) -> NodeCondition {
        let now = Some(Time(Timestamp::now()));
        let (status, reason, message) = match self.problem() {
            None if !self.default_network => {
                ("True", "CalledByMultus", "Multus calls Slipstream for virtual networks".to_owned())
            }
            None if self.multus.is_some() => {
                ("True", "UsedByMultus", format!("Multus calls Slipstream by {}", self.ours.display()))
            }
            None => {
                ("True", "FirstInDirectory", format!("{} is the first configuration", self.ours.display()))
            }
            Some(problem) => ("False", "AnotherConfigurationFirst", problem),
        };
        NodeCondition {
            type_: CONDITION.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: now.clone(),
            last_transition_time: now,
        }
    }
}

/// Updates the agent's warnings and metrics.
pub fn tell(node: &Node, now: &InUse) {
    node.metrics.cni_configurations_before(now.before());
    node.health.warning(WARNING, now.problem());
}

/// Keeps the condition of the Node object current; writes it only when it differs.
pub(crate) async fn keep_condition(
    node: Node,
    name: String,
    nodes: Api<NodeObject>,
    values: watch::Receiver<Option<InUse>>,
) {
    let write = |value: InUse| write_condition(nodes.clone(), name.clone(), value.condition());
    announce::keep_quietly(&node.reports(), WRITE, values, write).await;
}

async fn write_condition(nodes: Api<NodeObject>, name: String, wanted: NodeCondition) -> anyhow::Result<()> {
    let object = in_time(nodes.get(&name)).await?;
    let all = object.status.and_then(|status| status.conditions).unwrap_or_default();
    let there = all.into_iter().find(|condition| condition.type_ == CONDITION);
    if there.is_some_and(|there| says_the_same(&there, &wanted)) {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({ "status": { "conditions": [wanted] } }));
    in_time(nodes.patch_status(&name, &PatchParams::default(), &patch)).await?;
    tracing::info!(status = wanted.status, "node condition {CONDITION} updated");
    Ok(())
}

fn says_the_same(there: &NodeCondition, wanted: &NodeCondition) -> bool {
    (&there.status, &there.reason, &there.message) == (&wanted.status, &wanted.reason, &wanted.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(names: &[&str]) -> (tempfile::TempDir, InUse) {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        let look = InUse::look(dir.path(), true).unwrap();
        (dir, look)
    }

    #[test]
    fn what_the_runtime_takes_before_ours_is_named_with_what_to_do() {
        let (dir, now) = with(&[CONF, "10-other.conflist", "05-first.conf", "99-last.conf"]);
        let problem = now.problem().unwrap();
        assert_eq!(now.before(), 2);
        let first = dir.path().join("05-first.conf");
        assert!(problem.contains(&format!("{} (and 1 more)", first.display())), "{problem}");
        assert!(problem.contains("remove that file"), "{problem}");
        let condition = now.condition();
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_deref()),
            ("False", Some("AnotherConfigurationFirst"))
        );
        assert_eq!(condition.message, Some(problem));
    }

    #[test]
    fn multus_before_ours_is_fine_where_it_calls_ours() {
        let with = |network: &str| {
            let (dir, _) = with(&[CONF]);
            let text = json!({ "type": "multus", "clusterNetwork": network }).to_string();
            std::fs::write(dir.path().join("00-multus.conf"), text).unwrap();
            InUse::look(dir.path(), true).unwrap()
        };
        let good = with(&format!("/host/etc/cni/net.d/{CONF}"));
        assert_eq!((good.problem(), good.condition().reason.as_deref()), (None, Some("UsedByMultus")));
        let other = with("/etc/cni/net.d/10-flannel.conflist");
        let problem = other.problem().unwrap();
        assert!(problem.contains("10-flannel.conflist for the cluster's network"), "{problem}");
        assert!(problem.contains("--default-network=false"), "{problem}");
        assert_eq!(other.condition().status, "False");
    }

    #[test]
    fn beside_another_plugin_the_first_configuration_must_be_one_of_multus() {
        let (dir, _) = with(&["20-other.conflist"]);
        let look = || InUse::look(dir.path(), false).unwrap();
        let problem = look().problem().unwrap();
        assert!(problem.contains("20-other.conflist, which is no configuration of Multus"), "{problem}");
        assert_eq!((look().before(), look().condition().status.as_str()), (0, "False"));
        let network = r#"{ "type": "multus", "clusterNetwork": "/etc/cni/net.d/20-other.conflist" }"#;
        std::fs::write(dir.path().join("00-multus.conf"), network).unwrap();
        assert_eq!((look().problem(), look().condition().reason.as_deref()), (None, Some("CalledByMultus")));
        let (empty, _) = with(&[]);
        let problem = InUse::look(empty.path(), false).unwrap().problem().unwrap();
        assert!(problem.contains("has no configuration"), "{problem}");
    }

    #[test]
    fn what_is_no_configuration_or_comes_after_ours_is_fine() {
        let (dir, now) =
            with(&[CONF, "00-notes.txt", "05-old.conf.bak", "10-slipstream.conflist", "11-b.json"]);
        std::fs::create_dir(dir.path().join("00-directory.conf")).unwrap();
        assert_eq!(InUse::look(dir.path(), true).unwrap(), now);
        assert_eq!((now.before(), now.problem(), now.condition().status.as_str()), (0, None, "True"));
    }
}

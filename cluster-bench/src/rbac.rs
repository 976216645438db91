//! The rights that a run needs, as objects. Pure.

use crate::objects::{LABEL, MINE};

/// Name of the service account and of what gives it rights.
const NAME: &str = "slipstream-perf-tests";

/// The objects as YAML: a namespace for runs, a service account, and the fewest rights that suffice. As the run does not make that
/// namespace, it does not remove it either.
pub(crate) fn text(namespace: &str) -> String {
    format!(
        "\
# The least that `perf-tests run --namespace {namespace}` needs. A kubeconfig for it:
#   kubectl create token {NAME} --namespace {namespace}
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    {LABEL}: {MINE}
    # Paths from and to nodes need pods with the network of their node. With `restricted` these paths are left out.
    pod-security.kubernetes.io/enforce: privileged
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {NAME}
  namespace: {namespace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {NAME}
  namespace: {namespace}
rules:
  # Servers and clients.
  - apiGroups: [\"\"]
    resources: [pods]
    verbs: [create, get, list, delete]
  # Results, which clients print.
  - apiGroups: [\"\"]
    resources: [pods/log]
    verbs: [get]
  - apiGroups: [\"\"]
    resources: [services]
    verbs: [create, get, list, delete]
  # Why a pod is not ready.
  - apiGroups: [\"\"]
    resources: [events]
    verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {NAME}
  namespace: {namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {NAME}
subjects:
  - kind: ServiceAccount
    name: {NAME}
    namespace: {namespace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {NAME}
rules:
  # Which nodes there are, and what they are.
  - apiGroups: [\"\"]
    resources: [nodes]
    verbs: [get, list]
  # Whether the namespace is one for runs.
  - apiGroups: [\"\"]
    resources: [namespaces]
    resourceNames: [{namespace}]
    verbs: [get]
  # Which network plugin there is. Without it the report does not say.
  - apiGroups: [apps]
    resources: [daemonsets]
    verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {NAME}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {NAME}
subjects:
  - kind: ServiceAccount
    name: {NAME}
    namespace: {namespace}
"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};

    use super::*;

    #[test]
    fn each_document_is_the_object_that_it_says() {
        let text = text("bench");
        let all: Vec<&str> = text.split("---\n").collect();
        let namespace: Namespace = serde_saphyr::from_str(all[0]).unwrap();
        assert_eq!(namespace.metadata.labels.unwrap()[LABEL], MINE);
        let account: ServiceAccount = serde_saphyr::from_str(all[1]).unwrap();
        let role: Role = serde_saphyr::from_str(all[2]).unwrap();
        let binding: RoleBinding = serde_saphyr::from_str(all[3]).unwrap();
        let cluster: ClusterRole = serde_saphyr::from_str(all[4]).unwrap();
        let bound: ClusterRoleBinding = serde_saphyr::from_str(all[5]).unwrap();
        assert_eq!((all.len(), role.metadata.namespace.as_deref()), (6, Some("bench")));
        assert_eq!(binding.subjects.unwrap()[0].name, account.metadata.name.unwrap());
        assert_eq!(bound.role_ref.name, cluster.metadata.name.unwrap());
        let rules: Vec<PolicyRule> = role.rules.into_iter().chain(cluster.rules).flatten().collect();
        let verbs = |rule: &PolicyRule| {
            rule.verbs.iter().any(|v| ["*", "update", "patch", "watch"].contains(&v.as_str()))
        };
        assert!(!rules.iter().any(verbs), "{rules:?}");
        assert!(!text.contains("pods/exec") && !text.contains("secrets"));
    }
}

//! Which package may depend on which: dependencies between the workspace's crates point one way.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::exec;

/// The packages of the workspace on which each package may depend.
const ALLOWED: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("supervision", &[]),
    ("ovsdb-client", &[]),
    ("ebpf", &[]),
    ("controller", &["api", "supervision", "ovsdb-client"]),
    ("node-agent", &["api", "supervision", "ovsdb-client", "ebpf"]),
    ("slipctl", &["api"]),
    ("slipstream-cni", &["api"]),
    ("entrypoint", &[]),
    ("oci-image", &[]),
    ("testbed", &["api", "ovsdb-client", "ebpf", "controller", "node-agent", "oci-image"]),
    (TEST_SUPPORT, &[]),
    // Of the agent: what a change of flows concerns, compared with what it does.
    ("e2e", &["api", "node-agent", "ovsdb-client", TEST_SUPPORT, "testbed"]),
    (
        "perf-tests",
        &["api", "ovsdb-client", "ebpf", "controller", "node-agent", "testbed", "traffic", "cluster-bench"],
    ),
    ("traffic", &[]),
    ("cluster-bench", &["traffic"]),
    ("fuzz", &["api", "ovsdb-client", "ebpf", "controller", "node-agent", "traffic"]),
    ("xtask", &[]),
];
/// The package on which the tests of every package may depend.
const TEST_SUPPORT: &str = "test-support";
/// External crates that a package must not use.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("api", &["tokio", "kube", "aya", "rtnetlink"]),
    ("supervision", &["kube", "aya", "rtnetlink"]),
    ("ovsdb-client", &["kube", "k8s-openapi", "aya", "rtnetlink"]),
    ("controller", &["aya", "rtnetlink", "netlink-sys"]),
    ("ebpf", &["tokio", "kube"]),
    ("slipctl", &["tokio", "kube", "k8s-openapi", "aya", "rtnetlink"]),
    ("entrypoint", &["tokio", "kube", "k8s-openapi", "aya", "rtnetlink"]),
    ("traffic", &["tokio", "kube", "k8s-openapi", "aya", "rtnetlink"]),
    ("cluster-bench", &["aya", "rtnetlink"]),
    ("slipstream-cni", &["tokio", "kube", "k8s-openapi", "aya", "rtnetlink", "clap"]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// Reads the workspace's metadata and fails on a forbidden dependency.
pub(super) fn check() -> Result<()> {
    let text = exec::output(exec::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("output of cargo metadata")?;
    let wrong = violations(&metadata.packages);
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

fn violations(packages: &[Package]) -> Vec<String> {
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let forbidden: BTreeMap<_, _> = FORBIDDEN.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let Some(may) = allowed.get(package.name.as_str()) else {
            wrong.push(format!(
                "package {} is new: say in xtask/src/lint/deps.rs what it may depend on",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            // A test may use what the product must not.
            let of_tests = dependency.kind.as_deref() == Some("dev");
            let ours = allowed.contains_key(dependency.name.as_str()) && dependency.name != package.name;
            let support = of_tests && dependency.name == TEST_SUPPORT;
            if ours && !support && !may.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} must not depend on {}", package.name, dependency.name));
            }
            let no =
                forbidden.get(package.name.as_str()).is_some_and(|f| f.contains(&dependency.name.as_str()));
            if no && !of_tests {
                wrong.push(format!("{} must not depend on {}", package.name, dependency.name));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependency: &str, kind: Option<&str>) -> Vec<Package> {
        let dependency = Dependency { name: dependency.into(), kind: kind.map(Into::into) };
        vec![Package { name: name.into(), dependencies: vec![dependency] }]
    }

    #[test]
    fn controller_and_node_agent_meet_only_in_api() {
        assert_eq!(violations(&package("controller", "api", None)).len(), 0);
        assert_eq!(violations(&package("controller", "node-agent", None)).len(), 1);
        assert_eq!(violations(&package("node-agent", "controller", Some("dev"))).len(), 1);
    }

    #[test]
    fn tests_may_use_crates_that_the_product_must_not() {
        assert_eq!(violations(&package("api", "tokio", None)).len(), 1);
        assert_eq!(violations(&package("api", "tokio", Some("dev"))).len(), 0);
    }

    #[test]
    fn every_package_may_use_test_support_in_its_tests_only() {
        assert_eq!(violations(&package("ovsdb-client", TEST_SUPPORT, Some("dev"))).len(), 0);
        assert_eq!(violations(&package("ovsdb-client", TEST_SUPPORT, None)).len(), 1);
    }

    #[test]
    fn a_new_package_must_be_named() {
        assert_eq!(violations(&package("surprise", "serde", None)).len(), 1);
    }
}

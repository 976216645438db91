//! The programs of a cluster that are built here: Kubernetes, its test suite, the container runtime, the DNS server, and Multus with
//! plugins of other networks. They are built in groups, each a step with a stamp of its own. A program that exists in `KUBEBUILDER_ASSETS` is
//! used from there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::go::{Kind, Module};
use super::{Lane, Scope, Step, stamp};
use crate::exec;

const KUBERNETES: Module = Module {
    name: "kubernetes",
    tags: "",
    version_of: "k8s.io/kubernetes",
    version_variables: |version| {
        let minor = version.split('.').nth(1).unwrap_or_default();
        [("gitVersion", format!("v{version}")), ("gitMajor", "1".into()), ("gitMinor", minor.into())]
            .map(|(name, value)| format!("k8s.io/component-base/version.{name}={value}"))
            .to_vec()
    },
};

const CONTAINERD: Module = Module {
    name: "containerd",
    // Snapshotters that need libraries or kernel features that a node here does not use.
    tags: "no_btrfs,no_devmapper,no_zfs,no_aufs",
    version_of: "github.com/containerd/containerd/v2",
    version_variables: |version| {
        vec![format!("github.com/containerd/containerd/v2/version.Version=v{version}")]
    },
};

const HELM: Module = Module {
    name: "helm",
    tags: "",
    version_of: "helm.sh/helm/v4",
    version_variables: |version| vec![format!("helm.sh/helm/v4/internal/version.version=v{version}")],
};

const COREDNS: Module = Module {
    name: "coredns",
    tags: "",
    version_of: "github.com/coredns/coredns",
    version_variables: |_| Vec::new(),
};

const MULTUS: Module = Module {
    name: "multus",
    tags: "",
    version_of: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4",
    version_variables: |version| {
        vec![format!("gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/multus.version=v{version}")]
    },
};

const PLUGINS: Module = Module {
    name: "plugins",
    tags: "",
    version_of: "github.com/containernetworking/plugins",
    version_variables: |version| {
        vec![format!("github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v{version}")]
    },
};

/// Where a file of a group comes from.
#[derive(Clone, Copy, Debug, Hash)]
enum Source {
    /// A Go package.
    Go(Kind, &'static str),
    /// A C file in the sources of the module whose version is reported, linked statically.
    C(&'static str),
    /// A file in those sources, unchanged.
    Copy(&'static str),
}

#[derive(Debug)]
struct Group {
    /// Name for the output.
    title: &'static str,
    /// Name of the stamp.
    key: &'static str,
    /// Directory in the cache.
    directory: &'static str,
    module: Module,
    files: &'static [(&'static str, Source)],
}

const fn go(package: &'static str) -> Source {
    Source::Go(Kind::Program, package)
}

/// Key of the group that every cluster needs.
const CONTROL: &str = "control";
/// Key of the group that the chart needs.
const CHART: &str = "helm";

const GROUPS: &[Group] = &[
    Group {
        title: "etcd and the Kubernetes control plane",
        key: CONTROL,
        directory: "k8s",
        module: KUBERNETES,
        files: &[
            ("etcd", go("go.etcd.io/etcd/server/v3")),
            ("kube-apiserver", go("k8s.io/kubernetes/cmd/kube-apiserver")),
            ("kube-controller-manager", go("k8s.io/kubernetes/cmd/kube-controller-manager")),
            ("kubectl", go("k8s.io/kubernetes/cmd/kubectl")),
        ],
    },
    Group {
        title: "kubelet and scheduler",
        key: "node",
        directory: "k8s",
        module: KUBERNETES,
        files: &[
            ("kube-scheduler", go("k8s.io/kubernetes/cmd/kube-scheduler")),
            ("kubelet", go("k8s.io/kubernetes/cmd/kubelet")),
            ("pause", Source::C("build/pause/linux/pause.c")),
        ],
    },
    Group {
        title: "the upstream end-to-end suite",
        key: "suite",
        directory: "k8s",
        module: KUBERNETES,
        files: &[
            ("e2e.test", Source::Go(Kind::Tests, "k8s.io/kubernetes/test/e2e")),
            ("ginkgo", go("github.com/onsi/ginkgo/v2/ginkgo")),
            ("agnhost", go("k8s.io/kubernetes/test/images/agnhost")),
            ("regression-issue-74839", go("k8s.io/kubernetes/test/images/regression-issue-74839")),
            ("porter.crt", Source::Copy("test/images/agnhost/porter/localhost.crt")),
            ("porter.key", Source::Copy("test/images/agnhost/porter/localhost.key")),
        ],
    },
    Group {
        title: "containerd",
        key: "containerd",
        directory: "containerd",
        module: CONTAINERD,
        files: &[
            ("containerd", go("github.com/containerd/containerd/v2/cmd/containerd")),
            (
                "containerd-shim-runc-v2",
                go("github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
            ),
            ("ctr", go("github.com/containerd/containerd/v2/cmd/ctr")),
        ],
    },
    Group {
        title: "Multus",
        key: "multus",
        directory: "cni",
        module: MULTUS,
        files: &[
            ("multus", go("gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus")),
            ("passthru", go("gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/passthru-cni")),
        ],
    },
    Group {
        title: "plugins of other networks",
        key: "plugins",
        directory: "cni",
        module: PLUGINS,
        files: &[
            ("bridge", go("github.com/containernetworking/plugins/plugins/main/bridge")),
            ("macvlan", go("github.com/containernetworking/plugins/plugins/main/macvlan")),
            ("ptp", go("github.com/containernetworking/plugins/plugins/main/ptp")),
            ("host-local", go("github.com/containernetworking/plugins/plugins/ipam/host-local")),
            ("static", go("github.com/containernetworking/plugins/plugins/ipam/static")),
            ("tuning", go("github.com/containernetworking/plugins/plugins/meta/tuning")),
        ],
    },
    Group {
        title: "CoreDNS",
        key: "coredns",
        directory: "coredns",
        module: COREDNS,
        files: &[("coredns", go("."))],
    },
    Group {
        title: "Helm",
        key: CHART,
        directory: "helm",
        module: HELM,
        files: &[("helm", go("helm.sh/helm/v4/cmd/helm"))],
    },
];

/// One group in the cache.
struct Programs {
    group: &'static Group,
    dir: PathBuf,
    work: PathBuf,
    assets: Option<PathBuf>,
}

/// The steps of the groups that `scope` needs.
pub(super) fn steps(cache: &Path, scope: Scope) -> Vec<Box<dyn Step>> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map(PathBuf::from);
    GROUPS
        .iter()
        .filter(|group| match scope {
            Scope::All => true,
            Scope::Light => group.key == CONTROL,
            Scope::Chart => group.key == CHART,
        })
        .map(|group| -> Box<dyn Step> {
            Box::new(Programs {
                group,
                dir: cache.join(group.directory),
                // Other steps run at the same time, and each removes its own directory.
                work: cache.join("tmp-go"),
                assets: assets.clone(),
            })
        })
        .collect()
}

impl Programs {
    fn inputs(&self) -> Result<String> {
        let module = &self.group.module;
        let taken: Vec<_> = self.group.files.iter().filter_map(|(name, _)| self.asset(name)).collect();
        Ok(stamp::hash((self.group.files, module.tags, module.files()?, taken)))
    }

    /// The program in `KUBEBUILDER_ASSETS`, if it is there.
    fn asset(&self, name: &str) -> Option<PathBuf> {
        let path = std::path::absolute(self.assets.as_ref()?.join(name)).ok()?;
        path.is_file().then_some(path)
    }

    /// The program in `KUBEBUILDER_ASSETS`, if it has the minor version of the module. Components of Kubernetes whose versions
    /// differ more are not meant to work together.
    fn fitting_asset(&self, name: &str) -> Result<Option<PathBuf>> {
        let Some(path) = self.asset(name) else { return Ok(None) };
        if !name.starts_with("kube-") {
            return Ok(Some(path));
        }
        let wanted = self.group.module.version()?;
        let said = exec::output(exec::command(&path).arg("--version")).unwrap_or_default();
        if same_minor(&said, &wanted) {
            return Ok(Some(path));
        }
        exec::say(format_args!(
            "setup: {} says {:?}, and {wanted} is wanted: {name} is built instead",
            path.display(),
            said.trim()
        ));
        Ok(None)
    }

    fn make(&self, name: &str, source: Source, to: &Path) -> Result<()> {
        if let Some(asset) = self.fitting_asset(name)? {
            return Ok(std::os::unix::fs::symlink(asset, to)?);
        }
        let module = &self.group.module;
        match source {
            Source::Go(kind, package) => module.compile(kind, package, to),
            Source::C(file) => {
                let file = module.sources_of(module.version_of)?.join(file);
                let version = format!("-DVERSION={}-slipstream", module.version()?);
                exec::run(
                    exec::command("gcc").args(["-Os", "-static", "-s", &version, "-o"]).arg(to).arg(file),
                )
            }
            Source::Copy(file) => {
                let file = module.sources_of(module.version_of)?.join(file);
                // The mode is not copied: module sources are read-only.
                let data = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                fs::write(to, data).with_context(|| format!("cannot write {}", to.display()))
            }
        }
    }
}

impl Step for Programs {
    fn name(&self) -> String {
        self.group.title.into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        if !stamp::group_is_current(&self.dir, self.group.key, &self.inputs()?) {
            missing.push("programs in the cache (the first build takes some minutes)".to_owned());
        }
        let absent = self.group.files.iter().filter(|(name, _)| !self.dir.join(name).exists());
        missing.extend(absent.map(|(name, _)| (*name).to_owned()));
        Ok(missing)
    }

    fn lane(&self) -> Lane {
        Lane::Beside
    }

    fn install(&self) -> Result<()> {
        stamp::replace_group(&self.dir, &self.work, self.group.key, &self.inputs()?, |fresh| {
            for (name, source) in self.group.files {
                self.make(name, *source, &fresh.join(name)).with_context(|| (*name).to_owned())?;
            }
            Ok(())
        })
    }
}

/// Whether the version that a component prints (`Kubernetes v1.36.3`) has the same minor version.
fn same_minor(said: &str, wanted: &str) -> bool {
    let minor = |v: &str| v.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    said.split_whitespace()
        .find_map(|w| w.strip_prefix('v'))
        .is_some_and(|v| minor(v) == minor(wanted) && minor(v).len() == 2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_components_of_one_minor_version_are_put_together() {
        assert!(same_minor("Kubernetes v1.36.0\n", "1.36.3"));
        assert!(!same_minor("Kubernetes v1.35.3", "1.36.3"));
        assert!(!same_minor("Kubernetes v1", "1"));
        assert!(!same_minor("", "1.36.3"));
    }

    #[test]
    fn no_two_groups_make_the_same_file_or_share_a_stamp() {
        let (mut files, mut stamps) = (BTreeSet::new(), BTreeSet::new());
        for group in GROUPS {
            assert!(stamps.insert((group.directory, group.key)), "{}", group.key);
            for (name, _) in group.files {
                assert!(files.insert((group.directory, name)), "{name}");
            }
        }
    }

    #[test]
    fn every_wrapper_module_pins_what_it_builds() {
        for group in GROUPS {
            assert!(group.module.version().unwrap().split('.').count() >= 3, "{}", group.key);
            assert!(group.module.files().unwrap().iter().any(|(name, _)| name == "go.sum"), "{}", group.key);
        }
    }
}

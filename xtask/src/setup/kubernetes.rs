//! etcd, kube-apiserver, kube-controller-manager and kubectl: taken from `KUBEBUILDER_ASSETS` when that is set,
//! else built from their Go modules through the wrapper module in `testbed/go/kubernetes`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Step, apt, stamp};
use crate::{exec, paths};

const PROGRAMS: &[&str] = &["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"];

pub(super) struct Kubernetes {
    pub(super) dir: PathBuf,
    pub(super) work: PathBuf,
}

fn module() -> PathBuf {
    paths::root().join("testbed/go/kubernetes")
}

fn assets() -> Option<PathBuf> {
    std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map(PathBuf::from)
}

impl Kubernetes {
    fn inputs() -> Result<String> {
        if let Some(dir) = assets() {
            return Ok(stamp::hash((PROGRAMS, dir)));
        }
        let module = module();
        let read = |name: &str| {
            fs::read(module.join(name)).with_context(|| format!("{name} of {}", module.display()))
        };
        Ok(stamp::hash((PROGRAMS, read("go.mod")?, read("go.sum")?)))
    }
}

impl Step for Kubernetes {
    fn name(&self) -> String {
        "etcd and Kubernetes".into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        if !stamp::is_current(&self.dir, &Self::inputs()?) {
            missing.push("programs in the cache (the first build takes some minutes)".to_owned());
        }
        missing.extend(PROGRAMS.iter().filter(|p| !self.dir.join(p).exists()).map(|p| (*p).to_owned()));
        Ok(missing)
    }

    fn install(&self) -> Result<()> {
        stamp::replace(&self.dir, &self.work, &Self::inputs()?, |dir| match assets() {
            Some(assets) => take(&assets, dir),
            None => build(dir),
        })
    }
}

fn take(assets: &Path, dir: &Path) -> Result<()> {
    for program in PROGRAMS {
        let from = assets.join(program);
        if !from.is_file() {
            bail!(
                "{program} is not in KUBEBUILDER_ASSETS ({}); put it there, or unset the variable",
                assets.display()
            );
        }
        std::os::unix::fs::symlink(std::path::absolute(from)?, dir.join(program))?;
    }
    Ok(())
}

fn build(dir: &Path) -> Result<()> {
    let go = find_go()?;
    let version = required_version()?;
    let (major, minor) =
        version.split_once('.').map(|(a, b)| (a, b.split('.').next().unwrap_or(b))).unwrap_or(("1", ""));
    let component = "k8s.io/component-base/version";
    let stamp = format!(
        "-s -w -X {component}.gitVersion=v{version} -X {component}.gitMajor={major} -X {component}.gitMinor={minor}"
    );
    let compile = |flags: &str, output: PathBuf, packages: &[&str]| {
        exec::run(
            exec::command(&go)
                .current_dir(module())
                .env("CGO_ENABLED", "0")
                .env("GOFLAGS", "-mod=readonly")
                .args(["build", "-trimpath", "-ldflags", flags, "-o"])
                .arg(output)
                .args(packages),
        )
    };
    let kubernetes: Vec<String> =
        PROGRAMS[1..].iter().map(|p| format!("k8s.io/kubernetes/cmd/{p}")).collect();
    let kubernetes: Vec<&str> = kubernetes.iter().map(String::as_str).collect();
    compile(&stamp, dir.join(""), &kubernetes)?;
    compile("-s -w", dir.join("etcd"), &["go.etcd.io/etcd/server/v3"])
}

/// The Kubernetes version in the wrapper module's requirements, without its `v`.
fn required_version() -> Result<String> {
    let text = fs::read_to_string(module().join("go.mod"))?;
    text.lines()
        .filter_map(|l| l.trim().strip_prefix("k8s.io/kubernetes v"))
        .map(|v| v.split_whitespace().next().unwrap_or(v).to_owned())
        .next()
        .context("testbed/go/kubernetes/go.mod requires no k8s.io/kubernetes")
}

/// Go, installed from the system's packages if there is none. Go 1.21 and newer fetch the version that the
/// module asks for.
fn find_go() -> Result<PathBuf> {
    if paths::which("go").is_none() {
        apt::install(&["golang-go".to_owned()]).context("Kubernetes is built with Go, and there is none")?;
    }
    let go =
        paths::which("go").context("no `go` on PATH; install Go 1.21 or newer, or set KUBEBUILDER_ASSETS")?;
    let text = exec::output(exec::command(&go).arg("version"))?;
    let minor = text
        .split_whitespace()
        .find_map(|w| w.strip_prefix("go1."))
        .and_then(|v| v.split(['.', '-']).next().and_then(|m| m.parse::<u32>().ok()));
    match minor {
        Some(minor) if minor < 21 => {
            bail!(
                "{} is too old to build Kubernetes; install Go 1.21 or newer, or set KUBEBUILDER_ASSETS",
                text.trim()
            )
        }
        _ => Ok(go),
    }
}

//! Which kubelets work with an API server.

use anyhow::{Context, Result, ensure};

use crate::config::Config;
use crate::exec;

/// By how many minor versions a kubelet may be older than the API server; newer it may not be (Kubernetes, "Version
/// Skew Policy").
const OLDER: u32 = 3;

/// Fails early, naming both versions, where a kubelet would only behave strangely.
pub(super) fn check(config: &Config) -> Result<()> {
    let version = |program: &str| {
        let path = config.kubernetes(program);
        exec::output(exec::command(&path).arg("--version")).with_context(|| path.display().to_string())
    };
    judge(version("kube-apiserver")?.trim(), version("kubelet")?.trim())
}

/// Both as the programs print them: `Kubernetes v1.36.3`.
fn judge(api: &str, kubelet: &str) -> Result<()> {
    let (server, node) = (minor(api)?, minor(kubelet)?);
    ensure!(
        server.0 == node.0 && node.1 <= server.1 && server.1 - node.1 <= OLDER,
        "the kubelet is {kubelet} and the API server {api}: a kubelet may be up to {OLDER} minor versions older, and not \
         newer; run `cargo xtask setup`"
    );
    Ok(())
}

/// Major and minor version.
fn minor(text: &str) -> Result<(u32, u32)> {
    let numbers = text.rsplit(" v").next().unwrap_or_default();
    let mut parts = numbers.split('.').map(|part| part.parse().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => Ok((major, minor)),
        _ => anyhow::bail!("{text:?} is no version of Kubernetes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_may_be_three_minor_versions_older_and_never_newer() {
        let judge = |kubelet: &str| judge("Kubernetes v1.36.3", kubelet);
        for good in ["Kubernetes v1.36.9", "Kubernetes v1.35.0", "Kubernetes v1.33.12"] {
            judge(good).unwrap();
        }
        for bad in ["Kubernetes v1.32.9", "Kubernetes v1.37.0-alpha.1", "Kubernetes v2.36.3"] {
            let error = judge(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("v1.36.3"), "{error}");
        }
        assert!(judge("oops").is_err());
    }
}

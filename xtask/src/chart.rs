//! `cargo xtask chart`: the manifests that are rendered from the Helm chart, for those who do not use Helm, and whether they are
//! current.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::setup::Scope;
use crate::{exec, paths, setup};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if a manifest is out of date.
    #[arg(long)]
    check: bool,
}

/// The namespace of the manifests; that of `deploy/rbac.yaml`.
const NAMESPACE: &str = "kube-system";
const CHART: &str = "deploy/chart";
/// Values in place of those that a cluster must set.
const EXAMPLE: &str = "deploy/values-example.yaml";

/// A manifest that is rendered.
struct Manifest {
    file: &'static str,
    /// Its first lines.
    head: &'static str,
    flags: &'static [&'static str],
}

const MANIFESTS: &[Manifest] = &[
    Manifest {
        file: "deploy/slipstream.yaml",
        head: "# Written by `cargo xtask chart` from deploy/chart: change that one. Before this is applied, put your addresses into the\n\
               # ConfigMap: SLIPSTREAM_API_SERVER and SLIPSTREAM_OVN_CENTRAL (docs/install.md).\n",
        flags: &["--no-hooks"],
    },
    Manifest {
        file: "deploy/slipstream-cleanup.yaml",
        head: "# Written by `cargo xtask chart` from deploy/chart: change that one. Apply this after slipstream.yaml was deleted: it takes\n\
               # everything off the nodes (docs/install.md).\n",
        flags: &["--show-only", "templates/cleanup.yaml"],
    },
];

/// Renders the manifests, or compares them.
pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure_beside(Scope::Chart, || Ok(()))?;
    lint()?;
    let mut old = Vec::new();
    for manifest in MANIFESTS {
        let text = render(manifest)?;
        let path = paths::root().join(manifest.file);
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            continue;
        }
        if args.check {
            old.push(manifest.file);
        } else {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            exec::say(format_args!("written: {}", manifest.file));
        }
    }
    if old.is_empty() { Ok(()) } else { bail!("out of date: {}; run `cargo xtask chart`", old.join(", ")) }
}

/// For `cargo xtask lint`.
pub(crate) fn check() -> Result<()> {
    run(&Args { check: true })
}

fn helm() -> Result<PathBuf> {
    Ok(paths::cache()?.join("helm/helm"))
}

fn lint() -> Result<()> {
    // What is off by default must be right as well.
    for set in [&[][..], &["--set", "monitoring.enabled=true,controller.networkApi.secretName=network-api"]] {
        let mut lint = exec::command(helm()?);
        lint.args(["lint", "--strict", "--quiet", CHART, "--values", EXAMPLE]).args(set);
        exec::output(&mut lint)?;
    }
    Ok(())
}

fn render(manifest: &Manifest) -> Result<String> {
    let mut template = exec::command(helm()?);
    template.args(["template", "slipstream", CHART, "--namespace", NAMESPACE, "--values", EXAMPLE]);
    let text = exec::output(template.args(manifest.flags))
        .with_context(|| format!("{} of {CHART}", manifest.file))?;
    Ok(tidy(manifest.head, &text))
}

/// The rendered objects without what is Helm's own: annotations of hooks, and labels that name the tool.
fn tidy(head: &str, rendered: &str) -> String {
    let own =
        ["helm.sh/hook", "# Source: ", "app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/instance: "];
    let mut lines: Vec<&str> = Vec::new();
    for line in rendered.lines().map(str::trim_end) {
        let word = line.trim_start();
        if own.iter().any(|own| word.starts_with(own)) {
            continue;
        }
        // Nothing was left of the annotations of a hook.
        let indent = |line: &str| line.len() - line.trim_start().len();
        if lines.last().is_some_and(|last| last.trim() == "annotations:" && indent(last) >= indent(line)) {
            lines.pop();
        }
        lines.push(line);
    }
    format!("{head}{}\n", lines.join("\n").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_helms_own_is_left_out() {
        let rendered = "---\n# Source: slipstream/templates/x.yaml\nmetadata:\n  annotations:\n    helm.sh/hook: post-delete\n  \
                        name: x\n  labels:\n    app.kubernetes.io/managed-by: Helm\n    a: b\nspec:\n  annotations:\n    c: d\n\n";
        assert_eq!(
            tidy("# head\n", rendered),
            "# head\n---\nmetadata:\n  name: x\n  labels:\n    a: b\nspec:\n  annotations:\n    c: d\n"
        );
    }

    #[test]
    fn every_manifest_is_there_and_says_where_it_is_from() {
        for manifest in MANIFESTS {
            let text = fs::read_to_string(paths::root().join(manifest.file)).unwrap();
            assert!(text.starts_with(manifest.head), "{}", manifest.file);
        }
    }
}

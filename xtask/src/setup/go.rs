//! Go: finds it, and compiles programs through the wrapper modules in `testbed/go`, which pin every version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::apt;
use crate::{exec, paths};

/// A wrapper module: it contains almost no code of its own, but requires the modules that are built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Module {
    /// Its directory under `testbed/go`.
    pub(super) name: &'static str,
    /// Build tags.
    pub(super) tags: &'static str,
    /// The module whose version the programs report, and the linker variables that hold it.
    pub(super) version_of: &'static str,
    pub(super) version_variables: fn(&str) -> Vec<String>,
}

/// How a program is built from its package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// `go build`.
    Program,
    /// `go test -c`: the package's tests as a program.
    Tests,
}

impl Module {
    fn directory(&self) -> PathBuf {
        paths::root().join("testbed/go").join(self.name)
    }

    /// The inputs of a build: the files of the module.
    pub(super) fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let directory = self.directory();
        let mut files = Vec::new();
        for entry in
            fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            // `tools.go` names the programs for `go mod tidy` and does not affect what is built.
            if name != "tools.go" && path.is_file() {
                files.push((
                    name,
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
                ));
            }
        }
        files.sort();
        Ok(files)
    }

    /// The version that is reported, without its `v`.
    pub(super) fn version(&self) -> Result<String> {
        let path = self.directory().join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        required(&text, self.version_of)
            .with_context(|| format!("{} requires no {}", path.display(), self.version_of))
    }

    /// Compiles a package into a file.
    pub(super) fn compile(&self, kind: Kind, package: &str, output: &Path) -> Result<()> {
        let mut flags = vec!["-s".to_owned(), "-w".to_owned()];
        for variable in (self.version_variables)(&self.version()?) {
            flags.extend(["-X".to_owned(), variable]);
        }
        let mut command = exec::command(find()?);
        command.current_dir(self.directory()).env("CGO_ENABLED", "0").env("GOFLAGS", FLAGS);
        match kind {
            Kind::Program => command.arg("build"),
            // Not ours to vet, which would read all of Kubernetes once more.
            Kind::Tests => command.args(["test", "-c", "-vet=off"]),
        };
        if !self.tags.is_empty() {
            command.args(["-tags", self.tags]);
        }
        exec::run(command.args(["-ldflags", &flags.join(" "), "-o"]).arg(output).arg(package))
    }

    /// Directory of the sources of a required module; they are fetched if necessary.
    pub(super) fn sources_of(&self, module: &str) -> Result<PathBuf> {
        let mut command = exec::command(find()?);
        command.current_dir(self.directory()).env("GOFLAGS", FLAGS);
        let text = exec::output(command.args(["mod", "download", "-json", module]))?;
        let value: serde_json::Value = serde_json::from_str(&text).context("output of go mod download")?;
        value["Dir"].as_str().map(PathBuf::from).with_context(|| format!("go has no sources of {module}"))
    }
}

/// Only the pinned versions. The version-control state of this repository does not apply to these programs.
const FLAGS: &str = "-mod=readonly -buildvcs=false";

/// The version of a required module in the text of a `go.mod`.
fn required(text: &str, module: &str) -> Option<String> {
    text.lines()
        .filter(|l| !l.contains("=>"))
        .map(|l| l.trim().trim_start_matches("require "))
        .filter_map(|l| l.strip_prefix(module)?.strip_prefix(" v"))
        .find_map(|v| v.split_whitespace().next().map(Into::into))
}

/// Finds Go, or installs it from the system's packages. Go 1.21 and newer fetch the version that the
/// module requires.
fn find() -> Result<PathBuf> {
    if paths::which("go").is_none() {
        apt::install(&["golang-go".to_owned()]).context("Kubernetes is built with Go, and there is none")?;
    }
    let go = paths::which("go").context("no `go` on PATH; install Go 1.21 or newer")?;
    let text = exec::output(exec::command(&go).arg("version"))?;
    match minor(&text) {
        Some(minor) if minor < 21 => {
            bail!("{} is too old to build Kubernetes; install Go 1.21 or newer", text.trim())
        }
        _ => Ok(go),
    }
}

/// The 26 of `go version go1.26.8 linux/amd64`.
fn minor(text: &str) -> Option<u32> {
    text.split_whitespace()
        .find_map(|w| w.strip_prefix("go1."))
        .and_then(|v| v.split(['.', '-']).next().and_then(|m| m.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_requirement_not_of_a_replacement() {
        let text = "module x\n\nrequire (\n\tk8s.io/kubernetes-x v1.0.0\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n\
                    replace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\nrequire github.com/a/b v1.2.3\n";
        assert_eq!(required(text, "k8s.io/kubernetes").as_deref(), Some("1.36.3"));
        assert_eq!(required(text, "github.com/a/b").as_deref(), Some("1.2.3"));
        assert_eq!(required(text, "k8s.io/api"), None);
    }

    #[test]
    fn the_minor_version_of_go_is_found() {
        assert_eq!(minor("go version go1.26.8 linux/amd64"), Some(26));
        assert_eq!(minor("go version go1.19 linux/amd64"), Some(19));
        assert_eq!(minor("gccgo"), None);
    }
}

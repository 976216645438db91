//! Debian's kernels for virtual machines: fetched from the release that has them, and unpacked into the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Step, apt, stamp};
use crate::{exec, paths, vmlinux};

/// A kernel line of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Major and minor number.
    pub(crate) line: &'static str,
    suite: &'static str,
    /// New enough for the eBPF programs.
    programs: bool,
}

/// The kernels that are tested.
pub(crate) const KERNELS: &[Kernel] = &[
    Kernel { line: "5.10", suite: "bullseye", programs: false },
    Kernel { line: "6.1", suite: "bookworm", programs: true },
    Kernel { line: "6.12", suite: "trixie", programs: true },
    // This release changes: if it has a newer kernel by now, that one is used.
    Kernel { line: "7.2", suite: "sid", programs: true },
];

/// A package that depends on the newest kernel of the release.
const METAPACKAGE: &str = "linux-image-amd64";

impl Kernel {
    /// The kernel of that line.
    pub(crate) fn find(line: &str) -> Result<Self> {
        let found = KERNELS.iter().find(|k| k.line == line);
        let known = || KERNELS.iter().map(|k| k.line).collect::<Vec<_>>().join(", ");
        found.copied().with_context(|| format!("no kernel {line:?}; there are {}", known()))
    }

    /// Whether the eBPF programs run on it.
    pub(crate) fn runs_programs(self) -> bool {
        self.programs
    }

    /// Its directory in the cache.
    pub(crate) fn dir(self) -> Result<PathBuf> {
        Ok(paths::cache()?.join("vm").join(self.line))
    }

    /// The uncompressed kernel.
    pub(crate) fn image(self) -> Result<PathBuf> {
        Ok(self.dir()?.join("vmlinux"))
    }

    /// Its release, as `uname -r` prints it.
    pub(crate) fn release(self) -> Result<String> {
        only_name(&self.dir()?.join("lib/modules"))
    }
}

pub(super) struct Fetch {
    pub(super) kernel: Kernel,
    pub(super) dir: PathBuf,
    pub(super) work: PathBuf,
}

impl Fetch {
    fn inputs(&self) -> String {
        stamp::hash((self.kernel.suite, METAPACKAGE, "lib/modules with lists, vmlinux"))
    }
}

impl Step for Fetch {
    fn name(&self) -> String {
        format!("kernel {} of Debian {}", self.kernel.line, self.kernel.suite)
    }

    fn missing(&self) -> Result<Vec<String>> {
        let there = stamp::is_current(&self.dir, &self.inputs());
        Ok(if there { Vec::new() } else { vec!["files in the cache".to_owned()] })
    }

    fn install(&self) -> Result<()> {
        fs::create_dir_all(self.dir.parent().context("the cache has a directory")?)?;
        stamp::replace(&self.dir, &self.work, &self.inputs(), |dir| self.unpack(dir))
    }
}

impl Fetch {
    fn unpack(&self, dir: &Path) -> Result<()> {
        let release = apt::OtherRelease::open(&stamp::scratch(&self.work, "apt")?, self.kernel.suite)?;
        let named = |of: &str, start: &str| -> Result<Vec<String>> {
            Ok(release.dependencies(of)?.into_iter().filter(|d| d.starts_with(start)).collect())
        };
        let Some(image) = named(METAPACKAGE, "linux-image-")?.pop() else {
            bail!("{METAPACKAGE} of {} depends on no kernel", self.kernel.suite);
        };
        let mut packages = vec![image.clone()];
        // From 7 on, the image, the modules and their lists are separate packages.
        for part in ["linux-base-", "linux-binary-", "linux-modules-"] {
            packages.extend(named(&image, part)?);
        }
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        release.download_only(&packages)?;
        let root = stamp::scratch(&self.work, "root")?;
        for entry in fs::read_dir(release.archives())?.flatten() {
            if entry.path().extension().is_some_and(|e| e == "deb") {
                exec::run(exec::command("dpkg").arg("-x").arg(entry.path()).arg(&root))?;
            }
        }
        let modules = ["lib/modules", "usr/lib/modules"].map(|d| root.join(d));
        let modules = modules.iter().find(|d| d.is_dir()).context("the packages have no modules")?;
        let version = only_name(modules)?;
        if !version.starts_with(&format!("{}.", self.kernel.line)) {
            exec::say(format_args!("{} has {version} instead of {}", self.kernel.suite, self.kernel.line));
        }
        let compressed =
            [root.join(format!("boot/vmlinuz-{version}")), modules.join(&version).join("vmlinuz")];
        let compressed = compressed.iter().find(|f| f.is_file()).context("the packages have no vmlinuz")?;
        let kernel =
            vmlinux::extract(&fs::read(compressed)?).with_context(|| format!("{}", compressed.display()))?;
        fs::write(dir.join("vmlinux"), kernel)?;
        fs::create_dir_all(dir.join("lib"))?;
        fs::rename(modules, dir.join("lib/modules"))?;
        exec::run(exec::command("depmod").arg("-b").arg(dir).arg(&version))
    }
}

/// The name of the only entry of a directory.
fn only_name(dir: &Path) -> Result<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        _ => bail!("{} does not hold exactly one entry", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_not_listed_is_refused_with_the_list() {
        assert_eq!(Kernel::find("6.1").unwrap().suite, "bookworm");
        assert!(format!("{:#}", Kernel::find("6").unwrap_err()).contains("5.10, 6.1, 6.12, 7.2"));
    }
}

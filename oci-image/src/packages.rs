//! Debian packages, each unpacked into a directory of its own: `NAME/root` and `NAME/control`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A package as its control file describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// Architecture of the package.
    pub architecture: String,
    /// The whole control file.
    pub control: String,
}

/// All unpacked packages, and which of them have been taken from.
#[derive(Debug)]
pub struct Packages {
    all: Vec<(Package, PathBuf)>,
    taken: BTreeSet<Package>,
}

impl Packages {
    /// Reads what is in a directory.
    ///
    /// # Errors
    /// It has no packages, or one without a control file.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut all = Vec::new();
        let entries =
            fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if !path.join("root").is_dir() {
                continue;
            }
            let control = path.join("control");
            let text =
                fs::read_to_string(&control).with_context(|| format!("cannot read {}", control.display()))?;
            all.push((parse(&text).with_context(|| format!("{}", control.display()))?, path.join("root")));
        }
        if all.is_empty() {
            bail!("no packages in {}", directory.display());
        }
        all.sort();
        Ok(Self { all, taken: BTreeSet::new() })
    }

    /// The first of these paths that a package has; that package is in the image from now on.
    ///
    /// # Errors
    /// No package has any of them.
    pub fn take(&mut self, paths: &[String]) -> Result<PathBuf> {
        for path in paths {
            for (package, root) in &self.all {
                let file = root.join(path.trim_start_matches('/'));
                if file.is_file() {
                    self.taken.insert(package.clone());
                    return Ok(file);
                }
            }
        }
        bail!("no package has {}", paths.join(" or "))
    }

    /// The directories below `usr/lib` that have libraries of an architecture, such as `x86_64-linux-gnu`.
    #[must_use]
    pub fn triplets(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (_, root) in &self.all {
            for entry in fs::read_dir(root.join("usr/lib")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.ends_with("-linux-gnu") {
                    found.insert(name);
                }
            }
        }
        found
    }

    /// The packages that were taken from, with the copyright file of each that has one.
    #[must_use]
    pub fn taken(&self) -> Vec<(&Package, Option<PathBuf>)> {
        let root = |package| self.all.iter().find(|(other, _)| other == package).map(|(_, root)| root);
        self.taken
            .iter()
            .map(|package| {
                let copyright =
                    |root: &PathBuf| root.join(format!("usr/share/doc/{}/copyright", package.name));
                (package, root(package).map(copyright).filter(|file| file.is_file()))
            })
            .collect()
    }
}

/// Reads a control file: deb-control(5).
fn parse(text: &str) -> Result<Package> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned()).with_context(|| format!("no field {name}"))
    };
    Ok(Package {
        name: field("Package")?,
        version: field("Version")?,
        architecture: field("Architecture")?,
        control: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_that_a_file_was_taken_from_count() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "other"] {
            let root = dir.path().join(name).join("root/usr/bin");
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join(name), name).unwrap();
            let control =
                format!("Package: {name}\nVersion: 1-2\nArchitecture: amd64\nDescription: x\n Package: no\n");
            fs::write(dir.path().join(name).join("control"), control).unwrap();
        }
        let mut packages = Packages::read(dir.path()).unwrap();
        let file = packages.take(&["usr/sbin/other".into(), "/usr/bin/other".into()]).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "other");
        let names: Vec<_> = packages.taken().iter().map(|(package, _)| package.name.clone()).collect();
        assert_eq!(names, ["other"]);
        assert!(packages.take(&["usr/bin/third".into()]).unwrap_err().to_string().contains("third"));
        assert!(Packages::read(&dir.path().join("one")).is_err());
    }
}

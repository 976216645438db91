//! Container images without a registry: made from programs that were built here and what Debian ships, under the
//! names that the upstream suite asks for. One archive holds them all, so that layers which several images share
//! are stored and imported once.
//!
//! The archive is kept in the cache and made again when one of its inputs changes.

mod catalogue;
mod libraries;
mod names;
mod record;
mod userland;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci_image::layout;

use crate::exec;
use record::Record;

/// Name of the archive in the directory of images.
pub const ARCHIVE: &str = "images.tar";
/// Name of the list that the suite wants, one a line.
pub const WANTED: &str = "wanted.txt";
/// The image of the cluster's DNS server. It is in no registry.
pub const COREDNS: &str = "localhost/coredns:local";

/// Where images are kept.
#[must_use]
pub fn directory(cache: &Path) -> PathBuf {
    cache.join("images")
}

/// Makes the archive unless it is there and fits its inputs. Returns its path, and whether it was made.
///
/// # Errors
/// An input is missing: the error names the program and what brings it.
pub fn ensure(cache: &Path) -> Result<(PathBuf, bool)> {
    let directory = directory(cache);
    let archive = directory.join(ARCHIVE);
    if archive.is_file() && directory.join(WANTED).is_file() && Record::is_current(&directory) {
        return Ok((archive, false));
    }
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut inputs = Inputs::new(cache);
    let wanted = wanted(&inputs.program("k8s/e2e.test")?)?;
    let images = catalogue::images(&mut inputs, &wanted)?;
    place(&directory.join(WANTED), |path| Ok(fs::write(path, wanted.join("\n") + "\n")?))?;
    place(&archive, |path| layout::write(path, &images))?;
    // Archives of an earlier layout would be imported too.
    for entry in fs::read_dir(&directory)?.flatten() {
        let path = entry.path();
        if path != archive && path.extension().is_some_and(|e| e == "tar") {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    inputs.record.save(&directory)?;
    Ok((archive, true))
}

/// The full name, with tag, under which the suite knows an image.
///
/// # Errors
/// The list is missing (`ensure` makes it), or it has no such image.
pub fn wanted_name(cache: &Path, image: &str) -> Result<String> {
    let path = directory(cache).join(WANTED);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}; `testbed images` writes it", path.display()))?;
    let wanted: Vec<String> = text.lines().map(str::to_owned).collect();
    Ok(names::all(&wanted, image)?.remove(0))
}

/// What the suite may ask for.
fn wanted(suite: &Path) -> Result<Vec<String>> {
    let text = exec::output(exec::command(suite).arg("--list-images"))?;
    let wanted = names::parse(&text);
    if wanted.is_empty() {
        bail!("{} --list-images lists no image", suite.display());
    }
    Ok(wanted)
}

/// Lets `write` make a file beside its place and moves it there.
fn place(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let part = path.with_extension(format!("part-{}", std::process::id()));
    write(&part).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot put {} in place", path.display()))
}

/// Finds the files that images are made of, and notes each.
struct Inputs<'a> {
    cache: &'a Path,
    record: Record,
}

impl<'a> Inputs<'a> {
    fn new(cache: &'a Path) -> Self {
        Self { cache, record: Record::new() }
    }

    /// A program that was built here.
    fn program(&mut self, path: &str) -> Result<PathBuf> {
        let path = self.cache.join(path);
        if !path.is_file() {
            bail!("{} is not there; `cargo xtask setup` builds it", path.display());
        }
        self.record.note(&path)?;
        Ok(path)
    }

    /// A program of the system's packages.
    fn system(&mut self, program: &str, package: &str) -> Result<PathBuf> {
        let path = libraries::which(program).with_context(|| {
            format!(
                "{program} is not on this machine; install the package {package} (`cargo xtask setup` does)"
            )
        })?;
        self.record.note(&path)?;
        Ok(path)
    }

    /// The shared libraries that a program needs.
    fn libraries(&mut self, program: &Path) -> Result<Vec<PathBuf>> {
        let libraries = libraries::closure(program)?;
        for library in &libraries {
            self.record.note(library)?;
        }
        Ok(libraries)
    }
}

//! A layer: a file tree as a tar stream. Equal trees give equal bytes, so that a layer keeps its digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// What is at a path.
#[derive(Clone, Debug)]
enum Entry {
    Directory {
        mode: u32,
    },
    /// A copy of a file of this machine.
    Copy {
        from: PathBuf,
        mode: u32,
    },
    Text {
        text: String,
        mode: u32,
    },
    Link {
        to: String,
    },
}

/// A file tree in the making. Paths have no leading slash.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

/// A tree as bytes, with its digest (`sha256:..`).
#[derive(Debug)]
pub struct Layer {
    /// `sha256:..`.
    pub digest: String,
    /// The tar stream, not compressed.
    pub data: Vec<u8>,
}

impl Tree {
    /// A directory with its mode.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.put(path, Entry::Directory { mode });
    }

    /// A program, executable for all.
    pub fn program(&mut self, path: &str, from: &Path) {
        self.put(path, Entry::Copy { from: from.to_path_buf(), mode: 0o755 });
    }

    /// A file that everybody may read.
    pub fn copy(&mut self, path: &str, from: &Path) {
        self.put(path, Entry::Copy { from: from.to_path_buf(), mode: 0o644 });
    }

    /// A file of text that everybody may read.
    pub fn text(&mut self, path: &str, text: &str) {
        self.put(path, Entry::Text { text: text.to_owned(), mode: 0o644 });
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.put(path, Entry::Link { to: to.to_owned() });
    }

    /// Whether there is something at the path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_start_matches('/'))
    }

    /// Later entries replace earlier ones; directories on the way are made.
    fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        let mut parent = Path::new(path).parent();
        while let Some(dir) = parent.and_then(Path::to_str).filter(|d| !d.is_empty()) {
            self.entries.entry(dir.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
            parent = Path::new(dir).parent();
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// The tree as a layer. Owner is root and times are zero, whatever they are on this machine.
    ///
    /// # Errors
    /// A file cannot be read, or a path is too long.
    pub fn layer(&self) -> Result<Layer> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(0);
            let at = || format!("{path} of a layer");
            match entry {
                Entry::Directory { mode } => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    tar.append_data(&mut header, format!("{path}/"), &[][..]).with_context(at)?;
                }
                Entry::Copy { from, mode } => {
                    let data = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
                    regular(&mut header, *mode, data.len())?;
                    tar.append_data(&mut header, path, data.as_slice()).with_context(at)?;
                }
                Entry::Text { text, mode } => {
                    regular(&mut header, *mode, text.len())?;
                    tar.append_data(&mut header, path, text.as_bytes()).with_context(at)?;
                }
                Entry::Link { to } => {
                    if to.is_empty() {
                        bail!("{path} is a link to nothing");
                    }
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    tar.append_link(&mut header, path, to).with_context(at)?;
                }
            }
        }
        let data = tar.into_inner().context("end of a layer")?;
        Ok(Layer { digest: digest(&data), data })
    }
}

fn regular(header: &mut Header, mode: u32, bytes: usize) -> Result<()> {
    header.set_entry_type(EntryType::Regular);
    header.set_mode(mode);
    header.set_size(u64::try_from(bytes)?);
    Ok(())
}

/// `sha256:` and the hash in hexadecimal digits.
#[must_use]
pub fn digest(data: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(layer: &Layer) -> Vec<String> {
        let mut archive = tar::Archive::new(layer.data.as_slice());
        archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect()
    }

    #[test]
    fn the_order_in_which_a_tree_is_made_does_not_change_its_digest() {
        let (mut one, mut other) = (Tree::default(), Tree::default());
        one.text("etc/a", "1");
        one.link("bin/sh", "bash");
        other.link("bin/sh", "busybox");
        other.link("bin/sh", "bash");
        other.text("etc/a", "1");
        assert_eq!(one.layer().unwrap().digest, other.layer().unwrap().digest);
        other.text("etc/a", "2");
        assert_ne!(one.layer().unwrap().digest, other.layer().unwrap().digest);
    }

    #[test]
    fn directories_come_before_what_is_in_them_and_keep_their_mode() {
        let mut tree = Tree::default();
        tree.text("tmp/x/y", "1");
        tree.directory("tmp", 0o1777);
        let layer = tree.layer().unwrap();
        assert_eq!(paths(&layer), ["tmp/", "tmp/x/", "tmp/x/y"]);
        let mut archive = tar::Archive::new(layer.data.as_slice());
        let mode = archive.entries().unwrap().next().unwrap().unwrap().header().mode().unwrap();
        assert_eq!(mode, 0o1777);
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let mut tree = Tree::default();
        tree.program("bin/x", Path::new("/nowhere/x"));
        assert!(tree.layer().unwrap_err().to_string().contains("/nowhere/x"));
    }
}

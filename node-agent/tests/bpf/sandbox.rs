//! Nodes of the test's own: network namespaces with a bpffs, and what can be done in them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    net::if_::if_nametoindex,
};
pub(crate) use test_support::namespaces::Netns;

/// Longest wait for something that the kernel does a little later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Command lines in a namespace.
pub(crate) trait Shell {
    /// Runs a command line in the namespace; it must succeed.
    fn sh(&self, line: &str);

    /// Whether a command line succeeds in the namespace.
    fn try_sh(&self, line: &str) -> bool;
}

impl Shell for Netns {
    fn sh(&self, line: &str) {
        let line = line.to_owned();
        self.run(move || must(&line));
    }

    fn try_sh(&self, line: &str) -> bool {
        let line = line.to_owned();
        self.run(move || output(&line).status.success())
    }
}

/// A node: a network namespace with a bpffs.
pub(crate) struct Node {
    net: Netns,
    bpffs: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let net = Netns::with_mounts("node");
        let bpffs = tempfile::tempdir().unwrap();
        let dir = bpffs.path().to_path_buf();
        net.run(move || {
            let none: Option<&Path> = None;
            mount(Some("bpf"), &dir, Some("bpf"), MsFlags::empty(), none).unwrap();
        });
        Self { net, bpffs }
    }

    /// Where the agent's pins go.
    pub(crate) fn pins(&self) -> PathBuf {
        self.bpffs.path().join("slipstream")
    }

    /// Names of everything under a directory of the node's bpffs, which only the node sees.
    pub(crate) fn list(&self, dir: &Path) -> Vec<String> {
        let dir = dir.to_path_buf();
        self.run(move || {
            let Ok(entries) = std::fs::read_dir(&dir) else { return Vec::new() };
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        })
    }

    /// Interface index by name.
    pub(crate) fn ifindex(&self, name: &str) -> u32 {
        let name = name.to_owned();
        self.run(move || if_nametoindex(name.as_str()).unwrap())
    }
}

impl std::ops::Deref for Node {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.net
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let dir = self.bpffs.path().to_path_buf();
        self.net.run(move || {
            let _ = umount2(&dir, MntFlags::MNT_DETACH);
        });
    }
}

/// Waits until `condition` holds; false if it does not within [`PATIENCE`].
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command line in the namespace of the calling thread; it must succeed.
pub(crate) fn must(line: &str) {
    let output = output(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[expect(clippy::disallowed_methods, reason = "tests set up namespaces with the usual tools")]
fn output(line: &str) -> Output {
    let mut words = line.split_whitespace();
    Command::new(words.next().unwrap()).args(words).output().unwrap_or_else(|error| panic!("{line}: {error}"))
}

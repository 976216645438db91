//! The machine's files, below a root that a test may choose.

use std::path::{Path, PathBuf};

/// A machine.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    root: PathBuf,
}

impl Host {
    /// The machine whose files are below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The path of a file of the machine.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without white space around it; `None` where it cannot be read.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        Some(std::fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// A file with a number.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory, sorted; `None` where it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(self.path(path)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Some(names)
    }

    /// Whether a module of the kernel is loaded, built in, or can be loaded.
    pub(crate) fn has_module(&self, name: &str) -> bool {
        let release = self.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let listed = |file: &str| {
            let list = self.read(&format!("/lib/modules/{release}/{file}")).unwrap_or_default();
            list.lines().any(|line| {
                let path = line.split(':').next().unwrap_or_default();
                let file = path.rsplit('/').next().unwrap_or_default();
                file.split(".ko").next().is_some_and(|module| module.replace('-', "_") == name)
            })
        };
        self.exists(&format!("/sys/module/{name}")) || listed("modules.builtin") || listed("modules.dep")
    }

    /// Whether the kernel's package says which modules there are.
    pub(crate) fn has_module_lists(&self) -> bool {
        let release = self.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        self.exists(&format!("/lib/modules/{release}/modules.builtin"))
    }

    /// Ports on which something listens for TCP.
    pub(crate) fn listening(&self) -> Vec<u16> {
        let port = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let (local, state) = (words.next()?, words.nth(1)?);
            (state == "0A").then(|| u16::from_str_radix(local.rsplit(':').next()?, 16).ok())?
        };
        let mut ports: Vec<u16> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter()
            .flat_map(|file| self.read(file).unwrap_or_default().lines().filter_map(port).collect::<Vec<_>>())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// The interface of the IPv4 default route with the smallest metric.
    pub(crate) fn uplink(&self) -> Option<String> {
        let routes = self.read("/proc/net/route")?;
        let default = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, destination, metric, mask) =
                (words.first()?, words.get(1)?, words.get(6)?, words.get(7)?);
            (*destination == "00000000" && *mask == "00000000")
                .then(|| (metric.parse::<u32>().ok(), (*name).to_owned()))
        };
        routes.lines().skip(1).filter_map(default).min().map(|(_, name)| name)
    }
}

//! Debian packages that building and testing need.

use anyhow::Result;

use super::{Lane, Step, apt};
use crate::paths;

/// Packages to install, each with a file or program that shows that it is installed.
const WANTED: &[(&str, &str)] = &[
    ("rustc-web", "/usr/bin/rustc"),
    ("cargo-web", "/usr/bin/cargo"),
    ("rust-web-clippy", "/usr/bin/cargo-clippy"),
    ("libstd-rust-web-dev-bpf", "/usr/lib/rustlib/bpfel-unknown-none"),
    ("llvm-22-dev", "/usr/lib/llvm-22/lib/libLLVM.so"),
    ("iproute2", "ip"),
    ("iputils-ping", "ping"),
    ("nftables", "nft"),
    // For benchmarks: rules as kube-proxy has them.
    ("iptables", "iptables-nft-restore"),
    ("ethtool", "ethtool"),
    ("util-linux", "unshare"),
    ("procps", "ps"),
    ("patchelf", "patchelf"),
    ("ca-certificates", "/etc/ssl/certs/ca-certificates.crt"),
    ("git", "git"),
    ("gcc", "cc"),
    ("libc6-dev", "/usr/include/stdio.h"),
    ("pkg-config", "pkg-config"),
    // Needed by a node.
    ("runc", "runc"),
    ("conntrack", "conntrack"),
    // For tests of uplinks in test clusters.
    ("dnsmasq-base", "dnsmasq"),
    ("keepalived", "keepalived"),
    // Contents of the images for the upstream suite.
    ("bash", "bash"),
    ("bind9-dnsutils", "dig"),
    ("busybox-static", "busybox"),
    ("curl", "curl"),
    ("iperf", "iperf"),
    ("netcat-openbsd", "nc.openbsd"),
    ("wget", "wget"),
];

/// Additional packages for virtual machines.
const WANTED_FOR_MACHINES: &[(&str, &str)] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("kmod", "depmod"),
    ("xz-utils", "xz"),
    ("zstd", "zstd"),
];

/// For the test that looks at a report.
const WANTED_FOR_REPORTS: &[(&str, &str)] = &[("chromium-headless-shell", "chromium-headless-shell")];

/// A set of packages.
pub(super) struct Packages {
    name: &'static str,
    wanted: &'static [(&'static str, &'static str)],
}

impl Packages {
    /// The packages for building, tests and clusters.
    pub(super) fn usual() -> Self {
        Self { name: "system packages", wanted: WANTED }
    }

    /// A browser.
    pub(super) fn for_reports() -> Self {
        Self { name: "a browser", wanted: WANTED_FOR_REPORTS }
    }

    /// The packages for virtual machines.
    pub(super) fn for_machines() -> Self {
        Self { name: "packages for virtual machines", wanted: WANTED_FOR_MACHINES }
    }
}

impl Step for Packages {
    fn name(&self) -> String {
        self.name.into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        Ok(self
            .wanted
            .iter()
            .filter(|(_, proof)| !is_there(proof))
            .map(|(package, _)| (*package).to_owned())
            .collect())
    }

    fn install(&self) -> Result<()> {
        apt::install(&self.missing()?)
    }

    fn needs_root(&self) -> bool {
        true
    }

    fn lane(&self) -> Lane {
        Lane::First
    }
}

fn is_there(proof: &str) -> bool {
    if proof.starts_with('/') { std::path::Path::new(proof).exists() } else { paths::which(proof).is_some() }
}

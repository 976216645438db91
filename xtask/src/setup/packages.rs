//! The system's packages.

use anyhow::Result;

use super::{Step, apt};
use crate::paths;

/// What to install, and the file or program that shows that it is there.
const WANTED: &[(&str, &str)] = &[
    ("rustc-web", "/usr/bin/rustc"),
    ("cargo-web", "/usr/bin/cargo"),
    ("libstd-rust-web-dev-bpf", "/usr/lib/rustlib/bpfel-unknown-none"),
    ("llvm-22-dev", "/usr/lib/llvm-22/lib/libLLVM.so"),
    ("iproute2", "ip"),
    ("nftables", "nft"),
    ("ethtool", "ethtool"),
    ("util-linux", "unshare"),
    ("procps", "ps"),
    ("patchelf", "patchelf"),
    ("ca-certificates", "/etc/ssl/certs/ca-certificates.crt"),
    ("git", "git"),
    ("gcc", "cc"),
    ("libc6-dev", "/usr/include/stdio.h"),
    ("pkg-config", "pkg-config"),
    // What a node runs.
    ("runc", "runc"),
    ("conntrack", "conntrack"),
    // What the images for the upstream suite are made of.
    ("bash", "bash"),
    ("bind9-dnsutils", "dig"),
    ("busybox-static", "busybox"),
    ("curl", "curl"),
    ("iperf", "iperf"),
    ("netcat-openbsd", "nc.openbsd"),
    ("wget", "wget"),
];

pub(super) struct Packages;

impl Step for Packages {
    fn name(&self) -> String {
        "system packages".into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        Ok(WANTED
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
}

fn is_there(proof: &str) -> bool {
    if proof.starts_with('/') { std::path::Path::new(proof).exists() } else { paths::which(proof).is_some() }
}

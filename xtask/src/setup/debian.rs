//! The Debian packages of the container image, each unpacked into a directory of its own, so that it is known which package a file is
//! from. Independent of the system's release, and of the programs that run here.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Step, apt, stamp};
use crate::exec;

/// Release of the image.
const SUITE: &str = "trixie";
/// Packages; what they depend on comes too.
const PACKAGES: &[&str] = &[
    "base-files",
    "busybox-static",
    "conntrack",
    "iproute2",
    "nftables",
    "openvswitch-common",
    "openvswitch-switch",
    "ovn-central",
    "ovn-common",
    "ovn-host",
    // A library by another name.
    "zlib1g",
];

pub(super) struct ImagePackages {
    pub(super) dir: PathBuf,
    pub(super) work: PathBuf,
}

impl ImagePackages {
    fn inputs() -> String {
        stamp::hash((SUITE, PACKAGES))
    }
}

impl Step for ImagePackages {
    fn name(&self) -> String {
        "Debian packages of the image".into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        let current = stamp::is_current(&self.dir, &Self::inputs());
        Ok(if current { Vec::new() } else { vec![format!("packages of {SUITE}")] })
    }

    fn install(&self) -> Result<()> {
        stamp::replace(&self.dir, &self.work, &Self::inputs(), |dir| {
            let release = apt::OtherRelease::open(&stamp::scratch(&self.work, "apt")?, SUITE)?;
            release.download(PACKAGES)?;
            for entry in fs::read_dir(release.archives())? {
                let deb = entry?.path();
                let file = deb.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                // Only what may have a file of the image: no perl, python, or tools of a complete system.
                let name = file.split('_').next().unwrap_or_default();
                let library = name.starts_with("lib") && !["perl", "python"].iter().any(|p| name.contains(p));
                if !file.ends_with(".deb") || !(library || PACKAGES.contains(&name)) {
                    continue;
                }
                let place = dir.join(name);
                fs::create_dir_all(&place)?;
                exec::run(exec::command("dpkg").arg("-x").arg(&deb).arg(place.join("root")))?;
                let control = exec::output(exec::command("dpkg-deb").arg("-f").arg(&deb))?;
                fs::write(place.join("control"), control)
                    .with_context(|| format!("control file of {name}"))?;
            }
            Ok(())
        })
    }
}

//! Open vSwitch and OVN: the system's own if they are new enough, else those of Debian 13, unpacked into the
//! cache and set up to run from there with their own C library.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Step, apt, stamp};
use crate::{exec, paths};

const PROGRAMS: &[&str] = &[
    "ovsdb-server",
    "ovsdb-client",
    "ovsdb-tool",
    "ovs-vswitchd",
    "ovs-vsctl",
    "ovs-ofctl",
    "ovs-appctl",
    "ovs-dpctl",
    "ovn-nbctl",
    "ovn-sbctl",
    "ovn-northd",
    "ovn-controller",
    "ovn-trace",
    "ovn-appctl",
];
const SCHEMAS: &[(&str, &str)] = &[
    ("vswitch.ovsschema", "usr/share/openvswitch/vswitch.ovsschema"),
    ("ovn-nb.ovsschema", "usr/share/ovn/ovn-nb.ovsschema"),
    ("ovn-sb.ovsschema", "usr/share/ovn/ovn-sb.ovsschema"),
];
/// Release whose packages are unpacked (OVS 3.5, OVN 25.03).
const SUITE: &str = "trixie";
const PACKAGES: &[&str] =
    &["openvswitch-switch", "ovn-central", "ovn-host", "ovn-common", "openvswitch-common", "libc6"];
/// The userspace datapath of older versions aborts with short connections, and OVN lacks columns that are compared.
const OLDEST_OVS: (u32, u32) = (3, 3);
const OLDEST_OVN: (u32, u32) = (23, 6);

pub(super) struct Ovs {
    pub(super) dir: PathBuf,
    pub(super) work: PathBuf,
}

impl Ovs {
    fn inputs() -> String {
        stamp::hash((PROGRAMS, SCHEMAS, SUITE, PACKAGES))
    }
}

impl Step for Ovs {
    fn name(&self) -> String {
        "OVS and OVN".into()
    }

    fn missing(&self) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        if !stamp::is_current(&self.dir, &Self::inputs()) {
            missing.push("programs in the cache".to_owned());
        }
        let files = PROGRAMS
            .iter()
            .map(|p| format!("bin/{p}"))
            .chain(SCHEMAS.iter().map(|(s, _)| format!("share/{s}")));
        missing.extend(files.filter(|f| !self.dir.join(f).exists()));
        Ok(missing)
    }

    fn install(&self) -> Result<()> {
        stamp::replace(&self.dir, &self.work, &Self::inputs(), |dir| {
            for sub in ["bin", "lib", "share"] {
                fs::create_dir_all(dir.join(sub))?;
            }
            if system_is_new_enough() { link_system(dir) } else { unpack(dir, &self.dir, &self.work) }
        })
    }
}

/// Whether the system has both, new enough.
fn system_is_new_enough() -> bool {
    let newer = |program: &str, than: (u32, u32)| {
        paths::which(program)
            .and_then(|p| exec::output(exec::command(p).arg("--version")).ok())
            .and_then(|text| version(&text))
            .is_some_and(|v| v >= than)
    };
    PROGRAMS.iter().all(|p| paths::which(p).is_some())
        && SCHEMAS.iter().all(|(_, path)| Path::new("/").join(path).exists())
        && newer("ovs-vswitchd", OLDEST_OVS)
        && newer("ovn-controller", OLDEST_OVN)
}

/// Major and minor number in the first line of the output of `--version`.
fn version(text: &str) -> Option<(u32, u32)> {
    let word = text.lines().next()?.split_whitespace().last()?;
    let mut parts = word.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn link_system(dir: &Path) -> Result<()> {
    for program in PROGRAMS {
        let from = paths::which(program).with_context(|| format!("{program} is not on PATH"))?;
        std::os::unix::fs::symlink(from, dir.join("bin").join(program))?;
    }
    for (name, path) in SCHEMAS {
        std::os::unix::fs::symlink(Path::new("/").join(path), dir.join("share").join(name))?;
    }
    Ok(())
}

/// Downloads the packages and arranges them in `dir`, whose final place is `place`.
fn unpack(dir: &Path, place: &Path, work: &Path) -> Result<()> {
    let release = apt::OtherRelease::open(&stamp::scratch(work, "apt")?, SUITE)?;
    release.download(PACKAGES)?;
    let root = stamp::scratch(work, "root")?;
    for entry in fs::read_dir(release.archives())? {
        let deb = entry?.path();
        let name = deb.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let wanted = ["lib", "openvswitch-", "ovn-"].iter().any(|p| name.starts_with(p))
            && !name.starts_with("libpython");
        if name.ends_with(".deb") && wanted {
            exec::run(exec::command("dpkg").arg("-x").arg(&deb).arg(&root))?;
        }
    }
    let libraries = root.join("usr/lib").join(multiarch()?);
    for entry in
        fs::read_dir(&libraries).with_context(|| format!("no libraries in {}", libraries.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        // With name service modules of another C library, looking up a user could load the system's modules.
        if name.contains(".so") && !name.starts_with("libnss_") && path.is_file() {
            fs::copy(&path, dir.join("lib").join(name))?;
        }
    }
    let loader = fs::read_dir(dir.join("lib"))?
        .flatten()
        .find(|e| e.file_name().to_string_lossy().starts_with("ld-linux"))
        .context("no dynamic loader among the unpacked libraries")?
        .file_name();
    let lib = place.join("lib");
    for program in PROGRAMS {
        let from = ["usr/bin", "usr/sbin", "usr/lib/openvswitch-switch"]
            .iter()
            .map(|d| root.join(d).join(program))
            .find(|p| p.is_file());
        let Some(from) = from else { bail!("{program} is in none of the packages") };
        let to = dir.join("bin").join(program);
        fs::copy(from, &to)?;
        exec::run(
            exec::command("patchelf")
                .arg("--set-interpreter")
                .arg(lib.join(&loader))
                .args(["--force-rpath", "--set-rpath"])
                .arg(&lib)
                .arg(&to),
        )?;
    }
    for (name, path) in SCHEMAS {
        fs::copy(root.join(path), dir.join("share").join(name)).with_context(|| format!("schema {name}"))?;
    }
    Ok(())
}

fn multiarch() -> Result<String> {
    Ok(format!("{}-linux-gnu", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_last_word_of_the_first_line() {
        assert_eq!(version("ovs-vswitchd (Open vSwitch) 3.5.0\nDPDK 24\n"), Some((3, 5)));
        assert_eq!(version("ovn-controller 25.03.0\nOpen vSwitch Library 3.5.0\n"), Some((25, 3)));
        assert_eq!(version(""), None);
    }
}

//! The image of Slipstream: a layer of Debian's packages, as few files as the programs need, and a layer of our programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::layer::Tree;
use crate::layout::Image;
use crate::needed;
use crate::packages::Packages;
use crate::sbom::{self, Crate, Subject};

/// Programs of Debian: what the roles start, what the agent starts (`nft`, `conntrack`, `ovs-ofctl`), and what somebody asks with who
/// looks for a fault.
const PROGRAMS: &[&str] = &[
    "busybox",
    "conntrack",
    "ip",
    "nft",
    "ovn-appctl",
    "ovn-controller",
    "ovn-nbctl",
    "ovn-northd",
    "ovn-sbctl",
    "ovn-trace",
    "ovs-appctl",
    "ovs-dpctl",
    "ovs-ofctl",
    "ovs-vsctl",
    "ovs-vswitchd",
    "ovsdb-client",
    "ovsdb-server",
    "ovsdb-tool",
    "ss",
];
/// Where packages have programs. Debian's `ovs-vswitchd` is chosen by an alternative, which unpacking does not make.
const PLACES: &[&str] = &["usr/bin", "usr/sbin", "usr/lib/openvswitch-switch", "bin", "sbin"];
const FILES: &[&str] = &[
    "usr/lib/os-release",
    "usr/share/openvswitch/vswitch.ovsschema",
    "usr/share/ovn/ovn-nb.ovsschema",
    "usr/share/ovn/ovn-sb.ovsschema",
];
/// Programs of ours.
pub const OURS: &[&str] =
    &["slipctl", "slipstream-cni", "slipstream-controller", "slipstream-entrypoint", "slipstream-node-agent"];
const DIRECTORIES: &[&str] =
    &["dev", "etc/openvswitch", "proc", "root", "run", "sys", "tmp", "var/lib/ovn", "var/lib/slipstream"];
const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("sbin", "usr/sbin"),
    ("var/run", "/run"),
    ("etc/os-release", "../usr/lib/os-release"),
    ("usr/bin/sh", "busybox"),
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532::/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// Where the bill of materials is.
pub const SBOM: &str = "usr/share/slipstream/sbom.spdx.json";

/// What the image is made from.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// Directory of unpacked packages.
    pub packages: &'a Path,
    /// Directory of our programs.
    pub programs: &'a Path,
    /// The crates that they are made of.
    pub crates: Vec<Crate>,
    /// Name with tag.
    pub name: String,
    /// Version of Slipstream.
    pub version: String,
    /// Commit, as far as it is known.
    pub revision: Option<String>,
    /// Time of the commit, RFC 3339.
    pub created: String,
}

/// Makes the image; also returns the bill of materials.
///
/// # Errors
/// A file is in no package, a library is missing, or a program of ours is not there.
pub fn image(recipe: Recipe<'_>) -> Result<(Image, Value)> {
    let mut packages = Packages::read(recipe.packages)?;
    let mut base = base();
    let mut wanted = Vec::new();
    for program in PROGRAMS {
        let candidates: Vec<_> = PLACES.iter().map(|place| format!("{place}/{program}")).collect();
        let file = packages.take(&candidates)?;
        base.program(&format!("usr/bin/{program}"), &file);
        wanted.push(file);
    }
    for path in FILES {
        base.copy(path, &packages.take(&[(*path).to_owned()])?);
    }
    let mut ours = Tree::default();
    for program in OURS {
        let file = recipe.programs.join(program);
        ours.program(&format!("usr/bin/{program}"), &file);
        wanted.push(file);
    }
    for (path, file) in libraries(wanted, &mut packages)? {
        base.program(&path, &file);
    }
    for (package, copyright) in packages.taken() {
        // Scanners of images look here where there is no dpkg.
        base.text(&format!("var/lib/dpkg/status.d/{}", package.name), &package.control);
        if let Some(file) = copyright {
            base.copy(&format!("usr/share/doc/{}/copyright", package.name), &file);
        }
    }
    let subject = Subject { name: "slipstream", version: &recipe.version, created: &recipe.created };
    let taken: Vec<_> = packages.taken().into_iter().map(|(package, _)| package).collect();
    let bill = sbom::document(subject, &taken, &recipe.crates);
    ours.text(SBOM, &serde_json::to_string_pretty(&bill)?);
    let image = Image {
        layers: vec![Rc::new(base.layer()?), Rc::new(ours.layer()?)],
        config: config(&recipe),
        names: vec![recipe.name],
        created: Some(recipe.created),
    };
    Ok((image, bill))
}

/// Directories, users and links.
fn base() -> Tree {
    let mut tree = Tree::default();
    for directory in DIRECTORIES {
        tree.directory(directory, if *directory == "tmp" { 0o1777 } else { 0o755 });
    }
    for (path, to) in LINKS {
        tree.link(path, to);
    }
    tree.text("etc/passwd", PASSWD);
    tree.text("etc/group", GROUP);
    tree.text("etc/nsswitch.conf", "hosts: files dns\n");
    tree
}

/// Every library that the programs need, directly or not, by its place in the image; and the loader by the path at which programs
/// look for it.
fn libraries(programs: Vec<PathBuf>, packages: &mut Packages) -> Result<BTreeMap<String, PathBuf>> {
    let triplets = packages.triplets();
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut open = programs;
    while let Some(file) = open.pop() {
        let needs = needed::of(&file)?;
        for name in needs.libraries {
            if !seen.insert(name.clone()) {
                continue;
            }
            let places = triplets.iter().map(|triplet| format!("usr/lib/{triplet}/{name}"));
            let places: Vec<_> = places.chain([format!("usr/lib/{name}")]).collect();
            let library = packages.take(&places).with_context(|| format!("library of {}", file.display()))?;
            let place = places.into_iter().find(|place| library.ends_with(place));
            found.insert(place.context("a library without a place")?, library.clone());
            open.push(library);
        }
        if let Some(loader) = needs.loader {
            // `/lib` and `/lib64` are links.
            let path = format!("usr{loader}");
            let name = Path::new(&loader).file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let places: Vec<_> = triplets.iter().map(|triplet| format!("usr/lib/{triplet}/{name}")).collect();
            found.insert(path.clone(), packages.take(&[places, vec![path]].concat())?);
        }
    }
    Ok(found)
}

fn config(recipe: &Recipe<'_>) -> Value {
    let mut labels = json!({
        "org.opencontainers.image.title": "Slipstream",
        "org.opencontainers.image.description": "Kubernetes network plugin on OVN and Open vSwitch, with eBPF",
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.created": recipe.created,
        "org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only",
        "org.opencontainers.image.base.name": "docker.io/library/debian:trixie",
    });
    if let Some(revision) = &recipe.revision {
        labels["org.opencontainers.image.revision"] = json!(revision);
    }
    json!({
        "Entrypoint": ["/usr/bin/slipstream-entrypoint"],
        "Env": ["PATH=/usr/bin"],
        // Roles that need root say so in their pods.
        "User": "65532:65532",
        "Labels": labels,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::layer::Layer;

    /// Packages with the files of the image, each a script but for one program that is this test itself, and the libraries that it
    /// needs.
    fn recipe(dir: &Path) -> Recipe<'_> {
        let root = dir.join("packages/all/root");
        let put = |path: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "#!/bin/sh\n").unwrap();
        };
        FILES.iter().for_each(|path| put(path));
        PROGRAMS.iter().for_each(|program| put(&format!("usr/sbin/{program}")));
        put("usr/share/doc/all/copyright");
        let own = std::env::current_exe().unwrap();
        fs::copy(&own, root.join("usr/sbin/nft")).unwrap();
        for library in needed::of(&own).unwrap().libraries {
            put(&format!("usr/lib/x86_64-linux-gnu/{library}"));
        }
        put("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        put("usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1");
        fs::write(dir.join("packages/all/control"), "Package: all\nVersion: 1\nArchitecture: amd64\n")
            .unwrap();
        fs::create_dir_all(dir.join("ours")).unwrap();
        OURS.iter().for_each(|program| fs::write(dir.join("ours").join(program), "x").unwrap());
        Recipe {
            packages: Box::leak(dir.join("packages").into_boxed_path()),
            programs: Box::leak(dir.join("ours").into_boxed_path()),
            crates: sbom::crates("aya v0.14.0|MIT\n").unwrap(),
            name: "localhost/slipstream:test".into(),
            version: "0.1.0".into(),
            revision: Some("abc".into()),
            created: "2026-01-01T00:00:00Z".into(),
        }
    }

    fn paths(layer: &Layer) -> Vec<String> {
        let mut archive = tar::Archive::new(layer.data.as_slice());
        archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect()
    }

    #[test]
    fn the_image_has_programs_libraries_and_their_papers() {
        let dir = tempfile::tempdir().unwrap();
        let (image, bill) = image(recipe(dir.path())).unwrap();
        let base = paths(&image.layers[0]);
        for path in ["usr/bin/ovs-vswitchd", "usr/share/ovn/ovn-sb.ovsschema", "var/lib/dpkg/status.d/all"] {
            assert!(base.contains(&path.to_owned()), "{path}");
        }
        assert!(base.iter().any(|p| p.contains("libc.so")) && base.iter().any(|p| p.contains("ld-linux")));
        assert!(base.contains(&"usr/share/doc/all/copyright".to_owned()));
        let ours = paths(&image.layers[1]);
        assert!(
            ours.contains(&"usr/bin/slipstream-node-agent".to_owned()) && ours.contains(&SBOM.to_owned())
        );
        assert_eq!(bill["packages"].as_array().unwrap().len(), 3);
        assert_eq!(image.config["Labels"]["org.opencontainers.image.revision"], "abc");
    }

    #[test]
    fn the_same_input_gives_the_same_layers() {
        let dir = tempfile::tempdir().unwrap();
        let digests = || {
            let (image, _) = image(recipe(dir.path())).unwrap();
            image.layers.iter().map(|layer| layer.digest.clone()).collect::<Vec<_>>()
        };
        assert_eq!(digests(), digests());
    }

    #[test]
    fn a_library_that_no_package_has_is_named_with_who_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = recipe(dir.path());
        fs::remove_dir_all(dir.path().join("packages/all/root").join("usr/lib/x86_64-linux-gnu")).unwrap();
        let error = format!("{:#}", image(recipe).unwrap_err());
        assert!(error.contains("nft") && error.contains(".so"), "{error}");
    }
}

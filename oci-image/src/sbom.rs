//! The bill of materials: SPDX 2.3 as JSON, with Debian's packages and the crates that our programs are made of.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::layer::digest;
use crate::packages::Package;

/// A crate, as `cargo tree --prefix none --format '{p}|{l}'` prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    name: String,
    version: String,
    /// SPDX expression; empty where the crate has none.
    licence: String,
    /// Whether it is of a registry, not of this repository.
    foreign: bool,
}

/// Reads the lines that cargo printed, each crate once and in order.
///
/// # Errors
/// A line has another form.
pub fn crates(text: &str) -> Result<Vec<Crate>> {
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (package, licence) = line.split_once('|').with_context(|| format!("{line:?} has no licence"))?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let version = version.strip_prefix('v').with_context(|| format!("{line:?} has no version"))?;
        all.push(Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            // Crates from before SPDX expressions were asked for.
            licence: licence.trim().trim_end_matches(" (*)").replace(" / ", " OR ").replace('/', " OR "),
            foreign: !package.contains("(/"),
        });
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// What the document is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Name of the image.
    pub name: &'a str,
    /// Version of the subject.
    pub version: &'a str,
    /// Time of the commit, RFC 3339.
    pub created: &'a str,
}

/// The document.
#[must_use]
pub fn document(subject: Subject<'_>, packages: &[&Package], crates: &[Crate]) -> Value {
    let mut all = vec![entry("SPDXRef-image", subject.name, subject.version, "", None)];
    for package in packages {
        let url = format!(
            "pkg:deb/debian/{}@{}?arch={}&distro=trixie",
            package.name,
            package.version.replace('+', "%2B").replace(':', "%3A"),
            package.architecture
        );
        let id = format!("SPDXRef-deb-{}", identifier(&package.name));
        all.push(entry(&id, &package.name, &package.version, "", Some(&url)));
    }
    for one in crates {
        let url = format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"));
        let id = format!("SPDXRef-crate-{}-{}", identifier(&one.name), identifier(&one.version));
        all.push(entry(&id, &one.name, &one.version, &one.licence, one.foreign.then_some(url.as_str())));
    }
    let contains = all.iter().skip(1).map(|package| {
        json!({"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]})
    });
    let describes = json!({
        "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-image",
    });
    let relationships: Vec<_> = std::iter::once(describes).chain(contains).collect();
    // The same content has the same name.
    let content = digest(json!(all).to_string().as_bytes()).replace("sha256:", "");
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{}-{}", subject.name, subject.version),
        "documentNamespace": format!("https://slipstream.dev/spdx/{}-{content}", subject.version),
        "creationInfo": {"created": subject.created, "creators": ["Tool: slipstream-image"]},
        "packages": all,
        "relationships": relationships,
    })
}

fn entry(id: &str, name: &str, version: &str, licence: &str, url: Option<&str>) -> Value {
    let declared = if licence.is_empty() { "NOASSERTION" } else { licence };
    let mut package = json!({
        "SPDXID": id,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": declared,
        "copyrightText": "NOASSERTION",
    });
    if let Some(url) = url {
        package["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url,
        }]);
    }
    package
}

/// Letters, digits, dots and hyphens, as an SPDX identifier has them.
fn identifier(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "node-agent v0.1.0 (/src/node-agent)|Apache-2.0\naya v0.14.0|MIT/Apache-2.0\nbytes v1.12.0|MIT\n\
                        aya v0.14.0|MIT/Apache-2.0\nzstd-sys v2.0.1+zstd.1.5.2|\n";

    #[test]
    fn crates_are_listed_once_with_the_licence_as_an_expression() {
        let crates = crates(TREE).unwrap();
        assert_eq!(crates.len(), 4);
        assert_eq!(crates[0].licence, "MIT OR Apache-2.0");
        assert!(crates.iter().all(|c| c.foreign == (c.name != "node-agent")));
        assert!(super::crates("aya v1").is_err());
    }

    #[test]
    fn every_package_is_contained_in_the_image_and_has_an_address() {
        let package = Package {
            name: "libc6".into(),
            version: "2.41-12+deb13u1".into(),
            architecture: "amd64".into(),
            control: String::new(),
        };
        let subject = Subject { name: "slipstream", version: "0.1.0", created: "2026-01-01T00:00:00Z" };
        let document = document(subject, &[&package], &crates(TREE).unwrap());
        let packages = document["packages"].as_array().unwrap();
        assert_eq!(packages.len(), 6);
        assert_eq!(document["relationships"].as_array().unwrap().len(), 6);
        let text = document.to_string();
        assert!(text.contains("pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64"));
        assert!(text.contains("pkg:cargo/zstd-sys@2.0.1%2Bzstd.1.5.2"));
        assert_eq!(
            packages.iter().find(|p| p["name"] == "zstd-sys").unwrap()["licenseDeclared"],
            "NOASSERTION"
        );
        assert_eq!(document, super::document(subject, &[&package], &crates(TREE).unwrap()));
    }
}

//! An image of one static program and nothing else: no libraries, no shell, only the bill of materials beside it.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::layer::Tree;
use crate::layout::Image;
use crate::needed;
use crate::sbom::{self, Crate, Subject};
use crate::slipstream::SBOM;

/// What the image is made from.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// The program. Its file name is its name in the image.
    pub program: &'a Path,
    /// What it is for, in a sentence.
    pub description: String,
    /// The crates that it is made of.
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
/// The program cannot be read, or needs libraries.
pub fn image(recipe: Recipe<'_>) -> Result<(Image, Value)> {
    let at = || recipe.program.display().to_string();
    let needs = needed::of(recipe.program)?;
    if let Some(library) = needs.loader.iter().chain(&needs.libraries).next() {
        bail!("{} needs {library}: it must be linked statically", at());
    }
    let program = recipe.program.file_name().and_then(|name| name.to_str()).with_context(at)?;
    let path = format!("usr/bin/{program}");
    let bill = sbom::document(
        Subject { name: program, version: &recipe.version, created: &recipe.created },
        &[],
        &recipe.crates,
    );
    let mut tree = Tree::default();
    tree.program(&path, recipe.program);
    tree.text(SBOM, &serde_json::to_string_pretty(&bill)?);
    let mut labels = json!({
        "org.opencontainers.image.title": program,
        "org.opencontainers.image.description": recipe.description,
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.created": recipe.created,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    if let Some(revision) = &recipe.revision {
        labels["org.opencontainers.image.revision"] = json!(revision);
    }
    let config = json!({"Entrypoint": [format!("/{path}")], "User": "65532:65532", "Labels": labels});
    let layers = vec![Rc::new(tree.layer()?)];
    Ok((Image { layers, config, names: vec![recipe.name], created: Some(recipe.created) }, bill))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(program: &Path) -> Recipe<'_> {
        Recipe {
            program,
            description: "x".into(),
            crates: sbom::crates("clap v4.0.0|MIT\n").unwrap(),
            name: "localhost/x:1".into(),
            version: "0.1.0".into(),
            revision: None,
            created: "2026-01-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn a_program_with_libraries_is_refused() {
        let own = std::env::current_exe().unwrap();
        let error = image(recipe(&own)).unwrap_err().to_string();
        assert!(error.contains("must be linked statically"), "{error}");
    }

    #[test]
    fn the_same_program_gives_the_same_layer_and_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tool");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let digest = || image(recipe(&program)).unwrap().0.layers[0].digest.clone();
        assert_eq!(digest(), digest());
        let (image, bill) = image(recipe(&program)).unwrap();
        assert_eq!(image.config["Entrypoint"][0], "/usr/bin/tool");
        assert_eq!(bill["packages"].as_array().unwrap().len(), 2);
    }
}

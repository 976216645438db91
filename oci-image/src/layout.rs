//! Images as an OCI image layout in one tar file, which `ctr image import` reads.
//!
//! Format: OCI image specification 1.1, `image-layout.md`, `image-index.md` and `config.md`. containerd takes an
//! image's name from the annotation `io.containerd.image.name`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::layer::{Layer, digest};

/// An image: layers from the lowest up, how to start it, and its names.
#[derive(Debug)]
pub struct Image {
    /// Layers, from the lowest up.
    pub layers: Vec<Rc<Layer>>,
    /// The `config` object of the image's configuration.
    pub config: Value,
    /// Names of the image, each with a tag.
    pub names: Vec<String>,
    /// When it was made (RFC 3339), if that is to be said.
    pub created: Option<String>,
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Writes the archive.
///
/// # Errors
/// It cannot be written, or this machine's architecture has no name in Go.
pub fn write(path: &Path, images: &[Image]) -> Result<()> {
    let mut archive = Archive {
        tar: Builder::new(BufWriter::new(File::create(path).context("cannot create it")?)),
        blobs: BTreeSet::new(),
    };
    let mut manifests = Vec::new();
    let architecture = architecture()?;
    for image in images {
        let manifest = archive.image(image, architecture)?;
        for name in &image.names {
            let mut manifest = manifest.clone();
            manifest["annotations"] = json!({"io.containerd.image.name": name});
            manifest["platform"] = json!({"architecture": architecture, "os": "linux"});
            manifests.push(manifest);
        }
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    archive.file("index.json", &serde_json::to_vec(&index)?)?;
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.tar.into_inner()?.flush()?;
    Ok(())
}

struct Archive<W: Write> {
    tar: Builder<W>,
    /// What is in already.
    blobs: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// Adds the parts of an image and returns the descriptor of its manifest.
    fn image(&mut self, image: &Image, architecture: &str) -> Result<Value> {
        let mut layers = Vec::new();
        for layer in &image.layers {
            self.named_blob(&layer.digest, &layer.data)?;
            layers.push(json!({"mediaType": LAYER, "digest": layer.digest, "size": layer.data.len()}));
        }
        let diff_ids: Vec<_> = image.layers.iter().map(|l| l.digest.as_str()).collect();
        let mut config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        if let Some(created) = &image.created {
            config["created"] = json!(created);
        }
        let config = self.blob(CONFIG, &config)?;
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        self.blob(MANIFEST, &manifest)
    }

    /// Adds a JSON object and returns its descriptor.
    fn blob(&mut self, media_type: &str, object: &Value) -> Result<Value> {
        let data = serde_json::to_vec(object)?;
        let digest = digest(&data);
        self.named_blob(&digest, &data)?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": data.len()}))
    }

    fn named_blob(&mut self, digest: &str, data: &[u8]) -> Result<()> {
        if self.blobs.insert(digest.to_owned()) {
            let name = digest.strip_prefix("sha256:").context("a digest without its algorithm")?;
            self.file(&format!("blobs/sha256/{name}"), data)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &str, data: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(data.len())?);
        header.set_mode(0o644);
        header.set_mtime(0);
        self.tar.append_data(&mut header, path, data).with_context(|| path.to_owned())
    }
}

/// The machine's architecture as Go, and so the specification, names it.
///
/// # Errors
/// No images are made for it.
pub fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no images are made for {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::layer::Tree;
    use super::*;

    fn image(layers: &[&Rc<Layer>], names: &[&str]) -> Image {
        Image {
            layers: layers.iter().map(|l| Rc::clone(l)).collect(),
            config: json!({"Cmd": ["sh"]}),
            names: names.iter().map(|n| (*n).to_owned()).collect(),
            created: None,
        }
    }

    fn layer(text: &str) -> Rc<Layer> {
        let mut tree = Tree::default();
        tree.text("a", text);
        Rc::new(tree.layer().unwrap())
    }

    #[test]
    fn a_layer_that_two_images_share_is_stored_once_and_every_name_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images.tar");
        let (base, upper) = (layer("1"), layer("2"));
        write(&path, &[image(&[&base], &["x/a:1", "y/a:1"]), image(&[&base, &upper], &["x/b:1"])]).unwrap();
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let (mut files, mut index) = (Vec::new(), String::new());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            if name == "index.json" {
                entry.read_to_string(&mut index).unwrap();
            }
            files.push(name);
        }
        // Two layers, two configurations, two manifests.
        assert_eq!(files.iter().filter(|f| f.starts_with("blobs/sha256/")).count(), 6);
        assert!(files.contains(&"oci-layout".to_owned()));
        let index: Value = serde_json::from_str(&index).unwrap();
        let names: Vec<_> = index["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["annotations"]["io.containerd.image.name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["x/a:1", "y/a:1", "x/b:1"]);
        for manifest in index["manifests"].as_array().unwrap() {
            let digest = manifest["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
            assert!(files.contains(&digest), "{digest} is not in the archive");
        }
    }
}

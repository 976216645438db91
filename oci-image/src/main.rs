//! Makes the image of Slipstream, or of one static program, from what `cargo xtask image` has put together.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use oci_image::{layout, sbom, single, slipstream};

/// Makes the container image of Slipstream, without a container engine.
#[derive(Debug, Parser)]
#[command(name = "slipstream-image")]
struct Args {
    /// Directory of Debian packages, each unpacked into a directory of its own.
    #[arg(long, requires = "programs", required_unless_present = "static_program")]
    packages: Option<PathBuf>,
    /// Directory of our programs.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// The only program of the image, in place of packages and programs.
    #[arg(long, conflicts_with_all = ["packages", "programs"], requires = "description")]
    static_program: Option<PathBuf>,
    /// What that program is for.
    #[arg(long)]
    description: Option<String>,
    /// What `cargo tree --prefix none --format '{p}|{l}'` printed.
    #[arg(long)]
    crates: PathBuf,
    /// Name of the image, with tag.
    #[arg(long)]
    name: String,
    /// Version of Slipstream.
    #[arg(long)]
    version: String,
    /// Commit.
    #[arg(long)]
    revision: Option<String>,
    /// Time of the commit, RFC 3339.
    #[arg(long)]
    created: String,
    /// The archive. The bill of materials is put beside it.
    #[arg(long)]
    output: PathBuf,
}

fn main() -> Result<()> {
    let Args {
        packages,
        programs,
        static_program,
        description,
        crates,
        name,
        version,
        revision,
        created,
        output,
    } = Args::parse();
    let crates = fs::read_to_string(&crates).with_context(|| format!("cannot read {}", crates.display()))?;
    let crates = sbom::crates(&crates)?;
    let (image, bill) = if let Some(program) = &static_program {
        let description = description.unwrap_or_default();
        single::image(single::Recipe { program, description, crates, name, version, revision, created })?
    } else {
        let (packages, programs) = packages.zip(programs).context("--packages and --programs are needed")?;
        slipstream::image(slipstream::Recipe {
            packages: &packages,
            programs: &programs,
            crates,
            name,
            version,
            revision,
            created,
        })?
    };
    let part = output.with_extension("part");
    layout::write(&part, &[image]).with_context(|| format!("cannot write {}", part.display()))?;
    let bill_path = output.with_extension("spdx.json");
    fs::write(&bill_path, serde_json::to_string_pretty(&bill)?)
        .with_context(|| format!("cannot write {}", bill_path.display()))?;
    fs::rename(&part, &output).with_context(|| format!("cannot put {} in place", output.display()))
}

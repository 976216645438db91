//! Container images without a container engine: layers whose bytes follow from their content alone, archives that runtimes import,
//! and the image of Slipstream, made of Debian's packages and our programs.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod layer;
pub mod layout;
pub mod needed;
pub mod packages;
pub mod sbom;
pub mod single;
pub mod slipstream;

/// The code that decides an archive's bytes: a change of it is a change of every archive.
pub const RECIPE: &str = concat!(include_str!("layer.rs"), include_str!("layout.rs"));

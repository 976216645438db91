//! Paths of the project's cache, which `cargo xtask setup` fills.

use std::env;
use std::path::PathBuf;

/// The cache: `$SLIPSTREAM_CACHE`, else `$XDG_CACHE_HOME/slipstream`, else `~/.cache/slipstream`.
///
/// # Panics
/// None of these variables and `HOME` is set.
#[must_use]
pub fn directory() -> PathBuf {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("SLIPSTREAM_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("slipstream")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/slipstream")))
        .expect("none of SLIPSTREAM_CACHE, XDG_CACHE_HOME and HOME is set")
}

/// A file of the cache, such as `ovs/bin/ovsdb-server`.
///
/// # Panics
/// It is not there.
#[must_use]
pub fn file(path: &str) -> PathBuf {
    let file = directory().join(path);
    assert!(file.exists(), "{} is missing; run `cargo xtask setup`", file.display());
    file
}

//! The images that the upstream suite wants, by the list that was kept when they were made.

use std::fs;

use anyhow::{Context, Result};

use crate::config::Config;

/// The reference of an image that the upstream suite wants: the last of those whose path ends so, the newest.
pub(super) fn image(config: &Config, path: &str) -> Result<String> {
    let list = config.images().join("wanted.txt");
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let middle = format!("/{path}:");
    text.lines()
        .rfind(|line| line.contains(&middle))
        .map(str::to_owned)
        .with_context(|| format!("{} names no image {path}", list.display()))
}

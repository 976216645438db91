//! Directories, and groups of files in one, created completely or not at all, with a stamp that identifies their inputs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A short name for a set of inputs; it changes when one of them does.
pub(super) fn hash(inputs: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Whether `dir` was completely created from these inputs.
pub(super) fn is_current(dir: &Path, inputs: &str) -> bool {
    fs::read_to_string(dir.join(NAME)).is_ok_and(|s| s.trim() == inputs)
}

/// Lets `fill` create a directory beside `dir`, stamps it and moves it to `dir`.
pub(super) fn replace(
    dir: &Path,
    work: &Path,
    inputs: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let fresh = scratch(work, "new")?;
    fill(&fresh)?;
    fs::write(fresh.join(NAME), inputs).context("stamp")?;
    let old = work.join(format!("old-{}", std::process::id()));
    if dir.symlink_metadata().is_ok() {
        fs::rename(dir, &old).with_context(|| format!("cannot move {} aside", dir.display()))?;
    }
    fs::rename(&fresh, dir).with_context(|| format!("cannot put {} in place", dir.display()))?;
    // The new directory is in place; what cannot be removed now is removed by the next setup.
    let _ = fs::remove_dir_all(work);
    Ok(())
}

/// Whether the files of a group in `dir` were created from these inputs.
pub(super) fn group_is_current(dir: &Path, group: &str, inputs: &str) -> bool {
    fs::read_to_string(dir.join(group_stamp(group))).is_ok_and(|s| s.trim() == inputs)
}

/// Lets `fill` create the files of a group beside `dir` and moves them into it. Other files there stay. The group's
/// stamp is removed first and written last, so that an incomplete group is not taken for complete.
pub(super) fn replace_group(
    dir: &Path,
    work: &Path,
    group: &str,
    inputs: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let fresh = scratch(work, group)?;
    fill(&fresh)?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let stamp = dir.join(group_stamp(group));
    if stamp.exists() {
        fs::remove_file(&stamp).with_context(|| format!("cannot remove {}", stamp.display()))?;
    }
    for entry in fs::read_dir(&fresh)? {
        let entry = entry?;
        let place = dir.join(entry.file_name());
        fs::rename(entry.path(), &place)
            .with_context(|| format!("cannot put {} in place", place.display()))?;
    }
    fs::write(&stamp, inputs).context("stamp")?;
    // The files are in place; what cannot be removed now is removed by the next setup.
    let _ = fs::remove_dir_all(work);
    Ok(())
}

fn group_stamp(group: &str) -> String {
    format!("{NAME}-{group}")
}

/// Creates an empty directory under `work`; removes what an earlier run has left there.
pub(super) fn scratch(work: &Path, name: &str) -> Result<PathBuf> {
    let dir = work.join(format!("{name}-{}", std::process::id()));
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

const NAME: &str = ".stamp";

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("slipstream-stamp-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_directory_is_current_only_for_the_inputs_it_was_made_from() {
        let base = temp("current");
        let dir = base.join("made");
        replace(&dir, &base.join("work"), "a", |d| Ok(fs::write(d.join("file"), "1")?)).unwrap();
        assert!(is_current(&dir, "a"));
        assert!(!is_current(&dir, "b"));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_half_made_directory_is_replaced_whole() {
        let base = temp("heal");
        let dir = base.join("made");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("rest-of-a-crash"), "x").unwrap();
        assert!(!is_current(&dir, "a"));
        replace(&dir, &base.join("work"), "a", |d| Ok(fs::write(d.join("file"), "1")?)).unwrap();
        assert!(is_current(&dir, "a"));
        assert!(!dir.join("rest-of-a-crash").exists());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_group_is_replaced_beside_the_others_and_is_not_current_before_its_end() {
        let base = temp("group");
        let (dir, work) = (base.join("made"), base.join("work"));
        let write =
            |name: &'static str, text: &'static str| move |d: &Path| Ok(fs::write(d.join(name), text)?);
        replace_group(&dir, &work, "one", "a", write("x", "1")).unwrap();
        replace_group(&dir, &work, "other", "a", write("y", "2")).unwrap();
        assert!(group_is_current(&dir, "one", "a") && group_is_current(&dir, "other", "a"));
        // A file of the group that cannot be replaced: the stamp must be removed.
        fs::create_dir_all(dir.join("z/full")).unwrap();
        assert!(replace_group(&dir, &work, "one", "b", write("z", "3")).is_err());
        assert!(!group_is_current(&dir, "one", "a") && !group_is_current(&dir, "one", "b"));
        assert!(group_is_current(&dir, "other", "a"));
        assert_eq!(fs::read_to_string(dir.join("y")).unwrap(), "2");
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_failed_fill_leaves_the_old_directory_in_place() {
        let base = temp("fail");
        let dir = base.join("made");
        replace(&dir, &base.join("work"), "a", |d| Ok(fs::write(d.join("file"), "1")?)).unwrap();
        assert!(replace(&dir, &base.join("work"), "b", |_| anyhow::bail!("no")).is_err());
        assert!(is_current(&dir, "a"));
        fs::remove_dir_all(base).unwrap();
    }
}

//! Files under the agent's bpffs directory: names, creation and removal.
//!
//! ```text
//! <dir>/v10/<MAP>                          maps of layout 10
//! <dir>/uplink/<program>-<ifindex>         what is attached to the uplink
//! <dir>/xdp/xdp_uplink-<ifindex>           the XDP program on the uplink
//! <dir>/host/<program>-<ifindex>           what is attached to the interfaces of the node itself
//! <dir>/physical/<program>-<ifindex>       what is attached to interfaces that lead to physical networks
//! <dir>/second-uplink/<program>-<ifindex>  what is attached to the second uplink, in interposed mode alone
//! <dir>/endpoints/<id>/<program>-<ifindex> what is attached for an interface of a pod
//! ```
//! Links are beside the maps, not below the layout: a link outlives a change of layout, its program is replaced.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ebpf::layout::maps::LAYOUT;

use super::{Error, Failures, object::Program};

/// A program on an interface: what a pinned link's file name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) program: Program,
    pub(super) ifindex: u32,
}

impl Place {
    pub(super) fn file_name(self) -> String {
        format!("{}-{}", self.program.name(), self.ifindex)
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let (program, ifindex) = name.rsplit_once('-')?;
        let program = Program::ALL.into_iter().find(|known| known.name() == program)?;
        let ifindex = ifindex.parse().ok().filter(|index| *index != 0)?;
        Some(Self { program, ifindex })
    }
}

/// Whether an endpoint's id can be a file name on bpffs, which takes no dots.
pub(super) fn valid_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// The agent's directory on bpffs.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    dir: PathBuf,
}

impl Pins {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Directory of the maps of our layout.
    pub(super) fn maps(&self) -> PathBuf {
        self.dir.join(format!("v{}", layout()))
    }

    pub(super) fn uplink(&self) -> PathBuf {
        self.dir.join("uplink")
    }

    pub(super) fn xdp(&self) -> PathBuf {
        self.dir.join("xdp")
    }

    pub(super) fn host(&self) -> PathBuf {
        self.dir.join("host")
    }

    pub(super) fn physical(&self) -> PathBuf {
        self.dir.join("physical")
    }

    pub(super) fn second_uplink(&self) -> PathBuf {
        self.dir.join("second-uplink")
    }

    pub(super) fn endpoints(&self) -> PathBuf {
        self.dir.join("endpoints")
    }

    pub(super) fn endpoint(&self, id: &str) -> PathBuf {
        self.endpoints().join(id)
    }

    /// Creates the directories; existing ones are kept.
    pub(super) fn create(&self) -> Result<(), Error> {
        for dir in [self.maps(), self.uplink(), self.host(), self.physical(), self.endpoints()] {
            create_dir(&dir)?;
        }
        Ok(())
    }

    /// Ids that have a directory.
    pub(super) fn endpoint_ids(&self) -> Result<Vec<String>, Error> {
        list(&self.endpoints())
    }

    /// Removes the maps of every other layout.
    pub(super) fn remove_other_layouts(&self, failures: &mut Failures) {
        let ours = format!("v{}", layout());
        for name in failures.note(list(&self.dir)).unwrap_or_default() {
            if name != ours && is_layout(&name) {
                remove_flat(&self.dir.join(name), failures);
            }
        }
    }
}

/// The map layout of this agent.
#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn layout() -> u32 {
    LAYOUT
}

/// The map layout of this agent, or `SLIPSTREAM_TEST_MAP_LAYOUT` (feature `test-hooks`): an agent that plays an older one, whose maps
/// cannot be taken over.
#[cfg(feature = "test-hooks")]
pub(crate) fn layout() -> u32 {
    std::env::var("SLIPSTREAM_TEST_MAP_LAYOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(LAYOUT)
}

pub(super) fn is_layout(name: &str) -> bool {
    name.strip_prefix('v').is_some_and(|version| version.parse::<u32>().is_ok())
}

/// Creates a directory with its parents.
pub(super) fn create_dir(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|source| Error::Pin {
        action: "create directory",
        path: dir.into(),
        source,
    })
}

/// Names in a directory; none if it does not exist.
pub(super) fn list(dir: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Pin { action: "list", path: dir.into(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The links pinned in a directory; files of other names are ignored.
pub(super) fn places(dir: &Path) -> Result<Vec<Place>, Error> {
    Ok(list(dir)?.iter().filter_map(|name| Place::parse(name)).collect())
}

/// Removes a pin, if it exists.
pub(super) fn remove_pin(path: &Path) -> Result<(), Error> {
    ignore_missing(fs::remove_file(path)).map_err(|source| Error::Pin {
        action: "remove",
        path: path.into(),
        source,
    })
}

/// Removes an empty directory, if it exists.
pub(super) fn remove_dir(dir: &Path) -> Result<(), Error> {
    ignore_missing(fs::remove_dir(dir)).map_err(|source| Error::Pin {
        action: "remove directory",
        path: dir.into(),
        source,
    })
}

/// Removes the pins in a directory and the directory.
pub(super) fn remove_flat(dir: &Path, failures: &mut Failures) {
    for name in failures.note(list(dir)).unwrap_or_default() {
        failures.note(remove_pin(&dir.join(name)));
    }
    failures.note(remove_dir(dir));
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_tells_the_program_and_the_interface() {
        for program in Program::ALL {
            let place = Place { program, ifindex: 4711 };
            assert_eq!(Place::parse(&place.file_name()), Some(place));
        }
    }

    #[test]
    fn foreign_files_are_no_links_of_ours() {
        for name in ["", "from_pod", "from_pod-", "from_pod-0", "from_pod-x", "other-3", "-3", "from_pod--1"]
        {
            assert_eq!(Place::parse(name), None, "{name}");
        }
    }

    #[test]
    fn ids_that_bpffs_or_a_path_would_misread_are_refused() {
        assert!(valid_id("0f3a"));
        for id in ["", ".", "..", "a.b", "a/b", "a b", "ä"] {
            assert!(!valid_id(id), "{id}");
        }
        assert!(!valid_id(&"a".repeat(129)));
    }
}

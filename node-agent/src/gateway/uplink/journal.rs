//! Journal of the uplink migration: original state and steps started. It is written before the first change and before each step, so
//! that a later agent can complete or undo an interrupted migration.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::MacAddr;
use serde::{Deserialize, Serialize};

use super::role::Role;
use crate::gateway::uplink::snapshot::{SavedAddress, SavedRoute};

/// Version of the format.
const VERSION: u32 = 1;

/// Phase of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Moving to the bridge.
    TakingOver,
    /// The bridge is in use.
    Done,
    /// Moving back to the uplink.
    RollingBack,
}

/// Steps of the migration, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The shim between uplink and OVS (interposed mode only).
    Shim,
    /// The bridge with its own interface, up, with the uplink's MAC and MTU.
    Bridge,
    /// The uplink's addresses, on the bridge as well.
    Addresses,
    /// The uplink's packets go through the bridge.
    Uplink,
    /// The uplink's routes lead through the bridge.
    Routes,
    /// The addresses leave the uplink.
    Release,
    /// The node's own stack no longer sees what OVS reads from the uplink.
    Isolate,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 7] =
        [Self::Shim, Self::Bridge, Self::Addresses, Self::Uplink, Self::Routes, Self::Release, Self::Isolate];

    /// All steps in the order in which they are undone. The bridge gives up its addresses while the uplink's packets still come through
    /// it: otherwise the route to the node's subnet would lead to a bridge without uplink for a moment.
    pub const UNDONE: [Self; 7] =
        [Self::Isolate, Self::Release, Self::Routes, Self::Addresses, Self::Uplink, Self::Bridge, Self::Shim];
}

/// Original state of the uplink, to be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Hardware address.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it was promiscuous.
    pub promiscuous: bool,
    /// Link group.
    pub group: u32,
    /// Addresses that reach beyond the link.
    pub addresses: Vec<SavedAddress>,
    /// Routes, except those of the kernel and of routing daemons.
    pub routes: Vec<SavedRoute>,
}

#[cfg(test)]
impl Found {
    /// An uplink without addresses and routes.
    pub(in crate::gateway) fn for_test() -> Self {
        Self {
            mac: MacAddr([0x02, 0x42, 0xac, 0x12, 0, 2]),
            mtu: 1500,
            promiscuous: false,
            group: 0,
            addresses: Vec::new(),
            routes: Vec::new(),
        }
    }
}

/// The journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// Boot of the machine in which the journal was written (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// The physical interface.
    pub uplink: String,
    /// The bridge.
    pub bridge: String,
    /// Interposed mode: OVS has the far end of the shim as port instead of the uplink.
    pub interposed: bool,
    /// True when the bridge existed with the node's address (adopted): it is never removed.
    pub adopted: bool,
    /// True when the migration created the bridge.
    pub created_bridge: bool,
    /// Original state of the uplink or adopted bridge, with addresses and routes updated since.
    pub found: Found,
    /// Index of the bridge's interface when its addresses and routes were last recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge_index: Option<u32>,
    /// Phase of the migration.
    pub phase: Phase,
    /// Steps that have begun.
    pub begun: Vec<Step>,
}

impl Journal {
    /// Creates a journal for this boot.
    ///
    /// # Errors
    /// The boot id cannot be read.
    pub fn new(uplink: &str, bridge: &str, interposed: bool, found: Found) -> anyhow::Result<Self> {
        Ok(Self {
            version: VERSION,
            boot: boot_id()?,
            uplink: uplink.to_owned(),
            bridge: bridge.to_owned(),
            interposed,
            adopted: false,
            created_bridge: false,
            found,
            bridge_index: None,
            phase: Phase::TakingOver,
            begun: Vec::new(),
        })
    }

    /// True when it was written since the machine booted.
    ///
    /// # Errors
    /// The boot id cannot be read.
    pub fn is_of_this_boot(&self) -> anyhow::Result<bool> {
        Ok(self.boot == boot_id()?)
    }
}

/// Identity of this boot of the machine.
///
/// # Errors
/// The kernel's file cannot be read.
pub fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(id.trim().to_owned())
}

/// Replaces a file of the state directory atomically: after a crash of the machine it has either the old or the new content. A failed
/// write leaves no partial file, which would take up the space that the next attempt needs.
pub(in crate::gateway) fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let write = || -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        let mut file = File::create(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(dir)?.sync_all()
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// Where the journal is kept.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    role: Role,
}

impl Store {
    /// Storage of the gateway's journal in this directory.
    pub fn new(dir: &Path) -> Self {
        Self::of(dir, Role::Gateway)
    }

    /// Storage of an uplink's journal in this directory.
    pub fn of(dir: &Path, role: Role) -> Self {
        Self { dir: dir.to_owned(), role }
    }

    /// The uplink whose journal it is.
    pub fn role(&self) -> Role {
        self.role
    }

    fn path(&self) -> PathBuf {
        self.dir.join(self.role.file())
    }

    /// The journal, or `None` when there is none.
    ///
    /// # Errors
    /// The file cannot be read or parsed, or has another version.
    pub fn load(&self) -> anyhow::Result<Option<Journal>> {
        let path = self.path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("read the journal {}", path.display())),
        };
        let journal: Journal = serde_json::from_str(&text).with_context(|| {
            format!("cannot parse the journal {}; move it away to start over", path.display())
        })?;
        anyhow::ensure!(
            journal.version == VERSION,
            "the journal {} has version {}, but this agent supports {VERSION}",
            path.display(),
            journal.version
        );
        Ok(Some(journal))
    }

    /// Writes the journal, unless the file has the same content already. So an agent can restart on a node with a full disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, journal: &Journal) -> anyhow::Result<()> {
        if self.load().is_ok_and(|there| there.as_ref() == Some(journal)) {
            return Ok(());
        }
        let path = self.path();
        serde_json::to_vec_pretty(journal)
            .map_err(io::Error::from)
            .and_then(|text| write_whole(&path, &text))
            .with_context(|| format!("write the journal {}", path.display()))
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self) -> anyhow::Result<()> {
        let path = self.path();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("remove the journal {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_written_again_and_what_cannot_be_written_is_named_and_leaves_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let mut journal = Journal::new("eth0", "breth0", false, Found::for_test()).unwrap();
        store.save(&journal).unwrap();
        // From now on no file can be created.
        std::fs::create_dir(dir.path().join("gateway.json.new")).unwrap();
        store.save(&journal).unwrap();
        journal.phase = Phase::Done;
        let error = store.save(&journal).unwrap_err();
        assert!(format!("{error:#}").contains("gateway.json: "), "{error:#}");
        assert_eq!(store.load().unwrap().unwrap().phase, Phase::TakingOver);
    }
}

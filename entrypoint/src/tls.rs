//! Certificates as OVS's programs take them. They look at the files again while they run, and take a new certificate when it and its key
//! have both changed; connections that are open stay open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::exec;
use crate::say;
use crate::supervise::Group;

/// How long a certificate may take to come. The kubelet starts the container again after that.
const COMES: Duration = Duration::from_secs(600);

/// Files of a certificate, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    key: PathBuf,
    certificate: PathBuf,
    /// Authorities that sign who is on the other end.
    peers: PathBuf,
}

impl Files {
    /// `tls.key` and `tls.crt` of a directory, and `peers` in it.
    #[must_use]
    pub fn of(directory: &Path, peers: &str) -> Self {
        let file = |name: &str| directory.join(name);
        Self { key: file("tls.key"), certificate: file("tls.crt"), peers: file(peers) }
    }

    /// The flags by which OVS's and OVN's programs take them.
    #[must_use]
    pub fn flags(&self) -> [String; 3] {
        [
            format!("--private-key={}", self.key.display()),
            format!("--certificate={}", self.certificate.display()),
            format!("--ca-cert={}", self.peers.display()),
        ]
    }

    /// Waits until they are there.
    ///
    /// # Errors
    /// They are not after ten minutes, or a signal has come.
    pub fn wait(&self, group: &mut Group, from: &str) -> Result<()> {
        let all = [&self.key, &self.certificate, &self.peers];
        let missing = || all.into_iter().find(|path| !path.exists());
        if let Some(path) = missing() {
            say(format_args!("waiting for {}, which comes from {from}", path.display()));
        }
        exec::retry(COMES, || {
            group.check()?;
            match missing() {
                None => Ok(()),
                Some(path) => Err(Error::Late {
                    what: format!("{} has not come from {from}", path.display()),
                    seconds: COMES.as_secs(),
                }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_waited_for_and_given_as_flags() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path(), "ca.crt");
        assert!(files.flags()[2].ends_with("/ca.crt") && files.flags()[0].starts_with("--private-key=/"));
        for name in ["tls.key", "tls.crt", "ca.crt"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        files.wait(&mut Group::new().unwrap(), "nobody").unwrap();
    }
}

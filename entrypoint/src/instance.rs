//! One Open vSwitch a node. Two that have one database and one directory of sockets would take each other's bridges and interfaces. A
//! container that starts thus waits until another one has ended: the pod that it replaces, or that of an older release.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::say;
use crate::supervise::Group;

/// How long the release may take to go once the pods that clean nodes are there.
pub(crate) const RELEASE_GOES: Duration = Duration::from_secs(900);
/// Locked (`flock`) as long as an Open vSwitch of ours runs, also between the ends of its two programs.
const LOCK: &str = "slipstream-ovs.lock";
/// What Open vSwitch listens at as long as it runs. A socket file whose program has ended refuses connections.
const DATABASE: &str = "db.sock";
/// Control sockets have the process id in their names.
const CONTROL: [&str; 2] = ["ovsdb-server.", "ovs-vswitchd."];
const LOOK: Duration = Duration::from_millis(50);
const TELL: Duration = Duration::from_secs(60);

/// The node's Open vSwitch is the holder's. It ends with the process.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    _lock: File,
}

impl Instance {
    /// Becomes the only Open vSwitch of a directory of sockets; waits for another one to end, without a `limit` for as long as it runs.
    ///
    /// # Errors
    /// The limit is over, a signal has come, or the lock file cannot be made.
    pub fn become_only(run: &Path, group: &mut Group, limit: Option<Duration>) -> Result<Self> {
        let path = run.join(LOCK);
        let failed = |source| Error::File { action: "lock", path: path.clone(), source };
        let open = || File::options().create(true).truncate(false).write(true).open(&path).map_err(failed);
        let mut lock = open()?;
        let (begin, mut told) = (Instant::now(), None::<Instant>);
        loop {
            group.check()?;
            let other = match lock.try_lock() {
                Ok(()) if !is_at(&lock, &path) => {
                    // It was removed, at the end of an installation, while this one waited for it.
                    lock = open()?;
                    continue;
                }
                Ok(()) => answering(run),
                Err(TryLockError::WouldBlock) => Some(path.clone()),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            };
            let Some(other) = other else { break };
            if let Some(limit) = limit.filter(|limit| begin.elapsed() >= *limit) {
                let what = format!("another Open vSwitch still runs on this node ({})", other.display());
                return Err(Error::Late { what, seconds: limit.as_secs() });
            }
            if told.is_none_or(|told| told.elapsed() >= TELL) {
                say(format_args!(
                    "waiting for the end of another Open vSwitch on this node ({}): of an older pod, or a service of the machine",
                    other.display()
                ));
                told = Some(Instant::now());
            }
            thread::sleep(LOOK);
        }
        if told.is_some() {
            say(format_args!("the other Open vSwitch has ended after {:.1?}", begin.elapsed()));
        }
        remove_dead(run, &CONTROL);
        Ok(Self { path, _lock: lock })
    }

    /// Removes the lock file as well, at the end of an installation.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> Result<()> {
        let Self { path, .. } = &self;
        fs::remove_file(path).map_err(|source| Error::File { action: "remove", path: path.clone(), source })
    }
}

/// Whether an open file is the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let open = file.metadata().map(|open| (open.dev(), open.ino()));
    let named = fs::metadata(path).map(|named| (named.dev(), named.ino()));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// A socket of Open vSwitch that takes connections.
fn answering(run: &Path) -> Option<PathBuf> {
    let mut sockets = std::iter::once(run.join(DATABASE)).chain(controls(run, &CONTROL));
    sockets.find(|path| UnixStream::connect(path).is_ok())
}

/// Control sockets whose names begin so.
fn controls(run: &Path, programs: &[&str]) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".ctl") && programs.iter().any(|program| name.starts_with(program))
    })
}

/// Removes control sockets of programs that were killed. The next one has another process id, and thus another name, so that nobody else
/// would. `programs`: how the names begin.
pub(crate) fn remove_dead(run: &Path, programs: &[&str]) {
    for path in controls(run, programs) {
        let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        if UnixStream::connect(&path).is_err_and(refused)
            && let Err(error) = fs::remove_file(&path)
        {
            say(format_args!("{}, of a program that was killed, cannot be removed: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const SHORT: Duration = Duration::from_millis(120);

    fn try_at(run: &Path) -> Result<Instance> {
        Instance::become_only(run, &mut Group::new().unwrap(), Some(SHORT))
    }

    #[test]
    fn sockets_of_the_killed_go_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (killed, other) = ("ovs-vswitchd.15.ctl", "ovn-controller.7.ctl");
        // Closed, and not removed.
        for name in [killed, "ovsdb-server.14.ctl", other] {
            drop(UnixListener::bind(at(name)).unwrap());
        }
        fs::write(at("ovs-vswitchd.pid"), "15").unwrap();
        try_at(dir.path()).unwrap();
        assert!(!at(killed).exists() && !at("ovsdb-server.14.ctl").exists());
        assert!(at(other).exists() && at("ovs-vswitchd.pid").exists());
        let _living = UnixListener::bind(at("ovn-controller.8.ctl")).unwrap();
        remove_dead(dir.path(), &["ovn-controller."]);
        assert!(!at(other).exists() && at("ovn-controller.8.ctl").exists());
    }

    #[test]
    fn there_is_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = try_at(dir.path()).unwrap();
        let error = try_at(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another Open vSwitch still runs") && error.contains(LOCK), "{error}");
        drop(first);
        try_at(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_that_was_removed_meanwhile_keeps_nobody_out_and_lets_no_two_in() {
        let dir = tempfile::tempdir().unwrap();
        let first = try_at(dir.path()).unwrap();
        let run = dir.path().to_owned();
        let wait = move || Instance::become_only(&run, &mut Group::new().unwrap(), None).unwrap();
        let waiting = thread::Builder::new().name("waiting".into()).spawn(wait).unwrap();
        thread::sleep(SHORT);
        first.remove().unwrap();
        let second = waiting.join().unwrap();
        assert!(try_at(dir.path()).is_err(), "the second has it");
        second.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn one_without_the_lock_is_known_by_its_sockets_and_leftovers_are_none() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["db.sock", "ovs-vswitchd.17.ctl", "ovsdb-server.9.ctl"] {
            let listener = UnixListener::bind(dir.path().join(name)).unwrap();
            let error = try_at(dir.path()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            drop(listener);
            assert!(dir.path().join(name).exists());
            try_at(dir.path()).unwrap();
        }
        // A bridge's own sockets, and what others have there, are no sign.
        let _bridge = UnixListener::bind(dir.path().join("br-int.mgmt")).unwrap();
        try_at(dir.path()).unwrap();
    }

    #[test]
    fn who_waits_goes_on_when_the_other_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let other = UnixListener::bind(dir.path().join("db.sock")).unwrap();
        let run = dir.path().to_owned();
        let wait = move || {
            let begin = Instant::now();
            Instance::become_only(&run, &mut Group::new().unwrap(), None).map(|_| begin.elapsed())
        };
        let waiting = thread::Builder::new().name("waiting".into()).spawn(wait).unwrap();
        thread::sleep(SHORT);
        drop(other);
        assert!(waiting.join().unwrap().unwrap() >= SHORT);
    }
}

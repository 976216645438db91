//! The sessions that are open, by their tags.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::counters::Trial;

/// Most sessions of a run.
const MOST_SESSIONS: usize = 16;
/// No CPU is asked for.
const NO_CPU: u32 = u32::MAX;

/// All sessions: none, or those of one run.
#[derive(Debug)]
pub(super) struct Sessions {
    open: Mutex<Open>,
    /// The test of each session that has one.
    trials: RwLock<HashMap<u64, Arc<Trial>>>,
    /// Where datagrams are to be served.
    cpu: AtomicU32,
}

#[derive(Debug, Default)]
struct Open {
    run: u64,
    count: usize,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { open: Mutex::default(), trials: RwLock::default(), cpu: AtomicU32::new(NO_CPU) }
    }
}

impl Sessions {
    /// Opens a session of a run.
    ///
    /// # Errors
    /// Why not, for the client to read.
    pub(super) fn open(self: &Arc<Self>, run: u64) -> Result<Session, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.count > 0 && open.run != run {
            return Err("busy: another run is being served, try again when it has ended".to_owned());
        }
        if open.count >= MOST_SESSIONS {
            return Err(format!("busy: a run may have {MOST_SESSIONS} sessions with one server"));
        }
        *open = Open { run, count: open.count + 1 };
        Ok(Session { tag: fastrand::u64(1..), sessions: Arc::clone(self) })
    }

    /// The test of a session.
    pub(super) fn trial(&self, tag: u64) -> Option<Arc<Trial>> {
        self.trials.read().unwrap_or_else(PoisonError::into_inner).get(&tag).map(Arc::clone)
    }

    /// The CPU on which the current test wants to be served.
    pub(super) fn cpu(&self) -> Option<u32> {
        Some(self.cpu.load(Relaxed)).filter(|cpu| *cpu != NO_CPU)
    }

    fn set(&self, tag: u64, trial: Option<Arc<Trial>>) {
        let mut trials = self.trials.write().unwrap_or_else(PoisonError::into_inner);
        let before = match trial {
            Some(trial) => trials.insert(tag, trial),
            None => trials.remove(&tag),
        };
        if let Some(before) = before {
            before.ended.store(true, Relaxed);
        }
    }
}

/// A session; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) tag: u64,
    sessions: Arc<Sessions>,
}

impl Session {
    /// The test that is served from now on.
    pub(super) fn prepare(&self, trial: Trial) -> Arc<Trial> {
        let trial = Arc::new(trial);
        self.sessions.cpu.store(trial.settings.server_cpu.unwrap_or(NO_CPU), Relaxed);
        self.sessions.set(self.tag, Some(Arc::clone(&trial)));
        trial
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.set(self.tag, None);
        let mut open = self.sessions.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.count = open.count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_and_a_bounded_number_of_its_sessions() {
        let sessions = Arc::new(Sessions::default());
        let mine: Vec<_> = (0..MOST_SESSIONS).map(|_| sessions.open(1).unwrap()).collect();
        assert!(sessions.open(1).unwrap_err().starts_with("busy"));
        assert!(sessions.open(2).unwrap_err().starts_with("busy"));
        drop(mine);
        assert!(sessions.open(2).is_ok());
    }
}

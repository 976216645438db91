//! Progress on standard error: one line that is written over on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines where nobody overwrites them.
const SELDOM: Duration = Duration::from_secs(10);

/// Progress of a run.
pub(crate) struct Progress {
    end: Instant,
    is_terminal: bool,
    said: Option<Instant>,
}

impl Progress {
    /// Progress of something that takes `time`.
    pub(crate) fn new(time: Duration) -> Self {
        let end = Instant::now() + time;
        Self { end, is_terminal: std::io::stderr().is_terminal(), said: None }
    }

    /// Puts the end to so long from now.
    pub(crate) fn left(&mut self, time: Duration) {
        self.end = Instant::now() + time;
    }

    /// A line that stays.
    pub(crate) fn say(&mut self, what: &str) {
        // Nobody reads it: no reason to stop.
        let _ = writeln!(std::io::stderr(), "{}{what}", if self.is_terminal { "\r\x1b[K" } else { "" });
    }

    /// How far it is.
    pub(crate) fn step(&mut self, what: &str) {
        let left = self.end.saturating_duration_since(Instant::now()).as_secs();
        let time = format!("{}:{:02} left", left / 60, left % 60);
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{time}  {what}");
            let _ = std::io::stderr().flush();
        } else if self.said.is_none_or(|said| said.elapsed() >= SELDOM) {
            self.said = Some(Instant::now());
            let _ = writeln!(std::io::stderr(), "{time}  {what}");
        }
    }

    /// The line that was written over goes.
    pub(crate) fn end(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

//! Waiting for what other processes do.

use std::thread;
use std::time::{Duration, Instant};

/// Asks every 10 ms until there is an answer.
///
/// # Panics
/// There is none within `limit`.
pub fn wait_for<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// It does not within `limit`.
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(limit, what, || holds().then_some(()));
}

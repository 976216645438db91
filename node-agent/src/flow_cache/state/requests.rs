//! What OVS's revalidators are to be waited for.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flow_cache::invalidation::Concerned;

/// What is to be waited for next.
#[derive(Debug, Default)]
pub(in crate::flow_cache) struct Requests {
    next: Mutex<Concerned>,
    some: Notify,
}

impl Requests {
    /// Requests a wait.
    pub(in crate::flow_cache) fn add(&self, concerned: Concerned) {
        if !concerned.is_empty() {
            self.next.lock().add(concerned);
            self.some.notify_one();
        }
    }

    /// Takes what was requested; waits until something is.
    pub(in crate::flow_cache) async fn take(&self) -> Concerned {
        loop {
            let next = std::mem::take(&mut *self.next.lock());
            if !next.is_empty() {
                return next;
            }
            self.some.notified().await;
        }
    }
}

//! Serializes CNI calls per container, and cancels ADDs that were superseded.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};

use api::NamespacedName;

/// CNI calls in progress. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    locks: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    adds: HashMap<String, (NamespacedName, watch::Sender<Option<String>>)>,
}

/// Lock on one container; released on drop.
#[derive(Debug)]
pub struct Turn {
    calls: Calls,
    container: String,
    guard: Option<OwnedMutexGuard<()>>,
}

/// Cancellation signal of an ADD.
#[derive(Debug, Clone)]
pub struct Cancel(watch::Receiver<Option<String>>);

impl Calls {
    /// Waits for the lock on `container`.
    pub async fn turn(&self, container: &str) -> Turn {
        let lock = Arc::clone(self.inner.lock().locks.entry(container.to_owned()).or_default());
        let guard = Some(lock.lock_owned().await);
        Turn { calls: self.clone(), container: container.to_owned(), guard }
    }

    /// Takes the lock on `container`; `None` if another call holds it.
    pub fn try_turn(&self, container: &str) -> Option<Turn> {
        let lock = Arc::clone(self.inner.lock().locks.entry(container.to_owned()).or_default());
        let guard = Some(lock.try_lock_owned().ok()?);
        Some(Turn { calls: self.clone(), container: container.to_owned(), guard })
    }

    /// Registers an ADD and cancels ADDs of older sandboxes of the same pod.
    pub fn start_add(&self, container: &str, pod: &NamespacedName) -> Cancel {
        let (sender, receiver) = watch::channel(None);
        let mut inner = self.inner.lock();
        for (other, (key, cancel)) in &inner.adds {
            if key == pod && other != container {
                let reason = format!("pod {pod} has a newer sandbox, {container}");
                cancel.send_replace(Some(reason));
            }
        }
        inner.adds.insert(container.to_owned(), (pod.clone(), sender));
        Cancel(receiver)
    }

    /// Cancels the ADD of `container`, if one is in progress.
    pub fn cancel_add(&self, container: &str, reason: &str) {
        if let Some((_, cancel)) = self.inner.lock().adds.get(container) {
            cancel.send_replace(Some(reason.to_owned()));
        }
    }

    /// Removes the registration of an ADD.
    pub fn end_add(&self, container: &str) {
        self.inner.lock().adds.remove(container);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut inner = self.calls.inner.lock();
        // The reference in the map is the last one when no call waits.
        if inner.locks.get(&self.container).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            inner.locks.remove(&self.container);
        }
    }
}

impl Cancel {
    /// Runs `work` until it is done or the ADD is cancelled.
    ///
    /// # Errors
    /// The reason of the cancellation.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        let mut receiver = self.0.clone();
        let wait = async {
            let reason =
                receiver.wait_for(Option::is_some).await.map(|reason| reason.clone().unwrap_or_default());
            match reason {
                Ok(reason) => reason,
                // Without a sender the ADD cannot be cancelled.
                Err(_closed) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = wait => Err(reason),
            done = work => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> NamespacedName {
        NamespacedName { namespace: "ns".to_owned(), name: name.to_owned() }
    }

    #[tokio::test]
    async fn one_at_a_time_for_a_container_and_nothing_is_kept_afterwards() {
        let calls = Calls::default();
        let turn = calls.turn("c1").await;
        assert!(calls.try_turn("c1").is_none());
        assert!(calls.try_turn("c2").is_some());
        drop(turn);
        assert!(calls.try_turn("c1").is_some());
        assert!(calls.inner.lock().locks.is_empty());
    }

    #[tokio::test]
    async fn a_newer_sandbox_ends_the_wait_of_an_older_one_of_the_same_pod_only() {
        let calls = Calls::default();
        let old = calls.start_add("old", &pod("a"));
        let other = calls.start_add("other", &pod("b"));
        let _new = calls.start_add("new", &pod("a"));
        let reason = old.unless(std::future::pending::<()>()).await.unwrap_err();
        assert!(reason.contains("newer sandbox, new"), "{reason}");
        assert_eq!(other.unless(async { 7 }).await, Ok(7));
        calls.cancel_add("other", "DEL came");
        assert_eq!(other.unless(std::future::pending::<()>()).await.unwrap_err(), "DEL came");
        calls.end_add("old");
        assert!(!calls.inner.lock().adds.contains_key("old"));
    }
}

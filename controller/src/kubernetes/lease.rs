//! Leader election by a Lease object. The holder renews it; a candidate that finds it expired takes it, with the resource version
//! as precondition, so that only one of two candidates wins. It gives no strict guarantee, as clocks and pauses may deceive; the
//! database's lock is what keeps a deposed leader from writing.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{oneshot, watch};

use api::error::chain;

use super::TIMEOUT;
use crate::metrics::{ErrorKind, Metrics};

/// How long a lease holds without being renewed.
const DURATION: Duration = Duration::from_secs(15);
/// Interval of renewals by the holder: a third of the duration, so that one lost attempt does no harm.
const RENEW: Duration = Duration::from_secs(5);
/// The holder gives up this long before the lease expires.
const SLACK: Duration = Duration::from_secs(2);
/// Other candidates read the lease at this interval, and when it expires: this is the longest gap after a leader gives it up.
const LOOK: Duration = Duration::from_millis(500);
/// Wait after a failed attempt.
const RETRY: Duration = Duration::from_secs(1);

/// A lease and the candidate for it.
#[derive(Debug, Clone)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique to this process.
    pub identity: String,
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Held,
    /// Held by this identity.
    Other(String),
}

/// The other holder's last change of the lease, by our own clock: clocks of different machines are never compared.
#[derive(Debug)]
struct Observed {
    holder: String,
    version: String,
    /// The time at which the lease is free, if it does not change.
    expires: Instant,
}

/// How long to wait until another holder's lease is read again.
fn next_look(observed: Option<&Observed>, now: Instant) -> Duration {
    // A little later than it expires, as timers may be early.
    let expiry = |seen: &Observed| seen.expires.saturating_duration_since(now) + Duration::from_millis(10);
    observed.map_or(LOOK, expiry).min(LOOK)
}

impl Election {
    /// Takes part in the election until requested to resign, and publishes whether the lease is held. On resignation the lease is
    /// released, so that the next leader need not wait for its expiry.
    ///
    /// # Errors
    /// The lease was lost. It is not acquired again: the process is to exit and be restarted.
    pub async fn run(
        self,
        client: Client,
        held: watch::Sender<bool>,
        resign: oneshot::Receiver<()>,
        metrics: Metrics,
    ) -> anyhow::Result<()> {
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        tokio::select! {
            lost = self.take_part(&api, &held, &metrics) => {
                held.send_replace(false);
                Err(lost)
            }
            // A dropped sender also means resignation.
            _ = resign => {
                held.send_replace(false);
                self.release(&api, &metrics).await;
                Ok(())
            }
        }
    }

    async fn take_part(
        &self,
        api: &Api<Lease>,
        held: &watch::Sender<bool>,
        metrics: &Metrics,
    ) -> anyhow::Error {
        let lease = format!("{}/{}", self.namespace, self.name);
        let mut observed = None;
        let mut renewed: Option<Instant> = None;
        loop {
            let start = Instant::now();
            let limit = match renewed {
                Some(at) => (at + DURATION - SLACK).saturating_duration_since(start),
                None => TIMEOUT,
            };
            if limit.is_zero() {
                return anyhow!(
                    "lease {lease} could not be renewed within {} s",
                    (DURATION - SLACK).as_secs()
                );
            }
            let attempt = tokio::time::timeout(limit.min(RENEW), self.attempt(api, &mut observed));
            let error = match attempt.await {
                Ok(Ok(Outcome::Held)) => {
                    renewed = Some(start);
                    if !held.send_replace(true) {
                        tracing::info!(lease, identity = self.identity, "leader");
                    }
                    tokio::time::sleep(RENEW).await;
                    continue;
                }
                Ok(Ok(Outcome::Other(holder))) => {
                    if renewed.is_some() {
                        return anyhow!("lease {lease} was taken by {holder}");
                    }
                    tracing::debug!(lease, holder, "not the leader");
                    tokio::time::sleep(next_look(observed.as_ref(), Instant::now())).await;
                    continue;
                }
                Ok(Err(error)) => chain(&error),
                Err(_elapsed) => "no answer".to_owned(),
            };
            metrics.error(ErrorKind::Lease);
            tracing::warn!(lease, error, "lease could not be read or written; retrying");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn attempt(&self, api: &Api<Lease>, observed: &mut Option<Observed>) -> kube::Result<Outcome> {
        let now = MicroTime(k8s_openapi::jiff::Timestamp::now());
        let Some(mut lease) = api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    namespace: Some(self.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(LeaseSpec::default(), now)),
            };
            return match api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(Outcome::Held),
                Err(error) if is_conflict(&error) => Ok(Outcome::Other("another taker".to_owned())),
                Err(error) => Err(error),
            };
        };
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        if holder != self.identity && !holder.is_empty() && !self.expired(&lease, &holder, observed) {
            return Ok(Outcome::Other(holder));
        }
        lease.spec = Some(self.spec(lease.spec.take().unwrap_or_default(), now));
        // The resource version that was read is sent back with it: a write in between makes this a conflict.
        match api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(Outcome::Held),
            Err(error) if is_conflict(&error) => Ok(Outcome::Other("another taker".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Whether another holder has not changed the lease for its duration, since we first saw this state of it.
    fn expired(&self, lease: &Lease, holder: &str, observed: &mut Option<Observed>) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds.and_then(|s| u64::try_from(s).ok()).map_or(DURATION, Duration::from_secs);
        match observed {
            Some(seen) if seen.holder == holder && seen.version == version => seen.expires < Instant::now(),
            _ => {
                let expires = Instant::now() + duration;
                *observed = Some(Observed { holder: holder.to_owned(), version, expires });
                false
            }
        }
    }

    fn spec(&self, old: LeaseSpec, now: MicroTime) -> LeaseSpec {
        let mine = old.holder_identity.as_deref() == Some(self.identity.as_str());
        LeaseSpec {
            acquire_time: if mine { old.acquire_time } else { Some(now.clone()) },
            lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!mine)),
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: Some(now),
            ..old
        }
    }

    async fn release(&self, api: &Api<Lease>, metrics: &Metrics) {
        let given_up = tokio::time::timeout(SLACK, async {
            // A renewal may still be on its way, which makes one attempt a conflict.
            loop {
                match self.give_up(api).await {
                    Err(error) if is_conflict(&error) => {}
                    result => return result,
                }
            }
        });
        let error = match given_up.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => chain(&error),
            Err(_elapsed) => "no answer".to_owned(),
        };
        metrics.error(ErrorKind::Lease);
        tracing::warn!(lease = self.name, error, "lease could not be given up; it expires by itself");
    }

    async fn give_up(&self, api: &Api<Lease>) -> kube::Result<()> {
        let Some(mut lease) = api.get_opt(&self.name).await? else { return Ok(()) };
        match &mut lease.spec {
            Some(spec) if spec.holder_identity.as_deref() == Some(self.identity.as_str()) => {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(identity: &str) -> Election {
        Election { namespace: "kube-system".to_owned(), name: "x".to_owned(), identity: identity.to_owned() }
    }

    fn now() -> MicroTime {
        MicroTime(k8s_openapi::jiff::Timestamp::now())
    }

    #[test]
    fn a_new_holder_counts_a_transition_and_a_renewal_does_not() {
        let first = election("a").spec(LeaseSpec::default(), now());
        assert_eq!(first.lease_transitions, Some(1));
        let renewed = election("a").spec(first.clone(), now());
        assert_eq!((renewed.lease_transitions, renewed.acquire_time.clone()), (Some(1), first.acquire_time));
        assert_eq!(election("b").spec(renewed, now()).lease_transitions, Some(2));
    }

    #[test]
    fn the_lease_of_another_is_looked_at_when_it_expires_and_often_before() {
        let now = Instant::now();
        let at = |expires| Observed { holder: "a".to_owned(), version: "1".to_owned(), expires };
        assert_eq!(next_look(None, now), LOOK);
        assert_eq!(next_look(Some(&at(now + DURATION)), now), LOOK);
        let soon = next_look(Some(&at(now + LOOK / 2)), now);
        assert!(soon > LOOK / 2 && soon < LOOK, "{soon:?}");
        assert!(next_look(Some(&at(now)), now) < LOOK / 2);
    }

    #[test]
    fn a_lease_seen_for_the_first_time_is_not_expired_however_old_it_says_it_is() {
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some("1".to_owned());
        lease.spec = Some(LeaseSpec { lease_duration_seconds: Some(0), ..LeaseSpec::default() });
        let mut observed = None;
        assert!(!election("b").expired(&lease, "a", &mut observed));
        // Unchanged for longer than its duration: expired.
        assert!(election("b").expired(&lease, "a", &mut observed));
        lease.metadata.resource_version = Some("2".to_owned());
        assert!(!election("b").expired(&lease, "a", &mut observed));
    }
}

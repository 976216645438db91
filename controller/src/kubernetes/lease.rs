//! Leader election by a Lease object. The holder renews it; whoever finds it expired takes it, with the resource version
//! as precondition, so that of two takers one wins. What it promises is not strict, as clocks and pauses may deceive; the
//! database's lock is what keeps a deposed leader from writing.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;

use super::chain;
use crate::metrics::{ErrorKind, Metrics};

/// How long a lease holds without being renewed.
const DURATION: Duration = Duration::from_secs(15);
/// The holder renews this often: a third, so that one lost attempt does no harm.
const RENEW: Duration = Duration::from_secs(5);
/// The holder gives up this long before the lease expires.
const SLACK: Duration = Duration::from_secs(2);
/// Others look this often.
const LOOK: Duration = Duration::from_secs(2);

/// A lease and who wants it.
#[derive(Debug, Clone)]
pub struct Election {
    pub namespace: String,
    pub name: String,
    /// Unique to this process.
    pub identity: String,
}

/// What an attempt found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Held,
    /// Held by this identity.
    Other(String),
}

/// The other holder's last sign of life, by our own clock: clocks of different machines are never compared.
#[derive(Debug)]
struct Observed {
    holder: String,
    version: String,
    since: Instant,
}

impl Election {
    /// Takes part until the process ends, publishing whether the lease is held. Once lost it is not taken again: the
    /// process is to end and start anew.
    pub async fn run(self, client: Client, held: watch::Sender<bool>, metrics: Metrics) {
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        let mut observed = None;
        let mut renewed: Option<Instant> = None;
        loop {
            let attempt = tokio::time::timeout(RENEW, self.attempt(&api, &mut observed));
            let start = Instant::now();
            match attempt.await {
                Ok(Ok(Outcome::Held)) => {
                    renewed = Some(start);
                    if !held.send_replace(true) {
                        tracing::info!(lease = self.name, identity = self.identity, "leader");
                    }
                }
                Ok(Ok(Outcome::Other(holder))) => {
                    if renewed.is_some() {
                        tracing::error!(lease = self.name, holder, "somebody else took the lease");
                        break;
                    }
                    tracing::debug!(lease = self.name, holder, "not the leader");
                }
                Ok(Err(error)) => {
                    metrics.error(ErrorKind::Lease);
                    let error = chain(&error);
                    tracing::warn!(
                        lease = self.name,
                        error,
                        "lease could not be read or written; trying again"
                    );
                }
                Err(_elapsed) => {
                    metrics.error(ErrorKind::Lease);
                    tracing::warn!(lease = self.name, "no answer about the lease; trying again");
                }
            }
            if renewed.is_some_and(|at| at.elapsed() + LOOK > DURATION - SLACK) {
                tracing::error!(lease = self.name, "lease could not be renewed in time");
                break;
            }
            let fresh = renewed.is_some_and(|at| at.elapsed() < RENEW);
            tokio::time::sleep(if fresh { RENEW } else { LOOK }).await;
        }
        held.send_replace(false);
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
        // The resource version read goes back with it: a write in between makes this a conflict.
        match api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(Outcome::Held),
            Err(error) if is_conflict(&error) => Ok(Outcome::Other("another taker".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Whether another holder has been silent for the lease's duration, since we first saw this state of it.
    fn expired(&self, lease: &Lease, holder: &str, observed: &mut Option<Observed>) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds.and_then(|s| u64::try_from(s).ok()).map_or(DURATION, Duration::from_secs);
        match observed {
            Some(seen) if seen.holder == holder && seen.version == version => seen.since.elapsed() > duration,
            _ => {
                *observed = Some(Observed { holder: holder.to_owned(), version, since: Instant::now() });
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

    /// Gives the lease up at an orderly end, so that the next leader need not wait.
    pub async fn release(&self, client: Client) {
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        let given_up = async {
            let Some(mut lease) = api.get_opt(&self.name).await? else { return Ok(()) };
            match &mut lease.spec {
                Some(spec) if spec.holder_identity.as_deref() == Some(self.identity.as_str()) => {
                    spec.holder_identity = Some(String::new());
                    spec.lease_duration_seconds = Some(1);
                    api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
                }
                _ => Ok(()),
            }
        };
        if let Err(error) = tokio::time::timeout(SLACK, given_up).await.unwrap_or(Ok(())) {
            tracing::warn!(lease = self.name, %error, "lease could not be given up; it expires by itself");
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

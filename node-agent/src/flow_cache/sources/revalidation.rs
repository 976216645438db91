//! Waits until OVS's revalidators have updated all datapath flows after a change of its tables.
//!
//! `revalidator/wait` replies at the end of a round over all datapath flows. That round may have started before the change and
//! have passed a flow already. A second wait, sent after the first reply, ends with a round that started after the change. So only
//! after the second reply no datapath flow is older than the change.
//!
//! OVS starts a round when its tables change, so a wait starts at the first change of a burst; regular rounds follow twice a
//! second. Waits for different scopes run beside each other: none is put off by changes that go on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;

use crate::flow_cache::invalidation::{Concerned, Input, Round};
use crate::flow_cache::state::Shared;
use crate::flow_cache::state::requests::Requests;
use crate::ovs::unixctl::{Unixctl, UnixctlError};

/// Timeout for a round. By default OVS starts one at least every 500 ms (`max-revalidator`, ovs-vswitchd.conf.db(5)).
const LONGEST: Duration = Duration::from_secs(5);
/// Assumed duration of a round when `revalidator/wait` fails.
const ASSUMED: Duration = Duration::from_millis(700);
/// Waits at a time; what comes meanwhile is waited for together.
const WAITS: usize = 16;

/// After each change, waits for two rounds and reports each to the state machine. Never returns.
pub(in crate::flow_cache) async fn run(shared: Arc<Shared>, unixctl: Option<Unixctl>) {
    let ovs = Ovs { shared: Arc::clone(&shared), unixctl, logged: Mutex::new(false) };
    follow(&shared.revalidate, &ovs, |round, concerned| {
        shared.take(Input::Revalidated(round, concerned));
    })
    .await;
}

/// Source of the ends of rounds.
trait Revalidators {
    /// Waits until a round ends.
    async fn wait(&self);
}

/// Why the end of a round is not known.
#[derive(Debug, thiserror::Error)]
enum WaitError {
    #[error(transparent)]
    Unixctl(#[from] UnixctlError),
    #[error("no unixctl socket of ovs-vswitchd on this node")]
    NoSocket,
}

struct Ovs {
    shared: Arc<Shared>,
    unixctl: Option<Unixctl>,
    /// The current failure is logged.
    logged: Mutex<bool>,
}

impl Revalidators for Ovs {
    async fn wait(&self) {
        let began = Instant::now();
        let waited = match &self.unixctl {
            Some(unixctl) => unixctl.call("revalidator/wait", &[], LONGEST).await.map_err(WaitError::from),
            None => Err(WaitError::NoSocket),
        };
        match waited {
            Ok(_) => {
                self.shared.metrics.revalidation.observe(began.elapsed().as_secs_f64());
                *self.logged.lock() = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut *self.logged.lock(), true) {
                    tracing::warn!(
                        error = error.to_string(),
                        "revalidator/wait failed; assuming a fixed duration for a revalidator round"
                    );
                }
                tokio::time::sleep(ASSUMED).await;
            }
        }
    }
}

/// Waits for two rounds after each change. Where everything is concerned the youngest wait speaks for the earlier ones.
async fn follow(requests: &Requests, ovs: &impl Revalidators, tell: impl Fn(Round, Concerned)) {
    let (youngest, tell) = (&AtomicU64::new(0), &tell);
    let rounds = |concerned: Concerned| async move {
        let more = u64::from(concerned.everything);
        let number = youngest.fetch_add(more, Ordering::Relaxed) + more;
        for round in [Round::First, Round::Second] {
            ovs.wait().await;
            let everything = concerned.everything && youngest.load(Ordering::Relaxed) == number;
            tell(round, Concerned { everything, buckets: concerned.buckets.clone() });
        }
    };
    let mut waits = FuturesUnordered::new();
    loop {
        tokio::select! {
            concerned = requests.take(), if waits.len() < WAITS => waits.push(rounds(concerned)),
            Some(()) = waits.next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// OVS: a flow table, and one datapath flow that a round brings in line with the table as the round found it.
    #[derive(Default)]
    struct Model {
        table: u32,
        datapath: u32,
        /// The table as the round that is under way has read it.
        round: Option<u32>,
        waiting: Vec<oneshot::Sender<()>>,
        /// For each answer that was told: for what, and the datapath at that moment.
        told: Vec<(Round, Concerned, u32)>,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Model>>);

    impl Revalidators for Fake {
        async fn wait(&self) {
            let (answer, answered) = oneshot::channel();
            self.0.lock().waiting.push(answer);
            let _ = answered.await;
        }
    }

    impl Fake {
        fn begin(&self) {
            let mut model = self.0.lock();
            model.round = Some(model.table);
        }

        async fn end(&self) {
            let answers = {
                let mut model = self.0.lock();
                model.datapath = model.round.take().unwrap();
                std::mem::take(&mut model.waiting)
            };
            for answer in answers {
                let _ = answer.send(());
            }
            settle().await;
        }

        fn told(&self) -> Vec<(Round, Concerned, u32)> {
            std::mem::take(&mut self.0.lock().told)
        }
    }

    /// Lets the other task run until it waits.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    fn everything() -> Concerned {
        Concerned { everything: true, ..Concerned::default() }
    }

    fn scope(bucket: u32) -> Concerned {
        Concerned { everything: false, buckets: [bucket].into() }
    }

    async fn with(test: impl AsyncFnOnce(&Fake, &Change)) {
        let (fake, requests) = (Fake::default(), Arc::new(Requests::default()));
        let task = {
            let (ovs, log, requests) = (fake.clone(), fake.clone(), Arc::clone(&requests));
            tokio::spawn(async move {
                follow(&requests, &ovs, |round, concerned| {
                    let mut model = log.0.lock();
                    let datapath = model.datapath;
                    model.told.push((round, concerned, datapath));
                })
                .await;
            })
        };
        test(&fake, &Change { fake: fake.clone(), requests }).await;
        task.abort();
    }

    struct Change {
        fake: Fake,
        requests: Arc<Requests>,
    }

    impl Change {
        /// OVS's table changes, and we hear of it.
        async fn make(&self, table: u32, concerned: Concerned) {
            self.fake.0.lock().table = table;
            self.requests.add(concerned);
            settle().await;
        }
    }

    #[tokio::test]
    async fn the_end_of_a_round_that_began_before_the_change_is_not_the_last_word() {
        with(async |ovs, change| {
            ovs.begin();
            change.make(1, everything()).await;
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::First, everything(), 0)], "the old flow is still there");
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::Second, everything(), 1)]);
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told().len(), 0, "nobody asks any more");
        })
        .await;
    }

    #[tokio::test]
    async fn where_everything_is_concerned_another_change_begins_the_count_anew() {
        with(async |ovs, change| {
            change.make(1, everything()).await;
            ovs.begin();
            ovs.end().await;
            ovs.begin();
            // This round has read the table already.
            change.make(2, everything()).await;
            ovs.end().await;
            let told = ovs.told();
            assert!(told.contains(&(Round::First, everything(), 1)), "{told:?}");
            assert!(!told.iter().any(|told| told.0 == Round::Second && told.1.everything), "{told:?}");
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::Second, everything(), 2)]);
        })
        .await;
    }

    #[tokio::test]
    async fn changes_elsewhere_do_not_put_off_the_last_word_on_a_scope() {
        with(async |ovs, change| {
            change.make(1, scope(7)).await;
            let mut told = Vec::new();
            for table in 2..6 {
                ovs.begin();
                change.make(table, scope(100 + table)).await;
                ovs.end().await;
                told.extend(ovs.told());
            }
            let of_it: Vec<_> = told.iter().filter(|(_, concerned, _)| *concerned == scope(7)).collect();
            assert_eq!(of_it, [&(Round::First, scope(7), 1), &(Round::Second, scope(7), 2)]);
        })
        .await;
    }

    #[tokio::test]
    async fn what_comes_while_many_wait_is_waited_for_together() {
        with(async |ovs, change| {
            for bucket in 0..100 {
                change.make(bucket, scope(bucket)).await;
            }
            assert_eq!(ovs.0.lock().waiting.len(), WAITS);
            let mut told = Concerned::default();
            for _ in 0..8 {
                ovs.begin();
                ovs.end().await;
                for (round, concerned, _) in ovs.told() {
                    if round == Round::Second {
                        told.add(concerned);
                    }
                }
            }
            assert_eq!(told.buckets, (0..100).collect());
        })
        .await;
    }
}

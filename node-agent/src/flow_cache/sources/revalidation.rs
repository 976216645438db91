//! Waits until OVS's revalidators have updated all datapath flows after a change of its tables.
//!
//! `revalidator/wait` replies at the end of a round over all datapath flows. That round may have started before the change and
//! have passed a flow already. A second wait, sent after the first reply, ends with a round that started after the change. So only
//! after the second reply no datapath flow is older than the change.
//!
//! OVS starts a round when its tables change, so the wait starts at the first change of a burst; regular rounds follow twice a
//! second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::flow_cache::invalidation::{Input, Round};
use crate::flow_cache::manager::Shared;
use crate::ovs::unixctl::Unixctl;

/// Timeout for a round. By default OVS starts one at least every 500 ms (`max-revalidator`, ovs-vswitchd.conf.db(5)).
const LONGEST: Duration = Duration::from_secs(5);
/// Assumed duration of a round when `revalidator/wait` fails.
const ASSUMED: Duration = Duration::from_millis(700);

/// After each change, waits for two rounds and reports each to the state machine. Never returns.
pub(in crate::flow_cache) async fn run(shared: Arc<Shared>, unixctl: Option<Unixctl>) {
    let ovs = Ovs { shared: Arc::clone(&shared), unixctl, logged: false };
    follow(&shared.revalidate, ovs, |round| {
        shared.take(Input::Revalidated(round));
    })
    .await;
}

/// Source of the ends of rounds.
trait Revalidators {
    /// Waits until a round ends.
    async fn wait(&mut self);
}

struct Ovs {
    shared: Arc<Shared>,
    unixctl: Option<Unixctl>,
    /// The current failure is logged.
    logged: bool,
}

impl Revalidators for Ovs {
    async fn wait(&mut self) {
        let began = Instant::now();
        let waited = match &self.unixctl {
            Some(unixctl) => {
                unixctl.call("revalidator/wait", &[], LONGEST).await.map_err(|error| error.to_string())
            }
            None => Err("no unixctl socket of ovs-vswitchd on this node".to_owned()),
        };
        match waited {
            Ok(_) => {
                self.shared.metrics.revalidation.observe(began.elapsed().as_secs_f64());
                self.logged = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.logged, true) {
                    tracing::warn!(
                        error,
                        "revalidator/wait failed; assuming a fixed duration for a revalidator round"
                    );
                }
                tokio::time::sleep(ASSUMED).await;
            }
        }
    }
}

/// Waits for two rounds after each change; another change in between restarts the count.
async fn follow(changed: &Notify, mut ovs: impl Revalidators, tell: impl Fn(Round)) {
    changed.notified().await;
    loop {
        let asked = async {
            for round in [Round::First, Round::Second] {
                ovs.wait().await;
                tell(round);
            }
        };
        tokio::select! {
            biased;
            // A wait that started before this change says nothing about it.
            () = changed.notified() => {}
            () = asked => changed.notified().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
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
        /// For each answer that was told, the datapath at that moment.
        told: Vec<(Round, u32)>,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Model>>);

    impl Revalidators for Fake {
        async fn wait(&mut self) {
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

        fn told(&self) -> Vec<(Round, u32)> {
            self.0.lock().told.clone()
        }
    }

    /// Lets the other task run until it waits.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    async fn with(test: impl AsyncFnOnce(&Fake, &Change)) {
        let (fake, changed) = (Fake::default(), Arc::new(Notify::new()));
        let task = {
            let (asked, log, changed) = (fake.clone(), fake.clone(), Arc::clone(&changed));
            tokio::spawn(async move {
                follow(&changed, asked, |round| {
                    let mut model = log.0.lock();
                    let datapath = model.datapath;
                    model.told.push((round, datapath));
                })
                .await;
            })
        };
        test(&fake, &Change { fake: fake.clone(), changed }).await;
        task.abort();
    }

    struct Change {
        fake: Fake,
        changed: Arc<Notify>,
    }

    impl Change {
        /// OVS's table changes, and we hear of it.
        fn make(&self, table: u32) {
            self.fake.0.lock().table = table;
            self.changed.notify_one();
        }
    }

    #[tokio::test]
    async fn the_end_of_a_round_that_began_before_the_change_is_not_the_last_word() {
        with(async |ovs, change| {
            ovs.begin();
            change.make(1);
            settle().await;
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::First, 0)], "the old flow is still there");
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::First, 0), (Round::Second, 1)]);
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told().len(), 2, "nobody asks any more");
        })
        .await;
    }

    #[tokio::test]
    async fn another_change_begins_the_count_anew() {
        with(async |ovs, change| {
            change.make(1);
            settle().await;
            ovs.begin();
            ovs.end().await;
            ovs.begin();
            // This round has read the table already.
            change.make(2);
            settle().await;
            ovs.end().await;
            assert_eq!(ovs.told(), [(Round::First, 1), (Round::First, 1)]);
            ovs.begin();
            ovs.end().await;
            assert_eq!(ovs.told().last(), Some(&(Round::Second, 2)));
        })
        .await;
    }
}

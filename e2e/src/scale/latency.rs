//! Pods come and go at a steady rate; how long after each became known is its row there?

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use super::run::Run;
use super::watch::Watch;
use super::world::{Pod, some_pod};
use super::{eventually, load, node};

/// Label of these pods.
const LABEL: (&str, &str) = ("churn", "yes");
/// How long a pod lives.
const LIFE: Duration = Duration::from_secs(2);
/// How long the last rows may take to come and go.
const REST: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) pods: usize,
    /// Pods that were really made in a second.
    pub(super) rate: f64,
    /// From our own watch's event to the row, sorted.
    pub(super) from_event: Vec<Duration>,
    /// From the API server's answer to the row, sorted.
    pub(super) from_answer: Vec<Duration>,
    /// Fails if a row did not come or did not go.
    pub(super) complete: Result<()>,
}

/// When pods became known, by the name of their port.
type Moments = Arc<Mutex<HashMap<String, Instant>>>;

pub(super) async fn run(run: &mut Run<'_>, watch: &Watch, rate: u32, seconds: u32) -> Result<Times> {
    let namespaces: Vec<String> = run.world.namespaces.keys().cloned().collect();
    let events = Moments::default();
    let follow = follow(run.client.clone(), Arc::clone(&events));
    let mut lives = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let begin = Instant::now();
    for i in 0..rate * seconds {
        ticks.tick().await;
        let node = node::name(run.random.below(run.args.nodes));
        let mut pod = some_pod(&mut run.random, &namespaces, &format!("c{i:06}"), node);
        pod.labels.insert(LABEL.0.to_owned(), LABEL.1.to_owned());
        watch.seen().order.must_close(pod.port(), run.world.closing(&pod));
        lives.spawn(live(run.client.clone(), pod));
    }
    let made = begin.elapsed();
    let mut answers = HashMap::new();
    while let Some(ended) = lives.join_next().await {
        let (port, at) = ended.context("a task of the test ended")??;
        answers.insert(port, at);
    }
    let complete = eventually(REST, "every row came and went", || {
        let seen = watch.seen();
        let waiting =
            answers.keys().filter(|p| !seen.came.contains_key(*p) || !seen.went.contains_key(*p)).count();
        if waiting == 0 { Ok(()) } else { Err(anyhow!("{waiting} of {} did not", answers.len())) }
    });
    let complete = complete.await;
    follow.abort();
    let seen = watch.seen();
    let since = |moments: &HashMap<String, Instant>| {
        let one = |(port, at): (&String, &Instant)| Some(seen.came.get(port)?.saturating_duration_since(*at));
        let mut list: Vec<Duration> = moments.iter().filter_map(one).collect();
        list.sort_unstable();
        list
    };
    let from_event = since(&events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Times {
        pods: answers.len(),
        rate: f64::from(rate * seconds) / made.as_secs_f64(),
        from_event,
        from_answer: since(&answers),
        complete,
    })
}

/// The life of a pod, from creation to deletion; returns when the API server had it.
async fn live(client: Client, pod: Pod) -> Result<(String, Instant)> {
    let api = load::of_pods(&client, &pod);
    api.create(&PostParams::default(), &pod.object()?).await.with_context(|| format!("pod {}", pod.name))?;
    let made = Instant::now();
    tokio::time::sleep(LIFE).await;
    let gone = api.delete(&pod.name, &DeleteParams::default().grace_period(0)).await;
    gone.with_context(|| format!("deletion of pod {}", pod.name))?;
    Ok((pod.port(), made))
}

/// Notes when our own watch tells of each pod first.
fn follow(client: Client, moments: Moments) -> JoinHandle<()> {
    tokio::spawn(async move {
        let query = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
        let mut events = pin!(watcher(Api::<PodObject>::all(client), query));
        // An error is followed by a new list, which reports late what was missed meanwhile and makes its time shorter, so only watch
        // events count.
        loop {
            match events.try_next().await {
                Ok(Some(Event::Apply(pod))) => {
                    let port = api::ovn_name::pod_port(&pod.namespace().unwrap_or_default(), &pod.name_any());
                    let mut moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
                    moments.entry(port).or_insert_with(Instant::now);
                }
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => return,
            }
        }
    })
}

//! Task that sets up and reconciles the gateway, and reports problems as conditions and warnings of the node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::attach::Attach;
use crate::config::Config;
use crate::gateway::api_server::{PROBES, answers, until_answers};
use crate::gateway::uplink::role::Role;
use crate::gateway::uplink::trial::Trial;
use crate::gateway::{self, Context, Status};
use crate::kube::announce::{Announcement, Outlet};
use crate::kube::cluster_network;
use crate::node::Node;

/// Name of the node condition.
const GATEWAY: &str = "gateway";
/// Name of the warning about a second uplink that was given back.
const SECOND: &str = "second-uplink";

/// Retry delays in seconds; the last one repeats.
const WAITS: [u64; 4] = [1, 2, 5, 10];

/// Longest delay before a failed uplink migration is retried.
const LONGEST: Duration = Duration::from_secs(3600);

/// Creates the context of the gateway.
pub(crate) fn context(config: &Arc<Config>, node: &Node) -> Context {
    let datapath = &node.datapath;
    Context {
        config: Arc::clone(config),
        netlink: node.netlink.clone(),
        ovs: node.ovs.clone(),
        programs: datapath.programs.clone(),
        interposed: datapath.attach == Attach::Interposed,
        host_ports: node.pods.host_ports(),
        metrics: node.metrics.clone(),
        flow_cache: node.flow_cache.clone(),
        service_names: node.service_names.clone(),
        datapath_type: datapath.ovs_type(),
    }
}

/// Sets up and reconciles the gateway; errors are reported and retried. Never returns.
pub(crate) async fn keep(
    node: Node,
    mut context: Context,
    client: kube::Client,
    outlet: Outlet<Announcement>,
) {
    let mut waits = WAITS.into_iter().chain(std::iter::repeat(WAITS[3]));
    let mut given_back = 0;
    loop {
        let (reason, wait) = match attempt(&node, context.clone(), client.clone(), outlet.clone()).await {
            Ok(Ended::GivenBack) => {
                let wait = before_next(context.config.api_patience(), given_back);
                given_back += 1;
                node.health.not_met(GATEWAY, give_back(&node, &context, wait).await);
                tokio::time::sleep(wait).await;
                until_answers(&client).await;
                continue;
            }
            Ok(Ended::SecondGivenBack) => {
                context = without_second(&context);
                node.metrics.gateway_given_back();
                node.health.warning(SECOND, Some(given_back_second(&context)));
                continue;
            }
            Ok(Ended::Parts) => ("ended".to_owned(), waits.next()),
            Err(error) => (format!("{error:#}"), waits.next()),
        };
        node.health.not_met(GATEWAY, reason);
        tokio::time::sleep(Duration::from_secs(wait.unwrap_or(WAITS[3]))).await;
    }
}

/// How an attempt ended, if not with an error.
enum Ended {
    /// One of the gateway's tasks ended.
    Parts,
    /// The API server could not be reached through the bridge, so the migration must be undone.
    GivenBack,
    /// The API server could not be reached after the migration of the second uplink, which must be undone.
    SecondGivenBack,
}

async fn attempt(
    node: &Node,
    context: Context,
    client: kube::Client,
    outlet: Outlet<Announcement>,
) -> anyhow::Result<Ended> {
    node.health.not_met(GATEWAY, "being set up");
    let config = Arc::clone(&context.config);
    if Trial::would_begin(&config.state_dir, Role::Gateway)? && answers(&client).await {
        Trial::begin(&config.state_dir, Role::Gateway)?;
    }
    let gateway = gateway::setup(context).await?;
    let trial = Trial::under_way(&config.state_dir, Role::Gateway).filter(|_| !gateway.is_adopted());
    let (sender, receiver) = watch::channel(Status::default());
    tokio::select! {
        done = gateway::run(gateway, client.clone(), outlet, sender) => done.map(|()| Ended::Parts),
        () = report(node, receiver) => Ok(Ended::Parts),
        failed = failed(trial, Role::Gateway, &config, &client) => failed.map(|()| Ended::GivenBack),
        failed = second_failed(&config, &client) => failed.map(|()| Ended::SecondGivenBack),
    }
}

/// Returns `Ok` when the trial has failed. Never returns without a trial or after a successful one.
async fn failed(
    trial: Option<Trial>,
    role: Role,
    config: &Config,
    client: &kube::Client,
) -> anyhow::Result<()> {
    if let Some(trial) = trial
        && !judged(&trial, role, config, client).await?
    {
        return Ok(());
    }
    std::future::pending().await
}

/// Waits for the end of a trial: whether the API server has answered in it.
async fn judged(trial: &Trial, role: Role, config: &Config, client: &kube::Client) -> anyhow::Result<bool> {
    let left = trial.left(config.api_patience())?;
    let answered = tokio::time::timeout(left, until_answers(client)).await.is_ok();
    if answered {
        tracing::info!("the API server responds through the {}", role.bridge());
        Trial::end(&config.state_dir, role)?;
    }
    Ok(answered)
}

/// Returns `Ok` when the trial of a second uplink has failed, which may begin at any time. Never returns otherwise.
async fn second_failed(config: &Config, client: &kube::Client) -> anyhow::Result<()> {
    loop {
        // Until the migration is done, answers still come by the interface itself.
        if let Some(trial) = Trial::under_way(&config.state_dir, Role::Second)
            && !Trial::would_begin(&config.state_dir, Role::Second)?
            && !judged(&trial, Role::Second, config, client).await?
        {
            return Ok(());
        }
        tokio::time::sleep(PROBES).await;
    }
}

/// The context of an agent that was started without a second uplink: the next attempt gives it back, and goes on without it.
fn without_second(context: &Context) -> Context {
    let config = Config { exgw_interface: None, ..(*context.config).clone() };
    Context { config: Arc::new(config), ..context.clone() }
}

/// The message about a second uplink that is given back.
fn given_back_second(context: &Context) -> String {
    let patience = context.config.api_patience();
    format!(
        "second uplink: the API server answered before its bridge took its place, and not for {patience:?} since; it is given back, and \
         tried again when the agent starts"
    )
}

/// Undoes the uplink migration; returns the message to report.
async fn give_back(node: &Node, context: &Context, wait: Duration) -> String {
    let patience = context.config.api_patience();
    node.metrics.gateway_given_back();
    let why = format!(
        "the API server answered before the bridge took the uplink's place, and not for {patience:?} since; it is tried again \
         in {wait:?}, once the API server answers"
    );
    tracing::error!("{why}; undoing the uplink migration");
    let mut done = gateway::cleanup(context.clone()).await;
    for wait in WAITS {
        let Err(error) = done else { break };
        tracing::error!("{error:#}; retrying in {wait} s");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        done = gateway::cleanup(context.clone()).await;
    }
    match done.and_then(|()| Trial::end(&context.config.state_dir, Role::Gateway)) {
        Ok(()) => format!("{why}; uplink restored"),
        Err(error) => format!("{why}; {error:#}"),
    }
}

/// Delay before the next migration: five times `patience` (five minutes by default), doubled after each failure.
fn before_next(patience: Duration, given_back: u32) -> Duration {
    (patience * 5 * 2_u32.pow(given_back.min(4))).min(LONGEST)
}

async fn report(node: &Node, mut status: watch::Receiver<Status>) {
    loop {
        let now = status.borrow_and_update().clone();
        match missing(&now) {
            None => node.health.met(GATEWAY),
            Some(reason) => node.health.not_met(GATEWAY, reason),
        }
        node.health.warning(GATEWAY, (!now.warnings.is_empty()).then(|| now.warnings.join("; ")));
        node.peers.set(now.peers);
        match now.network {
            Ok(differences) => {
                let flags: Vec<_> = differences.iter().map(|difference| difference.flag).collect();
                node.metrics.network_differs(&cluster_network::FLAGS, &flags);
                let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
                node.health
                    .warning(cluster_network::CONDITION, (!texts.is_empty()).then(|| texts.join("; ")));
            }
            Err(error) => node.health.warning(cluster_network::CONDITION, Some(error)),
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

fn missing(status: &Status) -> Option<String> {
    if !status.failures.is_empty() {
        return Some(status.failures.join("; "));
    }
    match (status.flows, status.management_port) {
        (true, true) => None,
        (false, _) => {
            Some("no OVN patch port on the gateway bridge yet; its flows are not written".to_owned())
        }
        (true, false) => {
            Some("the node has no pod subnet yet (annotation k8s.ovn.org/node-subnets)".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_network_given_back_the_next_attempt_is_not_soon_and_never_too_late() {
        let minute = Duration::from_secs(60);
        assert_eq!(before_next(minute, 0), minute * 5);
        assert_eq!(before_next(minute, 1), minute * 10);
        assert_eq!(before_next(minute, 40), LONGEST);
    }

    #[test]
    fn a_failure_is_told_before_what_is_merely_not_there_yet() {
        let failed = Status { failures: vec!["x: no".to_owned()], ..Status::default() };
        assert_eq!(missing(&failed).as_deref(), Some("x: no"));
        assert!(missing(&Status::default()).unwrap().contains("patch port"));
        let no_subnet = Status { flows: true, ..Status::default() };
        assert!(missing(&no_subnet).unwrap().contains("node-subnets"));
        assert_eq!(missing(&Status { management_port: true, ..no_subnet }), None);
    }
}

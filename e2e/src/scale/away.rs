//! The controller is killed, and pods, labels and policies change while it is down.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;

use super::figures::Figures;
use super::policy::{Labels, Policy};
use super::run::Run;
use super::world::{Pod, some_labels, some_pod};
use super::{load, node, told};
use crate::harness::Checks;

/// Pods made, deleted and given other labels; a hundredth of all, but some.
const LEAST: usize = 20;

pub(super) async fn run(run: &mut Run<'_>, checks: &mut Checks, figures: &mut Figures) -> Result<()> {
    let (controller, limit) = (run.controller, run.limit());
    controller.kill()?;
    change(run).await?;
    let begin = Instant::now();
    controller.restart()?;
    let settled = controller.settled(limit).await;
    figures.time("controller started again → ready, lease of the dead one included", begin.elapsed());
    checks.check("controller killed: the next one settles", told(settled));
    let watch = run.watch().await?;
    checks.check(
        "controller killed: NB holds what changed while it was away",
        run.is_right(&watch, limit).await,
    );
    checks.check("controller killed: its own comparison finds no difference", {
        controller.verified(limit).await.map_err(|error| format!("{error:#}"))
    });
    run.peak("largest memory of the controller that was started again", figures)?;
    run.done("changes while the controller was away");
    Ok(())
}

/// Changes the cluster and the book.
async fn change(run: &mut Run<'_>) -> Result<()> {
    let count = (run.world.pods.len() / 100).max(LEAST);
    let namespaces: Vec<String> = run.world.namespaces.keys().cloned().collect();
    let mut ports: Vec<String> = run.world.pods.keys().cloned().collect();
    // Backends of a service stay, as no process here would remove them from the slice.
    let backends: BTreeSet<&String> =
        run.world.services.iter().flat_map(|service| &service.backends).collect();
    ports.retain(|port| !backends.contains(port));
    run.random.shuffle(&mut ports);
    let (gone, others): (Vec<_>, Vec<_>) =
        ports.into_iter().take(2 * count).enumerate().partition(|(i, _)| i % 2 == 0);
    let gone: Vec<Pod> = gone.iter().filter_map(|(_, port)| run.world.pods.remove(port)).collect();
    load::delete_pods(&run.client, &gone).await?;
    let mut relabelled = Vec::new();
    for (_, port) in others {
        let labels = some_labels(&mut run.random);
        if let Some(pod) = run.world.pods.get_mut(&port) {
            pod.labels = labels;
            relabelled.push(pod.clone());
        }
    }
    load::relabel(&run.client, &relabelled).await?;
    let made: Vec<Pod> = (0..count)
        .map(|i| {
            let node = node::name(run.random.below(run.args.nodes));
            // Before the others, and behind them.
            let name = if i % 2 == 0 { format!("a{i:05}") } else { format!("z{i:05}") };
            some_pod(&mut run.random, &namespaces, &name, node)
        })
        .collect();
    load::pods(&run.client, &made).await?;
    made.into_iter().for_each(|pod| run.world.add_pod(pod));
    change_policies(run).await
}

/// In every tenth namespace one policy goes, one selects other pods, and one is new.
async fn change_policies(run: &mut Run<'_>) -> Result<()> {
    let namespaces: Vec<String> = run.world.namespaces.keys().step_by(10).cloned().collect();
    let mut new = Vec::new();
    for namespace in namespaces {
        if let Some(of_namespace) = run.world.policies.get_mut(&namespace) {
            if let Some((_, first)) = of_namespace.pop_first() {
                load::delete_policy(&run.client, &first).await?;
            }
            if let Some(mut last) = of_namespace.last_entry() {
                last.get_mut().selects = some_labels(&mut run.random);
                load::change_policy(&run.client, last.get()).await?;
            }
        }
        new.push(Policy::closing(&namespace, "while-away", Labels::new()));
    }
    load::policies(&run.client, &new).await?;
    new.into_iter().for_each(|policy| run.world.add_policy(policy));
    Ok(())
}

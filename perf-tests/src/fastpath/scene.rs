//! Everything that is up in a run: the clusters and the small networks that its parts need, and no others.

use anyhow::{Context, Result};
use testbed::cluster::config::Datapath;

use super::cell::Route;
use super::cluster::{Cluster, Sabotage};
use super::ways;
use super::worlds::{self, World};
use crate::names::Path;

/// How the clusters are had.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clusters<'a> {
    /// Begin of their names.
    pub(super) name: &'a str,
    /// True if the clusters run already.
    pub(super) there: bool,
    pub(super) sabotage: Option<Sabotage>,
}

/// What is up.
#[derive(Default)]
pub(super) struct Scene {
    fast: Option<Cluster>,
    ovs: Option<Cluster>,
    uncounted: Option<Cluster>,
    worlds: Vec<(Path, World)>,
    /// Through services, and from and to what is no pod.
    ways: Vec<(Path, Route)>,
}

impl Scene {
    /// Brings up what these paths need; `both` clusters also if no path does.
    pub(super) fn set(clusters: Clusters<'_>, paths: &[Path], both: bool) -> Result<Self> {
        let Clusters { name, there, sabotage } = clusters;
        let mut scene = Self::default();
        for path in paths {
            let world = match path {
                Path::Host => worlds::host()?,
                Path::Direct => worlds::direct()?,
                Path::Routed => worlds::routed()?,
                Path::Vxlan => worlds::vxlan()?,
                Path::Veth => worlds::veth()?,
                Path::DirectIn => worlds::direct_in()?,
                Path::DirectVia => worlds::direct_via()?,
                Path::RoutedSnat => worlds::routed_snat()?,
                Path::RoutedHost => worlds::routed_host()?,
                // In clusters.
                _ => continue,
            };
            scene.worlds.push((*path, world));
        }
        if !there && paths.contains(&Path::Uncounted) {
            scene.uncounted = Cluster::uncounted(&format!("{name}-uncounted"))?;
            if scene.uncounted.is_none() {
                super::say("the agent has no programs without counters; those rows are not measured");
            }
        }
        let cluster = |kind: &str, datapath| {
            let name = format!("{name}-{kind}");
            if there { Cluster::there(&name) } else { Cluster::up(&name, datapath) }
        };
        if both || paths.iter().any(|path| path.is_fast()) {
            scene.fast = Some(match sabotage {
                Some(sabotage) => Cluster::sabotaged(&format!("{name}-ebpf"), sabotage)?,
                None => cluster("ebpf", Datapath::Auto)?,
            });
        }
        if both || [Path::Ovs, Path::OvsSame].iter().any(|path| paths.contains(path)) {
            scene.ovs = Some(cluster("ovs", Datapath::Ovs)?);
        }
        if paths.iter().any(|path| path.is_way()) {
            scene.ways = ways::routes(scene.fast()?)?;
        }
        Ok(scene)
    }

    /// The cluster with eBPF.
    pub(super) fn fast(&self) -> Result<&Cluster> {
        self.fast.as_ref().context("no cluster with eBPF is up")
    }

    /// The cluster without.
    pub(super) fn ovs(&self) -> Result<&Cluster> {
        self.ovs.as_ref().context("no cluster without eBPF is up")
    }

    /// Where the traffic of each path goes.
    pub(super) fn routes(&self) -> Result<Vec<(Path, Route)>> {
        let mut routes = Vec::new();
        for (cluster, across, same) in [
            (&self.fast, Path::Fast, Some(Path::FastSame)),
            (&self.ovs, Path::Ovs, Some(Path::OvsSame)),
            (&self.uncounted, Path::Uncounted, None),
        ] {
            let Some(cluster) = cluster else { continue };
            routes.push((across, cluster.across()?));
            if let Some(same) = same {
                routes.push((same, cluster.same_node()?));
            }
        }
        routes.extend(self.ways.iter().cloned());
        routes.extend(self.worlds.iter().map(|(path, world)| (*path, world.route())));
        Ok(routes)
    }

    /// Takes it down; the error says what is left.
    pub(super) fn end(self) -> Result<()> {
        [self.fast, self.ovs, self.uncounted].into_iter().flatten().try_for_each(Cluster::down)
    }
}

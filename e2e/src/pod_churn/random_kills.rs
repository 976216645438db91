//! Kills processes at random moments and starts them again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::random::Random;
use testbed::cluster::Bed;
use testbed::cluster::config::Config;
use testbed::host::HostHandle;
use testbed::nodes;
use testbed::ui::say;

/// Which processes are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Victims {
    /// Controller, node agents, and the stand-in for the kubelet.
    Ours,
    /// These, and those of OVS and OVN.
    All,
}

/// The longest pause before the next kill.
const PAUSE: Duration = Duration::from_millis(1500);
/// The longest time that a process stays down.
const AWAY: Duration = Duration::from_millis(800);

/// A thread that kills.
pub(super) struct RandomKills {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl RandomKills {
    /// Begins to kill, each process at least once, in random order.
    pub(super) fn begin(bed: &Bed, victims: Victims, random: &mut Random) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let config = bed.config().clone();
        let mut random = random.fork();
        let flag = Arc::clone(&stop);
        let work = move || {
            let begin = Instant::now();
            let mut list = processes(&config, victims);
            random.shuffle(&mut list);
            for (host, process) in list {
                thread::sleep(random.duration(PAUSE));
                // When the cluster is faster than we are, the rest is killed at once, while it settles.
                let hurry = flag.load(Ordering::Relaxed);
                let handle = HostHandle::new(&config, &host);
                say(format_args!("  {:>6.2} s  kill {process} on {host}", begin.elapsed().as_secs_f64()));
                handle.kill(&process).with_context(|| format!("{process} on {host}"))?;
                thread::sleep(if hurry { Duration::ZERO } else { random.duration(AWAY) });
                handle.restart(&process).with_context(|| format!("{process} on {host}"))?;
            }
            Ok(())
        };
        let thread = thread::Builder::new()
            .name("random kills".into())
            .spawn(work)
            .context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    /// Waits until every process was killed and runs again.
    pub(super) fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|panic| anyhow!("the killing thread panicked: {panic:?}"))?
    }
}

fn processes(config: &Config, victims: Victims) -> Vec<(String, String)> {
    let mut list = Vec::new();
    let mut add =
        |host: &str, names: &[&str]| list.extend(names.iter().map(|n| (host.to_owned(), (*n).to_owned())));
    add("central", &["controller"]);
    if victims == Victims::All {
        add("central", &["ovn-northd", "ovsdb-nb", "ovsdb-sb"]);
    }
    for node in config.node_names() {
        add(&node, &["node-agent"]);
        add(&node, nodes::runtime(config).processes());
        if victims == Victims::All {
            add(&node, &["ovn-controller", "ovs-vswitchd", "ovsdb-server"]);
        }
    }
    list
}

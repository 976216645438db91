//! A cluster: brought up in order, taken down completely.

pub(crate) mod installed;
pub mod leftovers;
mod logs;
mod node;
pub mod node_state;
mod reboot;
mod shape;
mod underlay;
mod verify;

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::api::core::v1::NodeCondition;

use crate::bed::{central, kubernetes, pki};
use crate::config::{Config, Install, Runtime};
use crate::exec;
use crate::nodes::real;
use crate::ui::{Progress, say};

pub use crate::bed::{Actor, Agent, Bed, ENVIRONMENT, access, admission, controller_arguments, objects};
pub use crate::config;
pub use node::{agent_arguments, start_agent_in, start_agent_with, start_switch};
pub use shape::Shape;

impl Bed {
    /// Brings a cluster up. If that fails, what was started is taken down again.
    pub fn up(config: Config) -> Result<Self> {
        let progress = Progress::new();
        let lock = Lock::take(&config)?;
        if config.dir.join("bed.json").exists() {
            bail!(
                "cluster {0} exists ({1}); end it with `testbed down --name {0}`",
                config.name,
                config.dir.display()
            );
        }
        for dir in ["hosts", "log", "pki", "conf"] {
            fs::create_dir_all(config.dir.join(dir))
                .with_context(|| format!("cannot create {}", config.dir.display()))?;
        }
        config.save()?;
        let bed = Self { config };
        let outcome = bed.start(&progress);
        drop(lock);
        match outcome {
            Ok(()) => Ok(bed),
            Err(error) => {
                let kept = bed.keep_logs();
                let ended = bed.down();
                Err(error.context(match (kept, ended) {
                    (Ok(logs), Ok(())) => {
                        format!("the cluster did not come up and was taken down; logs are in {logs}")
                    }
                    (_, Err(down)) => {
                        format!("the cluster did not come up, and could not be taken down: {down:#}")
                    }
                    (Err(_), Ok(())) => "the cluster did not come up and was taken down".to_owned(),
                }))
            }
        }
    }

    /// What there is of a cluster, to take it down: also one whose `up` was killed before it could describe it.
    pub fn rest(name: &str) -> Result<Option<Self>> {
        let config = match Config::load(name) {
            Ok(config) => config,
            // Any number of hosts will do, as what was started is found by its mark too.
            Err(_) => Config::new(name, 8)?,
        };
        let there = config.dir.exists()
            || Lock::path(&config).exists()
            || !leftovers::processes(&config.dir)?.is_empty()
            || !real::leftovers(&config).is_empty();
        Ok(there.then_some(Self { config }))
    }

    fn start(&self, progress: &Progress) -> Result<()> {
        let config = &self.config;
        installed::check(config)?;
        self.runtime().prepare_machine(config)?;
        for host in config.hosts() {
            self.host(&host.name).create()?;
        }
        pki::write(config)?;
        for host in config.hosts() {
            self.host(&host.name).wait_ready()?;
        }
        underlay::connect(self)?;
        progress.done("hosts and underlay");
        let in_pods = config.install == Install::Chart;
        // Kubernetes, OVN's databases and the nodes' switches do not need each other to start.
        thread::scope(|scope| {
            let mut parts = vec![part(scope, progress, "Kubernetes API".into(), || kubernetes::start(self))?];
            if !in_pods {
                parts.push(part(scope, progress, "OVN databases".into(), || central::start_ovn(self))?);
            }
            for node in config.node_names() {
                let name = node.clone();
                if !in_pods {
                    parts.push(part(scope, progress, format!("{node}: OVS and OVN"), move || {
                        node::start_ovs(self, &name)
                    })?);
                }
                if config.runtime == Runtime::Containerd {
                    parts.push(part(scope, progress, format!("{node}: containerd and images"), move || {
                        self.runtime().start_runtime(self, &node)?;
                        installed::import(self, &node)
                    })?);
                }
            }
            parts.into_iter().try_for_each(|p| p.join().unwrap_or_else(|_| bail!("a thread panicked")))
        })?;
        central::prepare_cluster(self)?;
        progress.done("nodes, users and their rights");
        self.runtime().start_scheduler(self)?;
        if in_pods {
            node_state::save_all(self)?;
            installed::install(self)?;
        } else if config.plugin {
            central::start_controller(self)?;
            for node in config.node_names() {
                node::start_agent(self, &node)?;
            }
        }
        for node in config.node_names() {
            self.runtime().start_node(self, &node)?;
        }
        self.runtime().start_addons(self)?;
        if config.plugin {
            self.wait_nodes_ready()?;
            progress.done("nodes are Ready");
            if config.runtime == Runtime::Containerd {
                self.runtime().wait_addons(self)?;
                progress.done("cluster DNS answers");
            }
        }
        Ok(())
    }

    fn wait_nodes_ready(&self) -> Result<()> {
        self.config.node_names().iter().try_for_each(|node| self.wait_node_ready(node))
    }

    /// Waits until a node is Ready. The error says what has ended, or what the node itself says.
    pub fn wait_node_ready(&self, node: &str) -> Result<()> {
        // Pods wait longer for each other than programs that are started in order. Where the processor is emulated, and shared with other tests,
        // loading the programs alone has taken 50 s, and all of it 150: more than other things are slower.
        let limit = match self.config.install {
            Install::Chart => 180,
            Install::Programs if exec::patience() > 1 => 120,
            Install::Programs => 60,
        };
        exec::retry(Duration::from_secs(limit), &format!("node {node} becomes Ready"), || {
            self.host("central").check_running("controller")?;
            for process in ["node-agent"].iter().chain(self.runtime().processes()) {
                self.host(node).check_running(process)?;
            }
            let log = self.config.log(node, "node-agent");
            let Some(ready) = self.node_condition(node, "Ready")? else {
                bail!("there is no condition Ready; see {}", log.display());
            };
            let NodeCondition { status, message, .. } = ready;
            ensure!(status == "True", "Ready is {status:?}, {message:?}; see {}", log.display());
            Ok(())
        })
        .map_err(|error| anyhow!("{error:#}; {}", self.why_not_ready(node)))
    }

    /// What the logs of a node that is not Ready end with: where tests run for others, only their errors are kept.
    fn why_not_ready(&self, node: &str) -> String {
        let said = [("central", "controller"), (node, "node-agent")].map(|(host, process)| {
            let log = fs::read_to_string(self.config.log(host, process)).unwrap_or_default();
            format!("{process} says: {}", logs::end(&log))
        });
        said.join("; ")
    }

    /// Ends everything and removes every file. Works on what is left of a cluster that never came up completely.
    pub fn down(self) -> Result<()> {
        let config = &self.config;
        let lock = Lock::take(config)?;
        for host in config.hosts().iter().rev() {
            for process in self.host(&host.name).recorded() {
                process.kill()?;
            }
        }
        // What was started and not yet written down carries the mark.
        leftovers::end_marked(&config.dir)?;
        exec::retry(Duration::from_secs(20), "the cluster's processes end", || {
            leftovers::end_marked(&config.dir)?;
            let left = leftovers::processes(&config.dir)?;
            if left.is_empty() { Ok(()) } else { Err(anyhow!("still there: {}", left.join(", "))) }
        })?;
        real::clean_machine(config)?;
        exec::retry(Duration::from_secs(5), "the cluster's files go", || {
            match fs::remove_dir_all(&config.dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {}", config.dir.display()))
                }
                _ => Ok(()),
            }
        })?;
        lock.remove();
        let left = leftovers::find(config)?;
        if !left.is_empty() {
            bail!("left behind: {}", left.join("; "));
        }
        Ok(())
    }

    /// Takes the cluster down at the end of a run; after a bad one its logs are kept. A good one fails here if the
    /// northbound database is not as the controller wants it.
    pub fn finish(self, good: bool) -> Result<()> {
        let verified = if good { self.verified_at_end() } else { Ok(()) };
        if !good || verified.is_err() {
            say(format_args!("logs are kept in {}", self.keep_logs()?));
        }
        self.down()?;
        verified
    }

    /// Copies the logs to where they outlive the cluster; returns that place.
    pub fn keep_logs(&self) -> Result<String> {
        let to = self.config.cache.join("logs").join(&self.config.name);
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(self.config.dir.join("log"))?.flatten() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(to.display().to_string())
    }
}

/// Runs one part of the start in a thread of its own.
fn part<'scope>(
    scope: &'scope Scope<'scope, '_>,
    progress: &'scope Progress,
    name: String,
    work: impl FnOnce() -> Result<()> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<()>>> {
    let begin = move || {
        work().with_context(|| name.clone())?;
        progress.done(&name);
        Ok(())
    };
    thread::Builder::new().spawn_scoped(scope, begin).context("cannot start a thread")
}

/// Two commands at once on one cluster would get into each other's way.
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    fn take(config: &Config) -> Result<Self> {
        let base = config.dir.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(base).with_context(|| format!("cannot create {}", base.display()))?;
        let path = Self::path(config);
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        // A program that a killed command was about to start may hold it for a moment longer.
        exec::retry(Duration::from_secs(3), "the lock of the cluster", || match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => bail!("another command works on cluster {}", config.name),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        })?;
        Ok(Self { _file: file, path })
    }
    /// Beside the cluster's directory, which is removed.
    fn path(config: &Config) -> PathBuf {
        config.dir.with_file_name(format!(".{}.lock", config.name))
    }

    /// Gives the lock up with its file.
    fn remove(self) {
        // The cluster is gone; an empty file more or less is no failure.
        let _ = fs::remove_file(&self.path);
    }
}

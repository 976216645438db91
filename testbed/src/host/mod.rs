//! One host of a cluster: its namespaces, and what runs in them.

pub mod identity;
pub mod init;
pub mod machine;
mod mounts;
pub mod relay;
pub mod supervisor;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::config::{Config, Runtime, node_index};
use crate::exec;
use identity::Identity;
use supervisor::{Process, Reply, Request, Spec};

/// Every process of a cluster has this variable: the cluster's directory.
pub const MARK: &str = "SLIPSTREAM_BED";

/// A handle to one host of a cluster.
#[derive(Clone, Debug)]
pub struct HostHandle<'a> {
    config: &'a Config,
    name: String,
}

impl<'a> HostHandle<'a> {
    /// The host of that name, whether it runs or not.
    #[must_use]
    pub fn new(config: &'a Config, name: &str) -> Self {
        Self { config, name: name.to_owned() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the namespaces. Returns before the host's first process is ready.
    pub fn create(&self) -> Result<()> {
        let dir = self.config.host_dir(&self.name);
        fs::create_dir_all(&dir)?;
        let log = File::options().create(true).append(true).open(self.config.log(&self.name, "init"))?;
        let mut command = exec::command("unshare");
        command
            .args(["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"])
            .arg(self.config.program("testbed"))
            .arg("host-init")
            .arg(&self.name)
            .arg(&self.config.dir)
            .args(self.is_machine().then_some("--disk"))
            .env(MARK, &self.config.dir)
            .env("PATH", self.config.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // An interrupt from the terminal is for the test bed, which then ends the hosts in order.
            .process_group(0);
        let child = command.spawn().context("cannot start unshare")?;
        let identity = Identity::of(i32::try_from(child.id())?)?;
        fs::write(dir.join("unshare.json"), serde_json::to_vec(&identity)?)?;
        Ok(())
    }

    /// Whether it has a disk, and what else a kubelet wants.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.config.runtime == Runtime::Containerd && node_index(&self.name).is_some()
    }

    /// Waits until the host's first process takes requests.
    pub fn wait_ready(&self) -> Result<()> {
        let log = self.config.log(&self.name, "init");
        exec::retry(Duration::from_secs(20), "host comes up", || self.processes().map(drop)).with_context(
            || format!("host {}: {}", self.name, fs::read_to_string(log).unwrap_or_default().trim()),
        )
    }

    /// The host's first process, as the machine sees it.
    pub fn init(&self) -> Result<Identity> {
        read_identity(&self.config.host_dir(&self.name).join("init.json"))
            .with_context(|| format!("host {} does not run", self.name))
    }

    /// Everything that was started for this host, as far as it was written down.
    #[must_use]
    pub fn recorded(&self) -> Vec<Identity> {
        let dir = self.config.host_dir(&self.name);
        ["init.json", "unshare.json"].iter().filter_map(|f| read_identity(&dir.join(f)).ok()).collect()
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        supervisor::ask(&self.config.host_dir(&self.name).join("ctl.sock"), request)
            .with_context(|| format!("host {}", self.name))
    }

    /// Starts a process that the host keeps track of.
    pub fn start(&self, name: &str, argv: &[&str], env: &[(&str, &str)]) -> Result<()> {
        self.ask(&Request::Start(self.spec(name, argv, env))).map(drop)
    }

    /// Starts a process that the host starts again when it ends by itself.
    pub fn start_service(&self, name: &str, argv: &[&str], env: &[(&str, &str)]) -> Result<()> {
        self.ask(&Request::Start(Spec { service: true, ..self.spec(name, argv, env) })).map(drop)
    }

    fn spec(&self, name: &str, argv: &[&str], env: &[(&str, &str)]) -> Spec {
        Spec {
            name: name.to_owned(),
            argv: argv.iter().map(|&a| a.to_owned()).collect(),
            env: env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
            log: self.config.log(&self.name, name),
            service: false,
        }
    }

    /// Kills a process with SIGKILL and waits for its end.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.ask(&Request::Kill(name.to_owned())).map(drop)
    }

    /// Asks a process to end, and kills it if it does not within `limit`.
    pub fn stop(&self, name: &str, limit: Duration) -> Result<()> {
        self.ask(&Request::Stop(name.to_owned(), limit)).map(drop)
    }

    /// Kills a process if it runs, and starts it as before.
    pub fn restart(&self, name: &str) -> Result<()> {
        self.ask(&Request::Restart(name.to_owned())).map(drop)
    }

    /// What was started on this host, and how it is.
    pub fn processes(&self) -> Result<Vec<Process>> {
        match self.ask(&Request::List)? {
            Reply::Processes(list) => Ok(list),
            other => bail!("host {} answered {other:?}", self.name),
        }
    }

    /// Fails permanently if a process that was started has ended.
    pub fn check_running(&self, name: &str) -> Result<()> {
        let ended = self.processes()?.into_iter().find(|p| p.name == name && p.pid.is_none());
        let Some(process) = ended else { return Ok(()) };
        let log = fs::read_to_string(self.config.log(&self.name, name)).unwrap_or_default();
        let last = log.lines().next_back().unwrap_or_default();
        let how = process.end.unwrap_or_default();
        Err(exec::Fatal(format!("{name} on {} ended ({how}): {last}", self.name)).into())
    }

    /// A command in all namespaces of the host.
    pub fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let mut command = self.enter(&["--mount", "--net", "--pid", "--uts", "--ipc"])?;
        command.arg(program.as_ref());
        Ok(command)
    }

    /// A command in the host's network, with the machine's files.
    pub fn network_command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let mut command = self.enter(&["--net"])?;
        command.arg(program.as_ref());
        Ok(command)
    }

    /// A command in a named network namespace of the host (a pod), with the machine's files.
    pub fn pod_command(&self, netns: &str, program: impl AsRef<Path>) -> Result<Command> {
        let path = self.path(netns)?;
        let mut command = exec::command("nsenter");
        command
            .arg(format!("--net={}", path.display()))
            .env(MARK, &self.config.dir)
            .env("PATH", self.config.path());
        command.arg("--").arg(program.as_ref());
        Ok(command)
    }

    /// A file of the host, as the machine sees it.
    pub fn path(&self, inside: impl AsRef<Path>) -> Result<PathBuf> {
        let inside = inside.as_ref();
        let root = PathBuf::from(format!("/proc/{}/root", self.init()?.pid));
        Ok(root.join(inside.strip_prefix("/").unwrap_or(inside)))
    }

    fn enter(&self, namespaces: &[&str]) -> Result<Command> {
        let init = self.init()?;
        if !init.is_alive() {
            bail!("host {} has ended", self.name);
        }
        let mut command = exec::command("nsenter");
        command.args(["--target", &init.pid.to_string()]).args(namespaces).arg("--");
        command.env(MARK, &self.config.dir).env("PATH", self.config.path());
        Ok(command)
    }
}

fn read_identity(path: &Path) -> Result<Identity> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

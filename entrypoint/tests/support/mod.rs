//! What the tests share: a network, servers in it, and containers.
#![allow(dead_code, reason = "each test uses some")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::cache;
use test_support::wait::wait_for;

/// Servers of OVN's databases.
pub(crate) const SERVERS: &str = "10.99.0.1,10.99.0.2,10.99.0.3";

/// A network without anything else, which ends with the test.
pub(crate) struct Network {
    holder: Child,
}

impl Network {
    pub(crate) fn new(addresses: &str) -> Self {
        let add = addresses.split(',').map(|ip| format!("ip addr add {ip}/32 dev lo; ")).collect::<String>();
        let script = format!("ip link set lo up; {add} echo ready; exec sleep 600");
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let mut said = std::io::BufReader::new(holder.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { holder }
    }

    /// A command in it, with OVN's programs on `PATH`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--", program]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", cache::file("ovs/bin").display()));
        command
    }
}

impl Network {
    /// The entry point as the first process of a container in it; arguments are still to come.
    pub(crate) fn container(&self) -> Command {
        let mut command = self.command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--", env!("CARGO_BIN_EXE_slipstream-entrypoint")]);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// One server.
pub(crate) struct Server<'a> {
    network: &'a Network,
    pub(crate) directory: PathBuf,
    ip: String,
    /// Directory of its certificate.
    tls: Option<PathBuf>,
    /// Directory of the schemas of its image.
    pub(crate) schemas: PathBuf,
    pub(crate) child: Option<Child>,
}

impl<'a> Server<'a> {
    pub(crate) fn start(network: &'a Network, base: &Path, servers: &str, index: usize) -> Self {
        Self::start_in(network, base, servers, index, None)
    }

    /// One that shows a certificate.
    pub(crate) fn start_with_tls(
        network: &'a Network,
        base: &Path,
        servers: &str,
        index: usize,
        tls: &Path,
    ) -> Self {
        Self::start_in(network, base, servers, index, Some(tls.to_owned()))
    }

    /// One that does not run yet.
    pub(crate) fn new(network: &'a Network, base: &Path, servers: &str, index: usize) -> Self {
        let ip = servers.split(',').nth(index).unwrap().to_owned();
        Self {
            network,
            directory: base.join(&ip),
            ip,
            tls: None,
            schemas: cache::file("ovs/share"),
            child: None,
        }
    }

    fn start_in(
        network: &'a Network,
        base: &Path,
        servers: &str,
        index: usize,
        tls: Option<PathBuf>,
    ) -> Self {
        let mut server = Self::new(network, base, servers, index);
        server.tls = tls;
        server.run(servers);
        server
    }

    fn places(&self) -> [String; 4] {
        let dir = |name: &str| self.directory.join(name).display().to_string();
        let tls = self.tls.as_ref().map_or_else(|| dir("tls"), |tls| tls.display().to_string());
        [
            format!("--data-dir={}", dir("data")),
            format!("--run-dir={}", dir("run")),
            format!("--schema-dir={}", self.schemas.display()),
            format!("--tls-dir={tls}"),
        ]
    }

    pub(crate) fn run(&mut self, servers: &str) {
        std::fs::create_dir_all(&self.directory).unwrap();
        let log =
            std::fs::File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let mut command = self.network.command(env!("CARGO_BIN_EXE_slipstream-entrypoint"));
        command.arg("ovn-central").args(self.places());
        command.env("SLIPSTREAM_TLS", self.tls.is_some().to_string());
        command.env("SLIPSTREAM_OVN_CENTRAL", servers).env("SLIPSTREAM_HOST_IP", &self.ip);
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    pub(crate) fn is_ready(&self) -> bool {
        let mut ready = self.network.command(env!("CARGO_BIN_EXE_slipstream-entrypoint"));
        let out = ready.args(["ready", "ovn-central"]).args(self.places()).output().unwrap();
        out.status.success()
    }

    pub(crate) fn wait_ready(&self) {
        wait_for(Duration::from_secs(60), "the server is ready", || self.is_ready().then_some(()));
    }

    pub(crate) fn nbctl(&self, args: &[&str]) -> Option<String> {
        self.ctl("ovn-nbctl", "nb", args)
    }

    pub(crate) fn sbctl(&self, args: &[&str]) -> Option<String> {
        self.ctl("ovn-sbctl", "sb", args)
    }

    fn ctl(&self, tool: &str, database: &str, args: &[&str]) -> Option<String> {
        let mut ctl = self.network.command(tool);
        let socket = self.directory.join(format!("run/ovn{database}_db.sock"));
        ctl.args(["--timeout=5", "--no-leader-only", &format!("--db=unix:{}", socket.display())]);
        let out = ctl.args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Version of the northbound database's schema.
    pub(crate) fn schema_version(&self) -> String {
        let mut ask = self.network.command("ovsdb-client");
        let socket = format!("unix:{}", self.directory.join("run/ovnnb_db.sock").display());
        let out =
            ask.args(["--timeout=5", "get-schema-version", &socket, "OVN_Northbound"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// Whether it leads the cluster of a database.
    pub(crate) fn leads(&self, name: &str, short: &str) -> bool {
        let control = self.directory.join(format!("run/ovn{short}_db.ctl")).display().to_string();
        let mut ask = self.network.command("ovs-appctl");
        let out = ask.args(["-t", &control, "cluster/status", name]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).lines().any(|line| line == "Role: leader")
    }

    /// Kills all its programs, as the loss of a machine does.
    pub(crate) fn kill(mut self) {
        let Some(mut child) = self.child.take() else { return };
        let id = child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        child.kill().unwrap();
        for pid in children.split_whitespace() {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
        child.wait().unwrap();
    }

    /// Ends it as a kubelet does; its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
        child.wait().unwrap().code()
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A role that is the first process of a container.
pub(crate) struct Container {
    /// `unshare`, which waits for it.
    outer: Child,
    log: PathBuf,
}

impl Container {
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let file = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let outer = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Self { outer, log: log.to_owned() }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Exit code of the container, once it has ended by itself.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.outer.wait().unwrap().code()
    }

    /// The process itself, as seen from here.
    fn first(&self) -> Option<Pid> {
        let id = self.outer.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
    }

    /// Sends a signal to its first process.
    pub(crate) fn signal(&self, signal: Signal) {
        let first = wait_for(Duration::from_secs(5), "the container's first process", || self.first());
        kill(first, signal).unwrap();
    }

    /// Ends it as a kubelet does; its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.outer.wait().unwrap().code()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With it goes what it waits for.
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

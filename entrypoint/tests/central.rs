//! Role `ovn-central` with the programs of OVN: three servers in a network of their own form a cluster, one is ended and comes back.
//! Needs root and `cargo xtask setup`.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::cache;
use test_support::wait::{wait_for, wait_until};

const SERVERS: &str = "10.99.0.1,10.99.0.2,10.99.0.3";

/// A network without anything else, which ends with the test.
struct Network {
    holder: Child,
}

impl Network {
    fn new(addresses: &str) -> Self {
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
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--", program]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", cache::file("ovs/bin").display()));
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
struct Server<'a> {
    network: &'a Network,
    directory: PathBuf,
    ip: String,
    child: Option<Child>,
}

impl<'a> Server<'a> {
    fn start(network: &'a Network, base: &Path, servers: &str, index: usize) -> Self {
        let ip = servers.split(',').nth(index).unwrap().to_owned();
        let mut server = Self { network, directory: base.join(&ip), ip, child: None };
        server.run(servers);
        server
    }

    fn places(&self) -> [String; 3] {
        let dir = |name: &str| self.directory.join(name).display().to_string();
        [
            format!("--data-dir={}", dir("data")),
            format!("--run-dir={}", dir("run")),
            format!("--schema-dir={}", cache::file("ovs/share").display()),
        ]
    }

    fn run(&mut self, servers: &str) {
        std::fs::create_dir_all(&self.directory).unwrap();
        let log =
            std::fs::File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let mut command = self.network.command(env!("CARGO_BIN_EXE_slipstream-entrypoint"));
        command.arg("ovn-central").args(self.places());
        command.env("SLIPSTREAM_OVN_CENTRAL", servers).env("SLIPSTREAM_HOST_IP", &self.ip);
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    fn is_ready(&self) -> bool {
        let mut ready = self.network.command(env!("CARGO_BIN_EXE_slipstream-entrypoint"));
        let out = ready.args(["ready", "ovn-central"]).args(self.places()).output().unwrap();
        out.status.success()
    }

    fn wait_ready(&self) {
        wait_for(Duration::from_secs(60), "the server is ready", || self.is_ready().then_some(()));
    }

    fn nbctl(&self, args: &[&str]) -> Option<String> {
        let mut nbctl = self.network.command("ovn-nbctl");
        let socket = self.directory.join("run/ovnnb_db.sock");
        nbctl.args(["--timeout=5", "--no-leader-only", &format!("--db=unix:{}", socket.display())]);
        let out = nbctl.args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Ends it as a kubelet does; its exit code.
    fn end(&mut self) -> Option<i32> {
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

#[test]
fn three_servers_form_a_cluster_that_outlives_one_of_them() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> =
        (0..3).map(|index| Server::start(&network, dir.path(), SERVERS, index)).collect();
    servers.iter().for_each(Server::wait_ready);
    // What one takes, another has; northd carries it to the southbound database.
    servers[2].nbctl(&["ls-add", "one"]).unwrap();
    let has = |server: &Server<'_>, switch: &str| {
        server.nbctl(&["ls-list"]).is_some_and(|list| list.contains(switch))
    };
    wait_until(Duration::from_secs(10), "the row is everywhere", || servers.iter().all(|s| has(s, "one")));

    assert_eq!(servers[0].end(), Some(0), "SIGTERM is no failure");
    wait_until(Duration::from_secs(30), "two of three go on", || {
        servers[1].nbctl(&["--may-exist", "ls-add", "two"]).is_some()
    });
    assert!(!servers[0].is_ready());

    servers[0].run(SERVERS);
    servers[0].wait_ready();
    wait_until(Duration::from_secs(10), "it has what it missed", || has(&servers[0], "two"));
}

#[test]
fn one_server_keeps_its_database_and_refuses_to_become_a_cluster_silently() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(&network, dir.path(), "10.99.0.1", 0);
    server.wait_ready();
    server.nbctl(&["ls-add", "one"]).unwrap();
    assert_eq!(server.end(), Some(0));
    server.run("10.99.0.1");
    server.wait_ready();
    assert!(server.nbctl(&["ls-list"]).unwrap().contains("one"));
    assert_eq!(server.end(), Some(0));

    server.run(SERVERS);
    let status = server.child.take().unwrap().wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let log = std::fs::read_to_string(server.directory.join("log")).unwrap();
    assert!(log.contains("is standalone, and SLIPSTREAM_OVN_CENTRAL has several addresses"), "{log}");
}

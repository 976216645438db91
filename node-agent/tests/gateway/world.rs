//! A node with one uplink, a real OVS with the userspace datapath, and a neighbour on the uplink's other end.

use node_agent::kernel::sysctl;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use node_agent::bpf::Programs;
use node_agent::config::Leases;
use node_agent::gateway::uplink::journal::Store;
use node_agent::gateway::uplink::migration::Migration;
use node_agent::kernel::link::{Netlink, Veth, ethtool};
use node_agent::ovs::Ovs;
use parking_lot::Mutex;
use test_support::namespaces;

/// The neighbour's address, the node's default gateway.
pub(crate) const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// An address that is reached only by the default route.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 7777;

/// The node, in the calling thread's namespace.
pub(crate) struct World {
    pub(crate) netlink: Netlink,
    pub(crate) ovs: Ovs,
    dir: tempfile::TempDir,
    database: Child,
    switch: Option<Child>,
    neighbour: Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
    /// The eBPF programs, in interposed mode.
    programs: Option<Arc<Mutex<Programs>>>,
}

/// Runs `test` on a thread in a network and mount namespace of its own, in direct mode.
pub(crate) fn on_a_node<Fut: Future<Output = ()>>(test: impl FnOnce(World) -> Fut + Send + 'static) {
    on_a_node_in(false, test);
}

/// Runs `test` once in direct and once in interposed mode.
pub(crate) fn in_both_modes<Fut: Future<Output = ()>>(test: impl Fn(World) -> Fut + Clone + Send + 'static) {
    on_a_node_in(false, test.clone());
    on_a_node_in(true, test);
}

fn on_a_node_in<Fut: Future<Output = ()>>(
    interposed: bool,
    test: impl FnOnce(World) -> Fut + Send + 'static,
) {
    namespaces::on_a_node(async move || test(World::new(interposed).await).await);
}

fn tools() -> PathBuf {
    test_support::cache::file("ovs")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test starts OVS, and looks at the result with the usual tools"
)]
fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Output of a program of this machine; the program must succeed.
pub(crate) fn output(program: impl AsRef<Path>, args: &[&str]) -> String {
    let name = program.as_ref().display().to_string();
    let out = command(program).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    assert!(out.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// `ip ARGS`, which must succeed.
pub(crate) fn ip(args: &str) -> String {
    output("ip", &args.split(' ').collect::<Vec<_>>())
}

impl World {
    async fn new(interposed: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("conf.db");
        let schema = tools().join("share/vswitch.ovsschema");
        output(tools().join("bin/ovsdb-tool"), &["create", db.to_str().unwrap(), schema.to_str().unwrap()]);
        let netlink = Netlink::open().unwrap();
        let (neighbour, path) = start_neighbour();
        let netns = std::fs::File::open(&path).unwrap();
        let veth = Veth {
            name: "eth0",
            mac: Some("02:42:ac:12:00:02".parse().unwrap()),
            group: 0,
            peer: "ext0",
            peer_mac: None,
            peer_group: 0,
            peer_netns: Some(std::os::fd::AsRawFd::as_raw_fd(&netns)),
            mtu: 1500,
        };
        netlink.create_veth(&veth).await.unwrap();
        let mut server = daemon(dir.path(), "ovsdb-server");
        server.arg(&db).arg(format!("--remote=punix:{}/db.sock", dir.path().display()));
        let database = server.spawn().unwrap();
        let url = format!("unix:{}/db.sock", dir.path().display());
        let ovs = {
            let set = "--no-wait init -- set Open_vSwitch . external_ids:ovn-bridge-datapath-type=netdev";
            // The server's socket appears shortly after its start; ovs-vsctl waits for it.
            let mut args = vec![format!("--db={url}"), "--retry".to_owned(), "--timeout=20".to_owned()];
            args.extend(set.split(' ').map(str::to_owned));
            output(tools().join("bin/ovs-vsctl"), &args.iter().map(String::as_str).collect::<Vec<_>>());
            Ovs::connect(&url, Duration::from_secs(20)).await.unwrap()
        };
        let programs = interposed.then(|| {
            let bpffs = dir.path().join("bpf");
            std::fs::create_dir(&bpffs).unwrap();
            mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
            Arc::new(Mutex::new(Programs::load(&bpffs.join("slipstream")).unwrap()))
        });
        let neighbour = Some(neighbour);
        let mut world = Self { netlink, ovs, dir, database, switch: None, neighbour, programs };
        world.start_switch();
        ip("link set lo up");
        // The states to compare must not differ by whether duplicate address detection has ended.
        sysctl::set_interface("ipv6", "eth0", "accept_dad", "0").unwrap();
        ip("link set eth0 up mtu 1450");
        ip("addr add 172.18.0.2/16 brd + dev eth0");
        ip("addr add 172.18.0.77/16 dev eth0 label eth0:vip noprefixroute");
        ip("route add default via 172.18.0.1 dev eth0 proto dhcp metric 100");
        ip("route add 198.51.100.0/24 via 172.18.0.9 dev eth0 src 172.18.0.77 mtu 1300");
        ip("route add 203.0.113.0/24 dev eth0 scope link table 77");
        ip("addr add fd00:172:18::2/64 dev eth0 nodad");
        ip("route add default via fd00:172:18::1 dev eth0 proto static metric 100");
        ip("route add 2001:db8:7::/48 via fd00:172:18::9 dev eth0 mtu 1300");
        world.neighbour_ready();
        world
    }

    pub(crate) fn start_switch(&mut self) {
        let mut switch = daemon(self.dir.path(), "ovs-vswitchd");
        switch.arg(format!("unix:{}/db.sock", self.dir.path().display()));
        self.switch = Some(switch.spawn().unwrap());
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill_switch(&mut self) {
        let mut switch = self.switch.take().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    pub(crate) fn db(&self) -> String {
        format!("unix:{}/db.sock", self.dir.path().display())
    }

    pub(crate) fn ofctl(&self) -> PathBuf {
        tools().join("bin/ovs-ofctl")
    }

    pub(crate) fn vsctl(&self, args: &str) -> String {
        let db = format!("--db={}", self.db());
        let mut all = vec![db.as_str(), "--timeout=20"];
        all.extend(args.split(' '));
        output(tools().join("bin/ovs-vsctl"), &all)
    }

    pub(crate) fn is_interposed(&self) -> bool {
        self.programs.is_some()
    }

    pub(crate) fn store(&self) -> Store {
        Store::new(&self.dir.path().join("state"))
    }

    /// Flags of an agent on this node.
    pub(crate) fn flags(&self) -> String {
        let dir = self.dir.path().display();
        format!("--ovs-db=unix:{dir}/db.sock --state-dir={dir}/state --bpf-dir={dir}/bpf")
    }

    pub(crate) fn migration(&self) -> Migration {
        Migration {
            netlink: self.netlink.clone(),
            ovs: self.ovs.clone(),
            programs: self.programs.clone(),
            store: self.store(),
            interposed: self.is_interposed(),
            leases: Leases::Refuse,
            masquerade: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
        }
    }

    fn neighbour_ready(&self) {
        assert!(self.reaches_neighbour(), "the neighbour must be reachable before the test begins");
    }

    /// True when a TCP connection to the neighbour, and one by the default route, carry data.
    pub(crate) fn reaches_neighbour(&self) -> bool {
        [NEIGHBOUR, FAR].into_iter().all(|ip| {
            let address = SocketAddr::from((ip, PORT));
            let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else {
                return false;
            };
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut text = String::new();
            stream.write_all(b"hello").is_ok()
                && stream.read_to_string(&mut text).is_ok()
                && text == "from 172.18.0.2"
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.programs.take().is_some() {
            let _ = umount2(&self.dir.path().join("bpf"), MntFlags::MNT_DETACH);
        }
        for process in self.switch.iter_mut().chain([&mut self.database]) {
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some((stop, thread)) = self.neighbour.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn daemon(dir: &Path, program: &str) -> Command {
    let mut command = command(tools().join("bin").join(program));
    command.arg(format!("--unixctl={}/{program}.ctl", dir.display())).args(["-vconsole:off", "-vsyslog:off"]);
    command.env("OVS_RUNDIR", dir).env("OVS_LOGDIR", dir);
    command
}

type Neighbour = (mpsc::Sender<()>, std::thread::JoinHandle<()>);

/// A host that sends every TCP client the client's address, in a namespace of its own; configured when its link appears.
fn start_neighbour() -> (Neighbour, PathBuf) {
    let (told, tell) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        told.send(format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid())).unwrap();
        while nix::net::if_::if_nametoindex("ext0").is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        ip("link set lo up");
        ip("link set ext0 up");
        ip("addr add 172.18.0.1/16 dev ext0");
        ip("addr add 192.0.2.1/32 dev lo");
        // OVS's packet socket would read packets without checksums.
        ethtool::disable_tx_checksum("ext0").unwrap();
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        listener.set_nonblocking(true).unwrap();
        while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            match listener.accept() {
                Ok((mut stream, from)) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    let mut hello = [0; 5];
                    let _ = stream.read_exact(&mut hello);
                    let _ = stream.write_all(format!("from {}", from.ip()).as_bytes());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    };
    let thread = std::thread::Builder::new().name("neighbour".to_owned()).spawn(body).unwrap();
    ((stop, thread), tell.recv().unwrap().into())
}

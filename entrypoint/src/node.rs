//! The roles of a node: `ovs`, `ovn-controller`, `node-agent`, `cleanup`; and `controller`.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use uuid::Uuid;

use crate::central::Places;
use crate::error::{Error, Result};
use crate::exec::{self, Argv, argv};
use crate::servers::{Database, Transport};
use crate::settings::{DATAPATH, NB, OVS_LEAVES, SB, Settings};
use crate::supervise::{Group, Program, Stop};
use crate::tls::Files;
use crate::{ready, say};

/// How long OVS may take to start before those that need it give up; the kubelet then starts them again.
const OVS_STARTS: Duration = Duration::from_secs(120);
/// How long another Open vSwitch may take to end.
const ANOTHER_ENDS: Duration = Duration::from_secs(40);
/// How long the release may take to go once the pods that clean nodes are there.
const RELEASE_GOES: Duration = Duration::from_secs(900);
/// By this file, in a directory of a pod that cleans its node, Open vSwitch says that it is that pod's own.
const STARTED: &str = "/tmp/ovs-started";
const BPF: &str = "/sys/fs/bpf";
const SYSCTLS: &str = "/proc/sys";
/// Where the agent keeps the certificate of the node's chassis.
const CHASSIS_TLS: &str = "/var/lib/slipstream/tls";
const SB_CERTIFICATES: &str = "SLIPSTREAM_SB_CERTIFICATES";
/// Where the controller keeps its own.
const CONTROLLER_TLS: &str = "/run/slipstream/tls";

/// Where OVS keeps things.
#[derive(Debug, Clone, clap::Args)]
pub struct Ovs {
    /// Directory of OVS's database and `system-id.conf`, which outlive the container.
    #[arg(long = "ovs-etc-dir", default_value = "/etc/openvswitch")]
    pub etc: PathBuf,
    /// Directory of OVS's sockets and process ids, which do not outlive the machine's boot.
    #[arg(long = "ovs-run-dir", default_value = "/run/openvswitch")]
    pub run: PathBuf,
    /// OVS's schema.
    #[arg(long = "ovs-schema", default_value = "/usr/share/openvswitch/vswitch.ovsschema")]
    pub schema: PathBuf,
    /// Directory of ovn-controller's process id.
    #[arg(long = "ovn-run-dir", default_value = "/run/ovn")]
    pub ovn_run: PathBuf,
    /// Directory of the certificate by which the node shows its chassis name.
    #[arg(long = "chassis-tls-dir", default_value = CHASSIS_TLS)]
    pub chassis_tls: PathBuf,
}

impl Default for Ovs {
    fn default() -> Self {
        Self {
            etc: "/etc/openvswitch".into(),
            run: "/run/openvswitch".into(),
            schema: "/usr/share/openvswitch/vswitch.ovsschema".into(),
            ovn_run: "/run/ovn".into(),
            chassis_tls: CHASSIS_TLS.into(),
        }
    }
}

impl Ovs {
    fn database(&self) -> PathBuf {
        self.etc.join("conf.db")
    }

    /// The database's socket.
    #[must_use]
    pub fn socket(&self) -> String {
        format!("unix:{}", self.run.join("db.sock").display())
    }

    fn pidfile(&self, program: &str) -> String {
        format!("--pidfile={}", self.run.join(format!("{program}.pid")).display())
    }

    /// The database's server.
    #[must_use]
    pub fn server(&self) -> Program {
        let argv = argv(&[
            "ovsdb-server",
            &self.database().display().to_string(),
            &format!("--remote=p{}", self.socket()),
            &self.pidfile("ovsdb-server"),
            "-vconsole:info",
            "-vsyslog:off",
        ]);
        Program { name: "ovsdb-server", argv, stop: Stop::Terminate }
    }

    /// The switch. SIGTERM leaves the kernel's datapath with its ports and flows, by which packets go on; its own command `exit
    /// --cleanup` would not.
    #[must_use]
    pub fn switch(&self, stop: Stop) -> Program {
        let argv = argv(&[
            "ovs-vswitchd",
            &self.socket(),
            &self.pidfile("ovs-vswitchd"),
            "-vconsole:info",
            "-vsyslog:off",
        ]);
        Program { name: "ovs-vswitchd", argv, stop }
    }

    fn vsctl(&self, words: &[&str]) -> Argv {
        let mut command =
            argv(&["ovs-vsctl", &format!("--db={}", self.socket()), "--timeout=10", "--no-wait"]);
        command.extend(argv(words));
        command
    }

    /// What a node's OVS says of itself. The chassis name stays what it is if there is one already.
    #[must_use]
    pub fn describe(&self, system_id: &str, node: &str, datapath: &str) -> Argv {
        self.vsctl(&[
            "init",
            "--",
            "set",
            "Open_vSwitch",
            ".",
            &format!("external_ids:system-id={system_id}"),
            &format!("external_ids:hostname={node}"),
            &format!("external_ids:ovn-bridge-datapath-type={datapath}"),
            // Tags of pods and of the outside are left alone.
            "other_config:vlan-limit=0",
        ])
    }

    /// With the userspace datapath and no eBPF between OVS and the pods, OVS itself must take packets whose checksum or segmentation
    /// is left to the device. It reads this at its start only.
    #[must_use]
    pub fn offload(&self, on: bool) -> Argv {
        self.vsctl(&["set", "Open_vSwitch", ".", &format!("other_config:userspace-tso-enable={on}")])
    }

    /// The chassis name: that of the database, else of `system-id.conf`, else a new one, which is written there.
    fn system_id(&self) -> Result<String> {
        let get = ["--if-exists", "get", "Open_vSwitch", ".", "external_ids:system-id"];
        let known = exec::output(&self.vsctl(&get))?;
        let known = known.trim().trim_matches('"');
        if !known.is_empty() {
            return Ok(known.to_owned());
        }
        let path = self.etc.join("system-id.conf");
        if let Ok(text) = fs::read_to_string(&path)
            && !text.trim().is_empty()
        {
            return Ok(text.trim().to_owned());
        }
        let id = Uuid::new_v4().to_string();
        fs::write(&path, format!("{id}\n")).map_err(|source| Error::File {
            action: "write",
            path,
            source,
        })?;
        Ok(id)
    }

    /// Makes the database, or gives it the schema of this image.
    fn prepare(&self) -> Result<()> {
        make(&self.etc)?;
        make(&self.run)?;
        let (database, schema) = (self.database().display().to_string(), self.schema.display().to_string());
        if !self.database().exists() {
            return exec::output(&argv(&["ovsdb-tool", "create", &database, &schema])).map(drop);
        }
        let needs = exec::output(&argv(&["ovsdb-tool", "needs-conversion", &database, &schema]))?;
        if needs.trim() == "yes" {
            say(format_args!("{database}: gets the schema of this image"));
            exec::output(&argv(&["ovsdb-tool", "convert", &database, &schema]))?;
        }
        Ok(())
    }

    /// Mark of the first start after a boot of the machine.
    fn booted(&self) -> PathBuf {
        self.run.join("slipstream-booted")
    }

    /// After a boot of the machine: ports that the agent marked as transient go, so that the uplink keeps its addresses until the agent
    /// runs. A restart of the container keeps them.
    fn forget_transient_ports(&self) -> Result<()> {
        let mark = self.booted();
        if mark.exists() {
            return Ok(());
        }
        let find = self.vsctl(&["--bare", "--columns=name", "find", "Port", "other_config:transient=true"]);
        for port in exec::output(&find)?.split_whitespace() {
            say(format_args!("removing port {port}, which is from before the machine was booted"));
            exec::output(&self.vsctl(&["--if-exists", "del-port", port]))?;
        }
        fs::write(&mark, "").map_err(|source| Error::File { action: "write", path: mark, source })
    }

    /// A pod that is being replaced may not have ended yet. The database is locked as long as its server runs.
    fn wait_for_end_of_another(&self, group: &mut Group, limit: Duration) -> Result<()> {
        let probe = argv(&["ovsdb-client", "--timeout=2", "list-dbs", &self.socket()]);
        if !self.run.join("db.sock").exists() {
            return Ok(());
        }
        exec::retry(limit, || {
            group.check()?;
            match exec::output(&probe) {
                Ok(_) => Err(Error::Late {
                    what: format!("another Open vSwitch still answers at {}", self.socket()),
                    seconds: limit.as_secs(),
                }),
                Err(_) => Ok(()),
            }
        })
    }

    /// Waits until the database answers.
    fn wait(&self, group: &mut Group) -> Result<()> {
        let socket = self.run.join("db.sock");
        exec::retry(OVS_STARTS, || {
            group.check()?;
            exec::output(&self.vsctl(&["get", "Open_vSwitch", ".", "external_ids:system-id"])).map_err(
                |error| Error::Late {
                    what: format!(
                        "Open vSwitch does not answer at {} (its container, or openvswitch-switch of the host): {error}",
                        socket.display()
                    ),
                    seconds: OVS_STARTS.as_secs(),
                },
            )
        })
        .map(drop)
    }
}

/// Role `ovs`.
///
/// # Errors
/// The environment is wrong, or the database cannot be prepared.
pub fn ovs(settings: &Settings, ovs: &Ovs) -> Result<ExitCode> {
    let (node, datapath) = (settings.node_name()?, settings.ovs_datapath()?);
    if datapath == "netdev" && !Path::new("/dev/net/tun").exists() {
        return Err(Error::Container {
            what: "/dev/net/tun is not there, and OVS's userspace datapath needs it".into(),
            remedy: "mount it from the host (modprobe tun), or set the datapath to system",
        });
    }
    let mut group = Group::new()?;
    let leaves = settings.get(OVS_LEAVES).is_some();
    ovs.wait_for_end_of_another(&mut group, if leaves { RELEASE_GOES } else { ANOTHER_ENDS })?;
    ovs.prepare()?;
    group.start(&ovs.server())?;
    exec::retry(Duration::from_secs(20), || {
        group.check()?;
        exec::output(&ovs.vsctl(&["init"]))
    })?;
    exec::output(&ovs.describe(&ovs.system_id()?, node, datapath))?;
    exec::output(&ovs.offload(settings.needs_userspace_offload()?))?;
    ovs.forget_transient_ports()?;
    // At the very end the kernel's datapath goes as well.
    let stop = if leaves {
        let mut exit = argv(&["ovs-appctl", "--timeout=5", "-t"]);
        exit.push("ovs-vswitchd".to_owned());
        exit.extend(argv(&["exit", "--cleanup"]));
        Stop::Command(exit)
    } else {
        Stop::Terminate
    };
    group.start(&ovs.switch(stop))?;
    if leaves {
        // Interfaces go only when the switch itself removes them.
        exec::retry(OVS_STARTS, || {
            group.check()?;
            exec::output(&argv(&["ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", "version"]))
        })?;
        let failed = |source| Error::File { action: "write", path: STARTED.into(), source };
        fs::write(STARTED, "").map_err(failed)?;
    }
    Ok(group.run())
}

/// Role `ovn-controller`: waits for OVS, and runs it. Where SB is, the agent writes into OVS's database.
///
/// # Errors
/// OVS does not answer, there is no certificate, or the program cannot be started.
pub fn ovn_controller(settings: &Settings, ovs: &Ovs) -> Result<ExitCode> {
    let mut argv = ovn_controller_argv(ovs);
    make(&ovs.ovn_run)?;
    let mut group = Group::new()?;
    ovs.wait(&mut group)?;
    if settings.transport()? == Transport::Tls {
        let files = Files::of(&ovs.chassis_tls.join("current"), "ca.crt");
        files.wait(&mut group, "the agent of this node")?;
        argv.extend(files.flags());
    }
    // Not as the first process of the container, whose signals the kernel ignores once it has given up handling them. SIGTERM leaves
    // the flows in OVS and the node's rows in SB; its own command `exit` would take both away.
    group.start(&Program { name: "ovn-controller", argv, stop: Stop::Terminate })?;
    let mut southbound = Southbound::default();
    Ok(group.run_and_look(|| {
        southbound.look();
        None
    }))
}

/// Whether ovn-controller has the southbound database. It keeps the newest state that it has seen of a cluster of servers, and refuses
/// all servers for ever if that cluster was made anew.
#[derive(Debug)]
struct Southbound {
    seen: Instant,
    next: Instant,
}

impl Default for Southbound {
    fn default() -> Self {
        Self { seen: Instant::now(), next: Instant::now() }
    }
}

impl Southbound {
    /// How often it is asked, and after how long without a server ovn-controller is told to take any.
    const ASK: Duration = Duration::from_secs(2);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn look(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Self::ASK;
        if ready::ovn_controller().is_ok() {
            self.seen = now;
        } else if now.duration_since(self.seen) >= Self::PATIENCE {
            self.seen = now;
            // It does not answer before it has started.
            let reset = ["ovn-appctl", "--timeout=5", "-t", "ovn-controller", "sb-cluster-state-reset"];
            if exec::output(&argv(&reset)).is_ok() {
                say("no southbound server for 10 s: the next one is taken, as the databases may be new");
            }
        }
    }
}

/// The command of ovn-controller.
#[must_use]
pub fn ovn_controller_argv(ovs: &Ovs) -> Argv {
    argv(&[
        "ovn-controller",
        &ovs.socket(),
        &format!("--pidfile={}", ovs.ovn_run.join("ovn-controller.pid").display()),
        "-vconsole:info",
        "-vsyslog:off",
    ])
}

/// Role `controller`.
///
/// # Errors
/// The environment is wrong, or the program cannot be started.
pub fn controller(settings: &Settings) -> Result<Infallible> {
    settings.check_api_server()?;
    let mut variables = vec![(NB, endpoints(settings, NB, Database::Nb)?)];
    if settings.transport()? == Transport::Tls {
        let file = |name: &str| format!("{CONTROLLER_TLS}/{name}");
        variables.extend([
            ("SLIPSTREAM_CERTIFICATES", CONTROLLER_TLS.to_owned()),
            ("SLIPSTREAM_NB_CA", file("ca.crt")),
            ("SLIPSTREAM_NB_CERT", file("tls.crt")),
            ("SLIPSTREAM_NB_KEY", file("tls.key")),
        ]);
    }
    exec::become_program(&argv(&["slipstream-controller", "run"]), &variables)
}

/// Role `node-agent`.
///
/// # Errors
/// The environment or the container is wrong, OVS does not answer, or the program cannot be started.
pub fn agent(settings: &Settings, ovs: &Ovs) -> Result<Infallible> {
    settings.check_api_server()?;
    settings.node_name()?;
    let sb = endpoints(settings, SB, Database::Sb)?;
    if settings.get(DATAPATH) != Some("ovs") {
        need_bpffs(Path::new(BPF))?;
    }
    open_sysctls(Path::new(SYSCTLS))?;
    ovs.wait(&mut Group::new()?)?;
    let mut variables = vec![(SB, sb)];
    if settings.transport()? == Transport::Tls {
        variables.push((SB_CERTIFICATES, CHASSIS_TLS.to_owned()));
    }
    exec::become_program(&argv(&["slipstream-node-agent", "run"]), &variables)
}

/// Role `cleanup`: takes everything off the node, and the databases of OVN if it had some: they are made from Kubernetes' objects.
///
/// # Errors
/// As of [`agent`], or something could not be removed.
pub fn cleanup(settings: &Settings, ovs: &Ovs, places: &Places) -> Result<ExitCode> {
    settings.node_name()?;
    open_sysctls(Path::new(SYSCTLS))?;
    let mut group = Group::new()?;
    if settings.get(OVS_LEAVES).is_some() {
        say("waiting for the end of the node's Open vSwitch, and for the one of this pod");
        exec::retry(RELEASE_GOES, || {
            group.check()?;
            match Path::new(STARTED).exists() {
                true => Ok(()),
                false => Err(Error::Late {
                    what: "the pod's own Open vSwitch has not started".into(),
                    seconds: RELEASE_GOES.as_secs(),
                }),
            }
        })?;
    }
    ovs.wait(&mut group)?;
    let command = argv(&["slipstream-node-agent", "cleanup", "--all"]);
    exec::run(&command, &[(SB_CERTIFICATES, CHASSIS_TLS.to_owned())])?;
    let databases = fs::read_dir(&places.data).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in databases.chain([ovs.booted()].into_iter().filter(|mark| mark.exists())) {
        fs::remove_file(&path).map_err(|source| Error::File { action: "remove", path, source })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Roles `cleanup-prepare` and `cleanup-cluster`.
///
/// # Errors
/// The environment is wrong, or the program cannot be started.
pub fn cleanup_cluster(settings: &Settings, flags: &[&str]) -> Result<Infallible> {
    settings.check_api_server()?;
    exec::become_program(&argv(&[&["slipstream-controller", "cleanup"], flags].concat()), &[])
}

/// The endpoints of a database: as they are set, or of the servers.
fn endpoints(settings: &Settings, name: &str, database: Database) -> Result<String> {
    match settings.get(name) {
        Some(set) => Ok(set.to_owned()),
        None => Ok(settings.central()?.endpoints(database, settings.transport()?)),
    }
}

fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|source| Error::File { action: "create", path: dir.to_owned(), source })
}

fn need_bpffs(path: &Path) -> Result<()> {
    match statfs(path) {
        Ok(stat) if stat.filesystem_type() == BPF_FS_MAGIC => Ok(()),
        _ => Err(Error::Container {
            what: format!("{} is no bpf file system", path.display()),
            remedy: "mount one on the host (mount -t bpf bpf /sys/fs/bpf; systemd does so by itself) and give it to the container, or \
                     set SLIPSTREAM_DATAPATH=ovs",
        }),
    }
}

/// A container that is not privileged has its sysctls read-only; the agent sets some of the node's network.
fn open_sysctls(path: &Path) -> Result<()> {
    let failed = |source| Error::System { call: "statvfs of /proc/sys", source };
    if !statvfs(path).map_err(failed)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    let flags =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).map_err(|error| Error::Container {
        what: format!("{} is read-only, and cannot be made writable: {error}", path.display()),
        remedy: "give the container the capability SYS_ADMIN and no AppArmor profile that denies mounts \
                 (appArmorProfile type Unconfined)",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_and_its_database_meet_at_one_socket() {
        let ovs = Ovs::default();
        assert!(ovs.server().argv.contains(&"--remote=punix:/run/openvswitch/db.sock".to_owned()));
        assert_eq!(ovs.switch(Stop::Terminate).argv[1], "unix:/run/openvswitch/db.sock");
        assert_eq!(ovn_controller_argv(&ovs)[1], ovs.switch(Stop::Terminate).argv[1]);
        // The agent finds the switch's control socket by it.
        assert!(
            ovs.switch(Stop::Terminate)
                .argv
                .contains(&"--pidfile=/run/openvswitch/ovs-vswitchd.pid".to_owned())
        );
    }

    #[test]
    fn a_node_is_described_by_its_name_and_datapath() {
        let said = Ovs::default().describe("id", "n1", "netdev").join(" ");
        for part in ["system-id=id", "hostname=n1", "ovn-bridge-datapath-type=netdev", "--no-wait"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn endpoints_follow_from_the_servers_unless_they_are_set() {
        let servers = ("SLIPSTREAM_OVN_CENTRAL", "10.0.0.1");
        let of =
            |more: &[_]| endpoints(&Settings::of(&[&[servers], more].concat()), SB, Database::Sb).unwrap();
        assert_eq!(of(&[]), "ssl:10.0.0.1:6642");
        assert_eq!(of(&[("SLIPSTREAM_TLS", "false")]), "tcp:10.0.0.1:6642");
        assert_eq!(of(&[(SB, "ssl:10.0.0.9:6642")]), "ssl:10.0.0.9:6642");
        assert!(endpoints(&Settings::default(), SB, Database::Sb).is_err());
    }

    #[test]
    fn a_directory_that_is_no_bpf_file_system_is_told_with_the_remedy() {
        let error = need_bpffs(Path::new("/proc")).unwrap_err().to_string();
        assert!(error.contains("mount -t bpf"), "{error}");
    }

    #[test]
    fn a_roles_environment_is_checked_before_anything_is_started() {
        let none = Settings::default();
        assert!(controller(&none).unwrap_err().to_string().contains("SLIPSTREAM_API_SERVER"));
        assert!(agent(&none, &Ovs::default()).unwrap_err().to_string().contains("SLIPSTREAM_API_SERVER"));
        assert!(
            cleanup(&none, &Ovs::default(), &Places::default())
                .unwrap_err()
                .to_string()
                .contains("SLIPSTREAM_NODE_NAME")
        );
        assert!(ovs(&none, &Ovs::default()).unwrap_err().to_string().contains("SLIPSTREAM_NODE_NAME"));
    }
}

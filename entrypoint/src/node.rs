//! The roles of a node beside Open vSwitch, `ovn-controller`, `node-agent`, `cleanup`; and `controller`.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::central::Places;
use crate::error::{Error, Result};
use crate::exec::{self, Argv, argv};
use crate::instance::{RELEASE_GOES, remove_dead};
use crate::ovs::Ovs;
use crate::paths::{CHASSIS_TLS, make};
use crate::servers::{Database, Transport};
use crate::settings::{DATAPATH, NB, OVS_LEAVES, SB, Settings};
use crate::supervise::{Group, Program, Stop};
use crate::tls::Files;
use crate::{ready, say};

const BPF: &str = "/sys/fs/bpf";
const SYSCTLS: &str = "/proc/sys";
const SB_CERTIFICATES: &str = "SLIPSTREAM_SB_CERTIFICATES";
/// Where the controller keeps its own.
const CONTROLLER_TLS: &str = "/run/slipstream/tls";

/// Role `ovn-controller`: waits for OVS, and runs it. Where SB is, the agent writes into OVS's database.
///
/// # Errors
/// OVS does not answer, there is no certificate, or the program cannot be started.
pub fn ovn_controller(settings: &Settings, ovs: &Ovs) -> Result<ExitCode> {
    let mut argv = ovn_controller_argv(ovs);
    make(&ovs.ovn_run)?;
    remove_dead(&ovs.ovn_run, &["ovn-controller."]);
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
            match ovs.started.exists() {
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
        assert!(
            crate::ovs::ovs(&none, &Ovs::default()).unwrap_err().to_string().contains("SLIPSTREAM_NODE_NAME")
        );
    }
}

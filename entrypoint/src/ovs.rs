//! Open vSwitch of a node: its database, the switch, and the role `ovs`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::exec::{self, Argv, argv};
use crate::instance::{Instance, RELEASE_GOES};
use crate::paths::{CHASSIS_TLS, make};
use crate::say;
use crate::settings::{OVS_LEAVES, Settings};
use crate::supervise::{Group, Program, Stop};

/// How long OVS may take to start before those that need it give up; the kubelet then starts them again.
const OVS_STARTS: Duration = Duration::from_secs(120);
/// By this file, in a directory of its pod, Open vSwitch says that it is that pod's own which answers.
pub const STARTED: &str = "/tmp/ovs-started";

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
    /// File that says that this pod's own Open vSwitch answers.
    #[arg(long = "ovs-started-file", default_value = STARTED)]
    pub started: PathBuf,
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
            started: STARTED.into(),
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
    pub(crate) fn booted(&self) -> PathBuf {
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

    /// Waits until the database answers.
    ///
    /// # Errors
    /// It does not within two minutes, or a signal has come.
    pub(crate) fn wait(&self, group: &mut Group) -> Result<()> {
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
    // It is of the pod, and thus outlives the container.
    match fs::remove_file(&ovs.started) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(Error::File { action: "remove", path: ovs.started.clone(), source });
        }
        _ => {}
    }
    make(&ovs.etc)?;
    make(&ovs.run)?;
    let leaves = settings.get(OVS_LEAVES).is_some();
    let only = Instance::become_only(&ovs.run, &mut group, leaves.then_some(RELEASE_GOES))?;
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
    // Interfaces go only when the switch itself removes them: a node is cleaned when it answers.
    exec::retry(OVS_STARTS, || {
        group.check()?;
        exec::output(&argv(&["ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", "version"]))
    })?;
    let failed = |source| Error::File { action: "write", path: ovs.started.clone(), source };
    fs::write(&ovs.started, "").map_err(failed)?;
    let code = group.run();
    if leaves {
        only.remove()?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_and_its_database_meet_at_one_socket() {
        let ovs = Ovs::default();
        assert!(ovs.server().argv.contains(&"--remote=punix:/run/openvswitch/db.sock".to_owned()));
        assert_eq!(ovs.switch(Stop::Terminate).argv[1], "unix:/run/openvswitch/db.sock");
        assert_eq!(crate::node::ovn_controller_argv(&ovs)[1], ovs.switch(Stop::Terminate).argv[1]);
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
}

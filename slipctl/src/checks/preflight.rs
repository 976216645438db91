//! `slipctl preflight`: whether a machine can be a node. Asks nobody, changes nothing.

use std::path::PathBuf;

use super::host::Host;
use super::{Finding, links};

/// TCP ports that our programs and OVN's databases listen on, and for what.
const PORTS: [(u16, &str); 5] = [
    (9410, "the agent's metrics (agent.metricsPort)"),
    (9409, "the controller's metrics (controller.metricsPort)"),
    (10256, "health checks of load balancers; kube-proxy has the same: remove it"),
    (10249, "proxy mode; kube-proxy has the same: remove it"),
    (6641, "OVN's northbound database, on its nodes"),
];
/// Connections that the kernel should be able to track.
const CONNECTIONS: u64 = 65_536;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// MTU that pods will have, in bytes.
    #[arg(long, env = "SLIPSTREAM_MTU", default_value_t = 1400)]
    mtu: u64,
    /// Root of the machine's file system, where slipctl runs in a container that has it elsewhere.
    #[arg(long, default_value = "/")]
    root: PathBuf,
}

/// Looks at the machine.
pub(crate) fn run(args: &Args) -> Vec<Finding> {
    let host = Host::new(&args.root);
    let mut findings = vec![kernel(&host), btf(&host), bpffs(&host)];
    modules(&host, &mut findings);
    links::uplink(&host, args.mtu, &mut findings);
    findings.push(ports(&host));
    findings.push(chassis(&host));
    links::cni(&host, false, &mut findings);
    findings.push(conntrack(&host));
    findings
}

fn kernel(host: &Host) -> Finding {
    let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    let version = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (why, remedy) =
        ("the flow cache is tested from Linux 6.1 on", "a newer kernel, or agent.datapath: ovs");
    if version >= (6, 1) {
        Finding::ok("kernel", release)
    } else if version >= (5, 10) {
        Finding::warning("kernel", release, why, remedy)
    } else {
        Finding::failure("kernel", release, "nothing is tested on Linux before 5.10", "a newer kernel")
    }
}

fn btf(host: &Host) -> Finding {
    match host.exists("/sys/kernel/btf/vmlinux") {
        true => Finding::ok("BTF", "/sys/kernel/btf/vmlinux"),
        false => Finding::warning(
            "BTF",
            "/sys/kernel/btf/vmlinux is not there",
            "the eBPF programs do not load without it; every packet goes through OVS then",
            "a kernel with CONFIG_DEBUG_INFO_BTF, or agent.datapath: ovs",
        ),
    }
}

fn bpffs(host: &Host) -> Finding {
    let mounts = host.read("/proc/mounts").unwrap_or_default();
    let is = |line: &str| line.split_whitespace().skip(1).take(2).eq(["/sys/fs/bpf", "bpf"]);
    match mounts.lines().any(is) {
        true => Finding::ok("bpf file system", "/sys/fs/bpf"),
        false => Finding::warning(
            "bpf file system",
            "none at /sys/fs/bpf",
            "programs and maps are kept there, so that traffic goes on without the agent",
            "mount -t bpf bpf /sys/fs/bpf (systemd does so by itself), or agent.datapath: ovs",
        ),
    }
}

fn modules(host: &Host, findings: &mut Vec<Finding>) {
    let has_tun = host.exists("/dev/net/tun") || host.has_module("tun");
    findings.push(match (host.has_module("openvswitch"), has_tun) {
        (true, _) => Finding::ok("module openvswitch", "there"),
        (false, true) => Finding::warning(
            "module openvswitch",
            "not there; tun is",
            "the kernel's datapath of OVS needs it",
            "install the kernel's extra modules, or ovs.datapath: netdev",
        ),
        (false, false) => Finding::failure(
            "module openvswitch",
            "not there, and neither is tun",
            "OVS needs one of them for its datapath",
            "install the kernel's extra modules",
        ),
    });
    for (name, why) in [
        ("geneve", "pods of different nodes reach one another by Geneve tunnels"),
        ("nf_conntrack", "policies and services need connection tracking"),
        ("nf_tables", "node ports and host ports are nftables rules"),
    ] {
        let check = format!("module {name}");
        findings.push(match host.has_module(name) {
            true => Finding::ok(&check, "there"),
            false if !host.has_module_lists() => Finding::warning(
                &check,
                "not loaded, and /lib/modules has no list of what this kernel has",
                why,
                &format!("look at the kernel's configuration, or try modprobe {name}"),
            ),
            false => Finding::failure(
                &check,
                "not there",
                why,
                &format!("modprobe {name}, or a kernel that has it"),
            ),
        });
    }
}

fn ports(host: &Host) -> Finding {
    let (check, listening) = ("ports", host.listening());
    if host.exists(api::admin::DEFAULT_SOCKET) {
        return Finding::ok(check, "an agent runs here and has its own");
    }
    let taken: Vec<String> = PORTS
        .iter()
        .filter(|(port, _)| listening.contains(port))
        .map(|(port, what)| format!("{port} is taken: {what}"))
        .collect();
    match taken.is_empty() {
        true => Finding::ok(check, "free"),
        false => Finding::failure(
            check,
            taken.join("; "),
            "two programs cannot listen on one port of the node",
            "end who listens (ss -ltnp), or choose another port",
        ),
    }
}

fn chassis(host: &Host) -> Finding {
    match host.read("/etc/openvswitch/system-id.conf") {
        Some(id) if !id.is_empty() => Finding::warning(
            "chassis id",
            format!("{id}, from an earlier Open vSwitch"),
            "two nodes with one id, as of a cloned disk, take each other's tunnels",
            "if this disk was cloned, remove /etc/openvswitch/system-id.conf and conf.db before the node joins",
        ),
        _ => Finding::ok("chassis id", "none yet; the node makes its own"),
    }
}

fn conntrack(host: &Host) -> Finding {
    let (check, max) = ("connection tracking", host.number("/proc/sys/net/netfilter/nf_conntrack_max"));
    let count = host.number("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or_default();
    let (why, remedy) = (
        "when the table is full, new connections are dropped",
        "sysctl net.netfilter.nf_conntrack_max=262144",
    );
    match max {
        None => Finding::ok(check, "module not loaded yet"),
        Some(max) if max < CONNECTIONS || count * 5 > max * 4 => {
            Finding::warning(check, format!("{count} of at most {max} connections"), why, remedy)
        }
        Some(max) => Finding::ok(check, format!("{count} of at most {max} connections")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Level;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<Finding>) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let findings = run(&Args { mtu: 1400, root: dir.path().to_owned() });
        (dir, findings)
    }

    fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.check == check).unwrap()
    }

    const ROUTE: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask\nens3 00000000 010012AC 0003 0 0 100 00000000\n";

    #[test]
    fn a_machine_that_can_be_a_node_passes() {
        let (_dir, findings) = machine(&[
            ("/proc/sys/kernel/osrelease", "6.1.0-30-amd64\n"),
            ("/sys/kernel/btf/vmlinux", ""),
            ("/proc/mounts", "bpf /sys/fs/bpf bpf rw 0 0\n"),
            (
                "/lib/modules/6.1.0-30-amd64/modules.dep",
                "kernel/net/openvswitch/openvswitch.ko.xz: a.ko\nkernel/x/geneve.ko:\n",
            ),
            (
                "/lib/modules/6.1.0-30-amd64/modules.builtin",
                "kernel/net/nf_tables.ko\nkernel/net/nf_conntrack.ko\n",
            ),
            ("/proc/net/route", ROUTE),
            ("/sys/class/net/ens3/mtu", "1500\n"),
            ("/proc/net/tcp", "sl local rem st\n 0: 0100007F:0016 00000000:0000 0A 0\n"),
            ("/proc/sys/net/netfilter/nf_conntrack_max", "262144"),
            ("/opt/cni/bin/loopback", ""),
        ]);
        assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:#?}");
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let (_dir, findings) = machine(&[
            ("/proc/sys/kernel/osrelease", "5.15.0\n"),
            ("/lib/modules/5.15.0/modules.builtin", "kernel/net/nf_tables.ko\n"),
            ("/proc/net/route", ROUTE),
            ("/sys/class/net/ens3/mtu", "1450\n"),
            ("/sys/class/net/ens3/ifindex", "2\n"),
            ("/run/systemd/netif/leases/2", "ADDRESS=10.0.0.5"),
            ("/proc/net/tcp6", "sl local rem st\n 0: 00000000000000000000000000000000:2810 0:0 0A 0\n"),
            ("/etc/cni/net.d/05-cilium.conflist", "{}"),
            ("/etc/openvswitch/system-id.conf", "abc"),
        ]);
        for (check, level, told) in [
            ("kernel", Level::Warning, "6.1"),
            ("BTF", Level::Warning, "CONFIG_DEBUG_INFO_BTF"),
            ("module openvswitch", Level::Failure, "extra modules"),
            ("module geneve", Level::Failure, "modprobe geneve"),
            ("uplink", Level::Failure, "at most 1372"),
            ("network manager", Level::Failure, "gatewayLeases"),
            ("ports", Level::Failure, "10256"),
            ("CNI configuration", Level::Failure, "05-cilium.conflist"),
            ("chassis id", Level::Warning, "cloned"),
        ] {
            let finding = of(&findings, check);
            let all = format!("{} {} {}", finding.found, finding.why, finding.remedy);
            assert!(finding.level == level && all.contains(told), "{check}: {finding:?}");
        }
    }
}

//! What a node is set to, in lines: addresses, routes, rules, nftables, settings of the kernel, files. To compare before an
//! installation and after its end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Bed;
use crate::exec;

/// What is asked, in the node's network.
const COMMANDS: &[&[&str]] = &[
    &["ip", "-oneline", "-details", "link"],
    &["ip", "-oneline", "address"],
    &["ip", "route", "show", "table", "all"],
    &["ip", "-6", "route", "show", "table", "all"],
    &["ip", "rule"],
    &["ip", "-6", "rule"],
    &["nft", "--stateless", "list", "ruleset"],
    &["tc", "filter", "show", "dev", "eth0", "ingress"],
    &["tc", "filter", "show", "dev", "eth0", "egress"],
    &["sysctl", "--all", "--ignore", "--pattern", "^net\\."],
];
/// Directories whose files are listed.
const DIRECTORIES: &[&str] = &[
    "/etc/cni/net.d",
    "/opt/cni/bin",
    "/run/openvswitch",
    "/run/ovn",
    "/run/slipstream",
    "/sys/fs/bpf",
    "/var/lib/slipstream",
];
/// Lines that change by themselves, or with every pod: lifetimes, counters, state of a link, what the kernel measures.
const VOLATILE: &[&str] =
    &["nf_conntrack_count", "dentry", "tcp_fastopen_key", "stable_secret", "netdev_rss_key"];

/// The lines of a node.
pub fn of(bed: &Bed, node: &str) -> Result<BTreeSet<String>> {
    let host = bed.host(node);
    let mut lines = BTreeSet::new();
    for argv in COMMANDS {
        let mut command = host.network_command(argv.first().context("no program")?)?;
        let said = exec::output(command.args(argv.iter().skip(1)))?;
        let about = argv.join(" ");
        let said = if argv.contains(&"ruleset") { without_kubelet(&said) } else { said };
        let kept = said.lines().map(str::trim).filter(|line| !line.is_empty() && !is_volatile(line));
        lines.extend(kept.map(|line| format!("{about}: {}", steady(line))));
    }
    for directory in DIRECTORIES {
        let root = host.path(directory)?;
        list(&root, &root, directory, &mut lines);
    }
    Ok(lines)
}

/// The file with the lines of a node before the installation.
fn before(bed: &Bed, node: &str) -> PathBuf {
    bed.config().dir.join(format!("before-{node}.txt"))
}

/// Writes the lines of all nodes down.
pub(super) fn save_all(bed: &Bed) -> Result<()> {
    for node in bed.config().node_names() {
        let lines: Vec<_> = of(bed, &node)?.into_iter().collect();
        let path = before(bed, &node);
        fs::write(&path, lines.join("\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// What differs from before the installation: `+` came, `-` went.
pub fn changes(bed: &Bed, node: &str) -> Result<Vec<String>> {
    let path = before(bed, node);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("{}: it is written when a cluster is installed by its chart", path.display())
    })?;
    let before: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let now = of(bed, node)?;
    let came = now.difference(&before).map(|line| format!("+ {line}"));
    Ok(came.chain(before.difference(&now).map(|line| format!("- {line}"))).collect())
}

/// A ruleset without what a kubelet makes where `iptables` is installed, at any time after its start: chains `KUBE-…`, jumps to them, and the
/// tables and base chains of `iptables` around them. Any other rule in those tables is kept.
/// (Kubernetes, `pkg/kubelet/kubelet_network_linux.go`, `initNetworkUtil`.)
fn without_kubelet(ruleset: &str) -> String {
    let mut kept = String::new();
    let mut of_iptables = false;
    let mut of_kubelet = false;
    for line in ruleset.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["table", family, name, "{"] => {
                let names = ["filter", "mangle", "nat", "raw", "security"];
                of_iptables = matches!(family, "ip" | "ip6") && names.contains(&name);
                of_kubelet = false;
            }
            ["chain", name, "{"] => of_kubelet = of_iptables && name.starts_with("KUBE-"),
            _ => {}
        }
        let frame =
            matches!(words[..], ["table" | "chain", ..] | ["type", "filter" | "nat" | "route", ..] | ["}"]);
        let to_kubelet = words.iter().any(|word| word.starts_with("KUBE-"));
        if !of_iptables || !(of_kubelet || frame || to_kubelet) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn is_volatile(line: &str) -> bool {
    VOLATILE.iter().any(|word| line.contains(word))
}

/// A line without what changes by itself: numbers of interfaces, lifetimes.
fn steady(line: &str) -> String {
    let without_number = match line.split_once(": ") {
        Some((number, rest)) if number.chars().all(|c| c.is_ascii_digit()) => rest,
        _ => line,
    };
    let mut words = without_number.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "valid_lft" | "preferred_lft" | "expires" => drop(words.next()),
            other => kept.push(other),
        }
    }
    kept.join(" ")
}

fn list(root: &Path, directory: &Path, shown: &str, lines: &mut BTreeSet<String>) {
    // What is not there has no files.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            list(root, &path, shown, lines);
        } else {
            lines.insert(format!("file {shown}/{}", path.strip_prefix(root).unwrap_or(&path).display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_of_the_kubelet_are_left_out() {
        let ours = "table inet slipstream {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n";
        let kubelet = "table ip filter {
\tchain KUBE-FIREWALL {
\t\tip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 ct status dnat counter drop
\t}
\tchain OUTPUT {
\t\ttype filter hook output priority filter; policy accept;
\t\tcounter jump KUBE-FIREWALL
\t}
}
";
        assert_eq!(without_kubelet(&format!("{kubelet}{ours}{kubelet}")), ours);
        let foreign = kubelet.replace("counter jump KUBE-FIREWALL", "counter drop");
        assert_eq!(without_kubelet(&foreign), "\t\tcounter drop\n");
    }

    #[test]
    fn what_changes_by_itself_is_left_out() {
        assert_eq!(
            steady("2: eth0 inet6 fe80::1/64 scope link \\       valid_lft 30sec preferred_lft forever"),
            "eth0 inet6 fe80::1/64 scope link \\"
        );
        assert_eq!(steady("32766:\tfrom all lookup main"), "32766: from all lookup main");
        assert!(is_volatile("net.netfilter.nf_conntrack_count = 3"));
    }
}

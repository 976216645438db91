//! The userland that most images stand on: busybox's applets, and Debian's programs where a spec wants more of
//! one than busybox has.

use anyhow::{Context, Result, bail};
use oci_image::layer::Tree;

use super::{Inputs, libraries};
use crate::exec;

/// Programs and their packages.
const PROGRAMS: &[(&str, &str)] = &[
    // Debian's busybox shell prefers its own applets (nc, ip) to what is on PATH, so that the shell is bash.
    ("bash", "bash"),
    ("conntrack", "conntrack"),
    ("curl", "curl"),
    ("dig", "bind9-dnsutils"),
    ("getent", "libc-bin"),
    ("host", "bind9-host"),
    ("ip", "iproute2"),
    ("iperf", "iperf"),
    ("ipcs", "util-linux"),
    ("nc.openbsd", "netcat-openbsd"),
    ("nft", "nftables"),
    ("nslookup", "bind9-dnsutils"),
    ("nsenter", "util-linux"),
    ("ss", "iproute2"),
    ("unshare", "util-linux"),
    // The static busybox's own dies of a signal when it is given a timeout.
    ("wget", "wget"),
];
/// What the C library loads at run time, so that ldd does not show it; not every version has them as files.
const NAME_SERVICES: &[&str] = &["libnss_dns.so.2", "libnss_files.so.2"];
const DIRECTORIES: &[&str] = &[
    "bin",
    "dev",
    "etc",
    "home",
    "lib",
    "lib64",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "usr/bin",
    "usr/local/bin",
    "usr/sbin",
    "var/run",
];
/// Users that specs name: the ones of the suite's own image.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      daemon:x:1:1:daemon:/:/bin/false\n\
                      user-defined-in-image:x:1000:1000::/home:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\n\
                     daemon:x:1:\n\
                     user-defined-in-image:x:1000:\n\
                     group-defined-in-image:x:50000:user-defined-in-image\n\
                     nogroup:x:65534:\n";

/// The complete userland.
pub(super) fn tree(inputs: &mut Inputs<'_>) -> Result<Tree> {
    let mut tree = Tree::default();
    for directory in DIRECTORIES {
        tree.directory(directory, 0o755);
    }
    for directory in ["tmp", "var/tmp"] {
        tree.directory(directory, 0o1777);
    }
    busybox(inputs, &mut tree)?;
    for (program, package) in PROGRAMS {
        let from = inputs.system(program, package)?;
        // Debian's alternatives have the variant in their name.
        let name = program.strip_suffix(".openbsd").unwrap_or(program);
        tree.program(&format!("bin/{name}"), &from);
        for library in inputs.libraries(&from)? {
            let path = library.to_str().context("a library's path is not UTF-8")?.to_owned();
            if !tree.has(&path) {
                tree.program(&path, &library);
            }
            let beside = |service: &&str| library.parent().map(|d| d.join(service)).filter(|p| p.is_file());
            if path.ends_with("/libc.so.6") {
                for service in NAME_SERVICES.iter().filter_map(beside) {
                    tree.program(service.to_str().context("a library's path is not UTF-8")?, &service);
                }
            }
        }
    }
    tree.link("bin/sh", "bash");
    for name in ["bash", "env", "sh"] {
        tree.link(&format!("usr/bin/{name}"), &format!("/bin/{name}"));
    }
    tree.link("usr/local/bin/iperf", "/bin/iperf");
    // Specs retry by themselves; a wget that retries too continues long after they have given up.
    tree.text("etc/wgetrc", "tries = 1\n");
    tree.text("etc/nsswitch.conf", "hosts: files dns\n");
    tree.text("etc/passwd", PASSWD);
    tree.text("etc/group", GROUP);
    Ok(tree)
}

/// The static busybox under the name of each of its applets.
fn busybox(inputs: &mut Inputs<'_>, tree: &mut Tree) -> Result<()> {
    let busybox = inputs.system("busybox", "busybox-static")?;
    if !libraries::closure(&busybox)?.is_empty() {
        bail!("{} needs shared libraries; install the package busybox-static", busybox.display());
    }
    tree.program("bin/busybox", &busybox);
    for applet in exec::output(exec::command(&busybox).arg("--list"))?.split_whitespace() {
        if applet != "busybox" {
            tree.link(&format!("bin/{applet}"), "/bin/busybox");
        }
    }
    Ok(())
}

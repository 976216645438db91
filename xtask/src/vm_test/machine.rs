//! One virtual machine: QEMU with software emulation, which needs no support by the processor. It sees this machine's files
//! (its changes stay in its memory) and runs one shell script.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::initramfs;
use crate::setup::kernel::Kernel;
use crate::{exec, paths};

/// Parameters of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) kernel: Kernel,
    /// One processor whose clock advances a nanosecond with each instruction, instead of two in real time.
    pub(super) count_instructions: bool,
    /// Time after which it is stopped.
    pub(super) limit: Duration,
}

/// Result of a script.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Its output.
    pub(super) output: String,
    /// Its exit code.
    pub(super) code: i32,
    /// Directory of the logs that it left.
    pub(super) kept: PathBuf,
}

/// Memory in megabytes.
const MEMORY: &str = "6144";
/// The least processor that this machine's programs need: emulation is slow, and slowest for wide vector instructions.
const PROCESSOR: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand";
const ARGUMENTS: &str = "console=ttyS0 loglevel=4 panic=-1 mitigations=off random.trust_cpu=on audit=0 selinux=0 \
                         apparmor=0 nowatchdog tsc=reliable net.ifnames=0";
/// Modules of a node with OVS's kernel datapath, and of the paths with which it is compared.
const MODULES: &str = "openvswitch vport_geneve geneve vxlan veth bridge nf_conntrack nf_conntrack_netlink nf_nat nf_tables nft_ct nft_nat nft_masq nft_chain_nat \
     nft_fib_inet sch_ingress cls_bpf tun 8021q bonding";

/// Factor for the time limits of the test bed.
const PATIENCE: u32 = 4;

impl Machine {
    /// Starts the machine, runs the script in the workspace's root, and prints its output. `None` if the machine ended
    /// before the script.
    pub(super) fn run(&self, script: &str) -> Result<Option<Outcome>> {
        let kind = if self.count_instructions { "-icount" } else { "" };
        let dir = paths::target().join("vm").join(format!("{}{kind}", self.kernel.line));
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        let (work, out) = (dir.join("initramfs"), dir.join("out"));
        fs::create_dir_all(out.join("keep")).with_context(|| format!("cannot create {}", out.display()))?;
        let archive = dir.join("initrd");
        initramfs::write(self.kernel, &work, &archive)?;
        fs::write(out.join("run"), Self::frame(script)?)?;
        let limit = self.limit.as_secs().to_string();
        let mut command = exec::command("timeout");
        command.args(["-k", "5", &limit, "qemu-system-x86_64", "-nodefaults", "-no-user-config"]);
        command.args(["-machine", "pc,usb=off,hpet=off", "-cpu", PROCESSOR, "-m", MEMORY]);
        if self.count_instructions {
            command.args(["-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0,sleep=off"]);
        } else {
            command.args(["-accel", "tcg,thread=multi,tb-size=512", "-smp", "2"]);
        }
        command.args(["-display", "none", "-no-reboot", "-nic", "none", "-device", "virtio-rng-pci"]);
        command.arg("-kernel").arg(self.kernel.image()?).arg("-initrd").arg(&archive);
        command.args(["-append", ARGUMENTS]);
        let modules = self.kernel.dir()?.join("lib/modules");
        for (tag, path, more) in [
            ("root", PathBuf::from("/"), ",readonly=on,multidevs=remap"),
            ("out", out.clone(), ""),
            ("modules", modules, ",readonly=on"),
        ] {
            let path = path.display();
            command
                .arg("-virtfs")
                .arg(format!("local,path={path},mount_tag={tag},security_model=none{more}"));
        }
        let console = dir.join("console");
        command.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.join("qemu.log"))?)
            .spawn()
            .context("cannot start QEMU")?;
        let pipe = child.stdout.take().context("no pipe")?;
        let mut output = String::new();
        for line in BufReader::new(pipe).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            exec::say(line);
            output.push_str(line);
            output.push('\n');
        }
        let ended = child.wait()?;
        let code = fs::read_to_string(out.join("code")).ok().and_then(|c| c.trim().parse().ok());
        fs::remove_dir_all(work)?;
        let Some(code) = code else {
            let read = |file| fs::read_to_string(dir.join(file)).unwrap_or_default();
            let (console, qemu) = (read("console"), read("qemu.log"));
            let last: Vec<&str> = console.lines().rev().take(20).collect();
            for line in last.into_iter().rev().chain(qemu.lines()) {
                exec::say(line);
            }
            // See timeout(1).
            if ended.code() == Some(124) {
                bail!("the machine was ended after {limit} s; see {}", dir.display());
            }
            return Ok(None);
        };
        Ok(Some(Outcome { output, code, kept: out.join("keep") }))
    }

    /// The commands of the machine's first shell: the script with a beginning and an end.
    fn frame(script: &str) -> Result<String> {
        let (root, cache) = (paths::root(), paths::cache()?);
        let path = std::env::var("PATH").unwrap_or_default();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        Ok(format!(
            "export PATH={} HOME={} SLIPSTREAM_CACHE={} SLIPSTREAM_RUN=/run/slipstream-testbed SLIPSTREAM_PATIENCE={PATIENCE}\n\
             ip link set lo up\n\
             for m in {MODULES}; do modprobe -q $m || echo \"vm: no module $m\" >/dev/console; done\n\
             stty -F /dev/ttyS1 -opost\n\
             cd {}\n\
             (\n{script}\n) >/dev/ttyS1 2>&1\n\
             code=$?\n\
             find {}/logs -mindepth 1 -maxdepth 1 -newer /run/vm/run -exec cp -r '{{}}' /run/vm/keep ';' 2>/dev/null\n\
             dmesg >/run/vm/keep/dmesg\n\
             echo $code >/run/vm/code\n\
             sync\n\
             busybox poweroff -f\n",
            quoted(&path),
            quoted(&paths::home()?.display().to_string()),
            quoted(&cache.display().to_string()),
            quoted(&root.display().to_string()),
            quoted(&cache.display().to_string()),
        ))
    }
}

//! The initial file system of the kernel: busybox, a script, and the modules that give access to this machine's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::setup::kernel::Kernel;
use crate::{exec, paths};

const SCRIPT: &str = include_str!("init.sh");
/// Modules that the script needs before it has access to those of the kernel's package.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng"];

/// Writes the archive for a kernel to `file`; `work` is an empty directory.
pub(super) fn write(kernel: Kernel, work: &Path, file: &Path) -> Result<()> {
    for dir in ["bin", "modules", "proc", "sys", "dev", "lower", "changes", "new"] {
        fs::create_dir_all(work.join(dir))?;
    }
    let busybox = paths::which("busybox").context("busybox is not on PATH")?;
    fs::copy(busybox, work.join("bin/busybox"))?;
    let init = work.join("init");
    fs::write(&init, SCRIPT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let mut order = String::new();
    for module in modules(kernel)? {
        let name = module.file_name().and_then(|n| n.to_str()).context("a module has a name")?;
        let name = [".xz", ".zst"].iter().fold(name, |n, suffix| n.strip_suffix(suffix).unwrap_or(n));
        fs::write(work.join("modules").join(name), uncompressed(&module)?)?;
        order += &format!("{name}\n");
    }
    fs::write(work.join("modules/order"), order)?;
    let names = exec::output(exec::command("find").arg(".").current_dir(work))?;
    let mut child = exec::command("busybox")
        .args(["cpio", "-o", "-H", "newc"])
        .current_dir(work)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(file)?)
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start busybox cpio")?;
    std::io::Write::write_all(&mut child.stdin.take().context("no pipe")?, names.as_bytes())?;
    let status = child.wait()?;
    if !status.success() {
        bail!("busybox cpio: {status}");
    }
    Ok(())
}

/// The files of [`MODULES`] and of their dependencies, in the order in which they must be loaded.
fn modules(kernel: Kernel) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        let said = exec::output(exec::command("modprobe").arg("-d").arg(kernel.dir()?).args([
            "-S",
            &kernel.release()?,
            "--show-depends",
            module,
        ]))?;
        // `modprobe` prints `insmod FILE`, or `builtin NAME` for a module that the kernel has built in.
        let new = said.lines().filter_map(|l| l.strip_prefix("insmod ")).map(|f| PathBuf::from(f.trim()));
        for file in new {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn uncompressed(module: &Path) -> Result<Vec<u8>> {
    let program = match module.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(module).with_context(|| format!("cannot read {}", module.display())),
    };
    let out = exec::command(program).arg("-dc").arg(module).output()?;
    if !out.status.success() {
        bail!("{program} -dc {}: {}", module.display(), out.status);
    }
    Ok(out.stdout)
}

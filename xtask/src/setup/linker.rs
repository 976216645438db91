//! bpf-linker, which turns LLVM bitcode into an eBPF object.

use anyhow::{Context, Result};

use super::Step;
use crate::{exec, paths};

/// Version that fits the LLVM of the compiler that builds the programs.
const VERSION: &str = "0.13.0";

pub(super) struct BpfLinker;

impl Step for BpfLinker {
    fn name(&self) -> String {
        format!("bpf-linker {VERSION}")
    }

    fn missing(&self) -> Result<Vec<String>> {
        let there = paths::which("bpf-linker")
            .and_then(|p| exec::output(exec::command(p).arg("--version")).ok())
            .is_some_and(|v| v.split_whitespace().any(|w| w == VERSION));
        Ok(if there { Vec::new() } else { vec![format!("bpf-linker {VERSION} (cargo install)")] })
    }

    fn install(&self) -> Result<()> {
        // Installed with the toolchain of this workspace: the default of a home directory may be too old.
        exec::run(
            exec::cargo()
                .env("LLVM_PREFIX", "/usr/lib/llvm-22")
                .args([
                    "install",
                    "bpf-linker",
                    "--version",
                    VERSION,
                    "--no-default-features",
                    "--features",
                    "llvm-22",
                ])
                .args(["--locked", "--force", "--root"])
                .arg(paths::home()?.join(".cargo")),
        )
        .context("cargo install bpf-linker")
    }
}

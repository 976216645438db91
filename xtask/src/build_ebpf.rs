//! `cargo xtask build-ebpf`: compiles the eBPF programs.

/// Compiles the eBPF programs for the kernel.
pub(crate) fn run() -> anyhow::Result<()> {
    anyhow::bail!("the eBPF build is not in the tree yet")
}

//! Builds the eBPF object with a compiler that has a core library for `bpfel-unknown-none`, and checks the programs with the clippy of
//! that compiler.
//!
//! Not part of a crate: node-agent's build script, that of perf-tests and `cargo xtask build-ebpf` include this file, so that there
//! is one way to build an object. It uses the standard library only.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

/// Set to 1: build no object (the agent then runs on the plain OVS path).
pub(crate) const SKIP: &str = "SLIPSTREAM_SKIP_EBPF";

/// Name of a rustup toolchain to use instead of the system's compiler, for example `nightly`. It needs `rust-src`.
pub(crate) const TOOLCHAIN: &str = "EBPF_TOOLCHAIN";

/// The compilation target. Both ends of a map are on one machine: little endian, as every machine we build for.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// File name of the agent's object.
pub(crate) const OBJECT: &str = "slipstream-ebpf";

/// Cargo and rustc of a distribution (Debian's cargo-web, rustc-web).
const SYSTEM_CARGO: &str = "/usr/bin/cargo";
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";
/// Clippy of the same distribution (Debian's rust-web-clippy).
const SYSTEM_CLIPPY: &str = "/usr/bin/cargo-clippy";

/// Why there is no object.
#[derive(Debug)]
pub(crate) enum NoObject {
    /// [`SKIP`] is set.
    Skipped,
    /// Something that is needed is not installed.
    Missing(String),
    /// The build was tried and failed; the compiler's last words.
    Failed(String),
}

impl fmt::Display for NoObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skipped => write!(f, "{SKIP} is set"),
            Self::Missing(what) => write!(f, "{what}"),
            Self::Failed(text) => write!(f, "the eBPF build failed:\n{text}"),
        }
    }
}

/// Files whose appearance or change should make a build script run again.
pub(crate) fn watched() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from(SYSTEM_CARGO), PathBuf::from(SYSTEM_RUSTC)];
    files.extend(bpf_linker().or_else(|| cargo_bin().map(|dir| dir.join("bpf-linker"))));
    files
}

/// Builds the object of the binary `name`; `workspace` is the directory of the workspace's Cargo.toml, `target_dir` a directory of its
/// own, as the outer cargo holds the lock on the usual one. Returns the object's path.
pub(crate) fn build(name: &str, workspace: &Path, target_dir: &Path) -> Result<PathBuf, NoObject> {
    if env::var_os(SKIP).is_some_and(|value| value == "1") {
        return Err(NoObject::Skipped);
    }
    let linker =
        bpf_linker().ok_or_else(|| missing("bpf-linker is not on PATH nor in cargo's bin directory"))?;
    let mut command = match toolchain() {
        Some(name) => rustup_cargo(&name),
        None => system_cargo(SYSTEM_CARGO)?,
    };
    command.arg("build");
    compiled_for_bpf(&mut command, workspace, target_dir);
    command.args(["--bin", name]).env("PATH", path_with(linker.parent()));
    run(&mut command)?;
    Ok(target_dir.join(TARGET).join("release").join(name))
}

/// Runs clippy on all programs as they are compiled for the kernel: the host's sees an empty binary. Warnings are errors.
#[allow(dead_code, reason = "build scripts do not lint")]
pub(crate) fn clippy(workspace: &Path, target_dir: &Path) -> Result<(), NoObject> {
    if env::var_os(SKIP).is_some_and(|value| value == "1") {
        return Err(NoObject::Skipped);
    }
    let mut command = match toolchain() {
        Some(name) => {
            let mut command = rustup_cargo(&name);
            // Clippy does not hand on what is asked of cargo in front of it.
            command.env("CARGO_UNSTABLE_BUILD_STD", "core");
            command
        }
        // Cargo would prefer the one in its own bin directory, which is rustup's.
        None => system_cargo(SYSTEM_CLIPPY)?,
    };
    command.arg("clippy");
    compiled_for_bpf(&mut command, workspace, target_dir);
    command.args(["--bins", "--", "-D", "warnings"]);
    run(&mut command)
}

fn toolchain() -> Option<String> {
    env::var(TOOLCHAIN).ok().filter(|name| !name.is_empty())
}

/// How the programs are compiled, whatever is done with them.
fn compiled_for_bpf(command: &mut Command, workspace: &Path, target_dir: &Path) {
    command
        .current_dir(workspace)
        .args(["--quiet", "--release", "--package", "ebpf", "--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir)
        // v3: with 32-bit arithmetic and jumps, which every kernel has that the programs run on (Linux 5.1).
        .env(
            "RUSTFLAGS",
            format!(
                "--cfg bpf_target_arch=\"{}\" -Cdebuginfo=2 -Clink-arg=--btf -Ctarget-cpu=v3",
                env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| env::consts::ARCH.to_owned())
            ),
        )
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        // Procedural macros of the build: hundreds of megabytes of it.
        .env("CARGO_PROFILE_RELEASE_BUILD_OVERRIDE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
}

fn run(command: &mut Command) -> Result<(), NoObject> {
    let output = command.output().map_err(|error| missing(format!("cannot start {command:?}: {error}")))?;
    if !output.status.success() {
        return Err(NoObject::Failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(())
}

fn missing(what: impl Into<String>) -> NoObject {
    NoObject::Missing(what.into())
}

/// A cargo command free of what an outer cargo put into our environment for its own build.
#[expect(clippy::disallowed_methods, reason = "a build tool that starts the compiler")]
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let outer = text.starts_with("CARGO_")
            && !matches!(&*text, "CARGO_HOME" | "CARGO_NET_OFFLINE" | "CARGO_HTTP_CAINFO")
            && !text.starts_with("CARGO_REGISTR")
            && !text.starts_with("CARGO_SOURCE_");
        if outer
            || matches!(
                &*text,
                "CARGO"
                    | "RUSTC"
                    | "RUSTC_WRAPPER"
                    | "RUSTC_WORKSPACE_WRAPPER"
                    | "RUSTFLAGS"
                    | "RUSTDOC"
                    | "RUSTUP_TOOLCHAIN"
                    | "TARGET"
                    | "HOST"
                    | "OUT_DIR"
                    | "PROFILE"
                    | "OPT_LEVEL"
                    | "DEBUG"
                    | "NUM_JOBS"
            )
        {
            command.env_remove(&name);
        }
    }
    command
}

/// The distribution's cargo, or its clippy in place of `cargo`, with its own rustc.
fn system_cargo(program: &str) -> Result<Command, NoObject> {
    for tool in [program, SYSTEM_CARGO, SYSTEM_RUSTC] {
        if !Path::new(tool).is_file() {
            return Err(missing(format!("{tool} is not installed")));
        }
    }
    let core = clean(SYSTEM_RUSTC)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if !core.is_some_and(|dir| dir.is_dir()) {
        return Err(missing(format!("{SYSTEM_RUSTC} has no core library for {TARGET}")));
    }
    let mut command = clean(program);
    // aya-ebpf uses one unstable feature; naming the crate allows it there and nowhere else.
    command.env("CARGO", SYSTEM_CARGO).env("RUSTC", SYSTEM_RUSTC).env("RUSTC_BOOTSTRAP", "aya_ebpf");
    Ok(command)
}

/// A rustup toolchain with its sources, from which core is built.
fn rustup_cargo(toolchain: &str) -> Command {
    let mut command = clean("rustup");
    command.args(["run", toolchain, "cargo", "-Zbuild-std=core"]);
    command
}

fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))
        .map(|home| home.join("bin"))
}

fn bpf_linker() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(cargo_bin()).map(|dir| dir.join("bpf-linker")).find(|file| file.is_file())
}

fn path_with(dir: Option<&Path>) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = dir.map(Path::to_path_buf).into_iter().chain(env::split_paths(&path));
    env::join_paths(dirs).unwrap_or(path)
}

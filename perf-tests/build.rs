//! Builds the eBPF programs that the benchmark of the fast path compares with; an empty file where they cannot be built.

use std::{env, error::Error, fs, path::Path};

#[path = "../ebpf/build/object.rs"]
#[allow(dead_code, reason = "the agent's object is not built here")]
mod object;

const NAME: &str = "slipstream-bench-ebpf";

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let out = Path::new(&out);
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let workspace = Path::new(&manifest).parent().ok_or("perf-tests is in a workspace")?;

    let mut directives = String::new();
    for name in [object::SKIP, object::TOOLCHAIN] {
        directives += &format!("cargo::rerun-if-env-changed={name}\n");
    }
    for path in ["ebpf/src/bench.rs", "ebpf/build", "ebpf/Cargo.toml"] {
        directives += &format!("cargo::rerun-if-changed={}\n", workspace.join(path).display());
    }
    for path in object::watched() {
        directives += &format!("cargo::rerun-if-changed={}\n", path.display());
    }

    let target = out.join(NAME);
    match object::build(NAME, workspace, &out.join("ebpf-target")) {
        Ok(built) => {
            fs::copy(&built, &target)?;
        }
        Err(object::NoObject::Failed(text)) => return Err(text.into()),
        Err(why) => {
            fs::write(&target, [])?;
            directives += &format!("cargo::warning=no eBPF programs to compare with ({why})\n");
        }
    }
    std::io::Write::write_all(&mut std::io::stdout(), directives.as_bytes())?;
    Ok(())
}

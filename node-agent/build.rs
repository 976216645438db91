//! Builds the eBPF object and puts it where `bpf::object` includes it; an empty file where it cannot be built, so
//! that checking and testing everything else works on any machine. An agent with the empty file says so and runs on
//! the plain OVS path.

use std::{env, error::Error, fs, path::Path};

#[path = "../ebpf/build/object.rs"]
mod object;

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let out = Path::new(&out);
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let workspace = Path::new(&manifest).parent().ok_or("node-agent is in a workspace")?;

    let mut directives = String::new();
    for name in [object::SKIP, object::TOOLCHAIN] {
        directives += &format!("cargo::rerun-if-env-changed={name}\n");
    }
    for path in ["ebpf/src", "ebpf/build", "ebpf/Cargo.toml"] {
        directives += &format!("cargo::rerun-if-changed={}\n", workspace.join(path).display());
    }
    for path in object::watched() {
        directives += &format!("cargo::rerun-if-changed={}\n", path.display());
    }

    let target = out.join(object::OBJECT);
    match object::build(object::OBJECT, workspace, &out.join("ebpf-target")) {
        Ok(built) => {
            fs::copy(&built, &target)?;
        }
        Err(object::NoObject::Failed(text)) => return Err(text.into()),
        Err(why) => {
            fs::write(&target, [])?;
            directives += &format!("cargo::warning=no eBPF object ({why}): run `cargo xtask setup`\n");
        }
    }
    std::io::Write::write_all(&mut std::io::stdout(), directives.as_bytes())?;
    Ok(())
}

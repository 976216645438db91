//! Programs of the system and the shared libraries that they need.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Result, bail};

use crate::exec;

/// The first program of that name on `PATH` or among the administrator's programs.
pub(super) fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|d| d.join(program))
        .find_map(|p| fs::canonicalize(p).ok())
}

/// Every library that the loader would load for a program, the loader included; none for a static one.
pub(super) fn closure(program: &Path) -> Result<Vec<PathBuf>> {
    let said = exec::capture(exec::command("ldd").arg(program), "")?;
    if !said.status.success() {
        if said.stderr.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("ldd {}: {}", program.display(), said.stderr.trim());
    }
    parse(&said.stdout).map_err(|library| {
        anyhow::anyhow!("{} needs {library}, which is not on this machine", program.display())
    })
}

/// The paths in what ldd prints; a library that it did not find is the error.
fn parse(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, path) = line.split_once(" => ").unwrap_or((line, line));
        if path.starts_with("not found") {
            return Err(name.to_owned());
        }
        let path = path.split(" (0x").next().unwrap_or(path);
        // What the kernel maps (linux-vdso) has no path.
        if path.starts_with('/') {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_and_the_vdso_is_not_one() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths: Vec<_> = parse(text).unwrap();
        assert_eq!(
            paths,
            [Path::new("/lib/x86_64-linux-gnu/libc.so.6"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
        assert_eq!(parse("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_missing_library_is_named() {
        assert_eq!(parse("\tlibx.so.1 => not found\n").unwrap_err(), "libx.so.1");
    }
}

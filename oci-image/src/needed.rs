//! What the loader would load for a program, by the program's own words, whatever machine this is.

use std::path::Path;

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// What a program or library asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Names of shared libraries.
    pub libraries: Vec<String>,
    /// Path of the loader; a library has none, nor has a static program.
    pub loader: Option<String>,
}

/// Reads it from a file; a file that is no ELF, such as a script, needs nothing.
///
/// # Errors
/// The file cannot be read, or is a damaged ELF.
pub fn of(path: &Path) -> Result<Needs> {
    let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    of_bytes(&data).with_context(|| format!("{}", path.display()))
}

fn of_bytes(data: &[u8]) -> Result<Needs> {
    if !data.starts_with(b"\x7fELF") {
        return Ok(Needs::default());
    }
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut needs = Needs::default();
    for program in header.program_headers(endian, data)? {
        if let Some(loader) = program.interpreter(endian, data)? {
            needs.loader = Some(text(loader));
        }
    }
    let sections = header.sections(endian, data)?;
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.tag32(endian).map(i64::from) == Some(DT_NEEDED)) {
            needs.libraries.push(text(entry.string(endian, strings)?));
        }
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader_and_libraries() {
        // This test's own program.
        let needs = of(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        assert!(needs.loader.unwrap().contains("ld-linux"));
    }

    #[test]
    fn a_script_needs_nothing_and_a_damaged_program_is_an_error() {
        assert_eq!(of_bytes(b"#!/bin/sh\n").unwrap(), Needs::default());
        assert!(of_bytes(b"\x7fELF\x02\x01\x01").is_err());
    }
}

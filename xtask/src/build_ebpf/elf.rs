//! Lists the programs and maps of an eBPF object.

use anyhow::{Context, Result};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

/// The contents of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Programs with their instructions, by name.
    pub(super) programs: Vec<(String, u64)>,
    /// Names of the maps.
    pub(super) maps: Vec<String>,
    /// Instructions of functions that several programs call.
    pub(super) shared: u64,
}

/// Bytes of an eBPF instruction.
const INSTRUCTION: u64 = 8;

/// Lists an object's contents.
pub(super) fn contents(bytes: &[u8]) -> Result<Contents> {
    let file = object::File::parse(bytes)?;
    let mut contents = Contents::default();
    for symbol in file.symbols() {
        let Some(index) = symbol.section_index() else { continue };
        let section = file.section_by_index(index)?;
        let section = section.name()?;
        let name = symbol.name().context("name of a symbol")?.to_owned();
        let instructions = symbol.size() / INSTRUCTION;
        match (symbol.kind(), section) {
            (SymbolKind::Text, ".text") => contents.shared += instructions,
            (SymbolKind::Text, _) => contents.programs.push((name, instructions)),
            (SymbolKind::Data, "maps" | ".maps") => contents.maps.push(name),
            _ => {}
        }
    }
    contents.programs.sort();
    contents.maps.sort();
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_object_is_an_error_at_any_length() {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0xff);
        for length in 0..bytes.len() {
            assert!(contents(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(contents(&bytes).is_err());
    }
}

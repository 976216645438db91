//! Just enough of ELF to list the programs and maps of an eBPF object (64 bit, little endian; System V ABI).

use anyhow::{Context, Result, bail};

/// What is in an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Programs with their instructions, by name.
    pub(super) programs: Vec<(String, u64)>,
    /// Names of the maps.
    pub(super) maps: Vec<String>,
    /// Instructions of functions that several programs call.
    pub(super) shared: u64,
}

/// An eBPF instruction has 8 bytes.
const INSTRUCTION: u64 = 8;
const SYMBOL_TABLE: u32 = 2;
const SYMBOL_LEN: u64 = 24;
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;

struct Section {
    name: u32,
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
}

/// Lists an object's contents.
pub(super) fn contents(bytes: &[u8]) -> Result<Contents> {
    if at::<6>(bytes, 0)? != *b"\x7fELF\x02\x01" {
        bail!("not a 64-bit little-endian ELF file");
    }
    let sections = sections(bytes)?;
    let names =
        sections.get(usize::from(u16_at(bytes, 62)?)).context("no section with the sections' names")?;
    let table = sections.iter().find(|section| section.kind == SYMBOL_TABLE).context("no symbols")?;
    let strings = section(&sections, table.link)?;
    let mut contents = Contents::default();
    for symbol in 0..table.size / SYMBOL_LEN {
        let entry = table.offset + symbol * SYMBOL_LEN;
        let [info] = at::<1>(bytes, entry + 4)?;
        let index = u16_at(bytes, entry + 6)?;
        let Ok(home) = section(&sections, index.into()) else { continue };
        let home = text(bytes, names.offset + u64::from(home.name))?;
        let name = text(bytes, strings.offset + u64::from(u32_at(bytes, entry)?))?;
        let instructions = u64_at(bytes, entry + 16)? / INSTRUCTION;
        match (info & 0xf, home.as_str()) {
            (FUNCTION, ".text") => contents.shared += instructions,
            (FUNCTION, _) => contents.programs.push((name, instructions)),
            (OBJECT, "maps" | ".maps") => contents.maps.push(name),
            _ => {}
        }
    }
    contents.programs.sort();
    contents.maps.sort();
    Ok(contents)
}

fn sections(bytes: &[u8]) -> Result<Vec<Section>> {
    let (offset, size, count) = (u64_at(bytes, 40)?, u16_at(bytes, 58)?, u16_at(bytes, 60)?);
    (0..u64::from(count))
        .map(|index| {
            let header = index
                .checked_mul(size.into())
                .and_then(|into| offset.checked_add(into))
                .context("section headers are out of bounds")?;
            Ok(Section {
                name: u32_at(bytes, header)?,
                kind: u32_at(bytes, header + 4)?,
                offset: u64_at(bytes, header + 24)?,
                size: u64_at(bytes, header + 32)?,
                link: u32_at(bytes, header + 40)?,
            })
        })
        .collect()
}

fn section(sections: &[Section], index: u32) -> Result<&Section> {
    usize::try_from(index)
        .ok()
        .and_then(|index| sections.get(index))
        .with_context(|| format!("no section {index}"))
}

fn text(bytes: &[u8], offset: u64) -> Result<String> {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|start| bytes.get(start..))
        .context("a name is out of bounds")?;
    let end = rest.iter().position(|byte| *byte == 0).context("a name does not end")?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

fn at<const N: usize>(bytes: &[u8], offset: u64) -> Result<[u8; N]> {
    let start = usize::try_from(offset).ok();
    let end = start.and_then(|start| start.checked_add(N));
    let part = start.zip(end).and_then(|(start, end)| bytes.get(start..end));
    part.and_then(|part| part.try_into().ok())
        .with_context(|| format!("the file ends before byte {offset} + {N}"))
}

fn u16_at(bytes: &[u8], offset: u64) -> Result<u16> {
    at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: u64) -> Result<u32> {
    at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: u64) -> Result<u64> {
    at(bytes, offset).map(u64::from_le_bytes)
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

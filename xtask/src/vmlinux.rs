//! Extracts the kernel from a `bzImage`: a machine without hardware support that starts it as an ELF file by its PVH entry
//! needs neither the firmware nor the decompression.

use std::io::Write;
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::exec;

/// Offsets in the setup header, see Documentation/arch/x86/boot.rst of Linux.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// First bytes of payloads, and the program that decompresses them. All but gzip's are followed by their size in 4 bytes.
const COMPRESSIONS: &[(&[u8], &str, usize)] =
    &[(b"\xfd7zXZ\0", "xz", 4), (b"\x28\xb5\x2f\xfd", "zstd", 4), (b"\x1f\x8b", "gzip", 0)];

/// The uncompressed kernel, an ELF file.
pub(crate) fn extract(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image)?;
    let Some((_, program, tail)) = COMPRESSIONS.iter().find(|(magic, ..)| payload.starts_with(magic)) else {
        bail!("the kernel is compressed in an unknown way: {:02x?}", payload.get(..8));
    };
    let payload = &payload[..payload.len().saturating_sub(*tail)];
    let mut child = exec::command(program)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut input = child.stdin.take().context("no pipe")?;
    let (written, out) = thread::scope(|scope| {
        let writer = scope.spawn(move || input.write_all(payload));
        let out = child.wait_with_output();
        (writer.join(), out)
    });
    let out = out?;
    if !out.status.success() || !matches!(written, Ok(Ok(()))) {
        bail!("{program} could not decompress the kernel: {}", out.status);
    }
    if !out.stdout.starts_with(b"\x7fELF") {
        bail!("what is in the kernel image is no ELF file");
    }
    Ok(out.stdout)
}

/// The compressed part of the image.
fn payload(image: &[u8]) -> Result<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        usize::try_from(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?)).ok()
    };
    if image.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        bail!("no Linux boot header");
    }
    let sectors = match image[SETUP_SECTORS] {
        0 => 4,
        n => usize::from(n),
    };
    let found = word(PAYLOAD_OFFSET).zip(word(PAYLOAD_LENGTH)).and_then(|(offset, length)| {
        let begin = (sectors + 1) * 512 + offset;
        image.get(begin..begin.checked_add(length)?)
    });
    found.context("the image is shorter than its header says")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * 512];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&8_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length);
        image.extend([0; 8]);
        image.extend(payload);
        image
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        assert_eq!(payload(&image(b"abc")).unwrap(), b"abc");
    }

    #[test]
    fn a_file_that_is_no_kernel_or_cut_off_is_refused() {
        assert!(payload(b"short").is_err());
        let mut cut = image(b"abc");
        cut.pop();
        assert!(payload(&cut).is_err());
        assert!(format!("{:#}", extract(&image(b"12345678")).unwrap_err()).contains("unknown way"));
    }
}

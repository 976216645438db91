//! Lines of JSON, bounded in length, so that a peer that never ends one takes no memory.

use std::io::{BufRead, Read, Write};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line, in bytes. A report of an hour of datagrams is 250 kB.
const MOST: u64 = 1 << 20;

/// Reads one line.
///
/// # Errors
/// The connection ended, is too slow, or the line is too long or no such message.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<T> {
    let mut line = Vec::new();
    from.by_ref().take(MOST).read_until(b'\n', &mut line).context("cannot read")?;
    if line.last() != Some(&b'\n') {
        bail!(if line.is_empty() { "the connection was closed" } else { "no line of JSON" });
    }
    serde_json::from_slice(&line).context("no message of this protocol")
}

/// Writes one line.
///
/// # Errors
/// The connection ended or is too slow.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line).context("cannot write")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_and_garbage_is_an_error() {
        let mut line = Vec::new();
        write(&mut line, &7).unwrap();
        assert_eq!(read::<u32>(&mut line.as_slice()).unwrap(), 7);
        for wrong in [&b""[..], b"7", b"x\n", b"\xff\xfe\n"] {
            assert!(read::<u32>(&mut &wrong[..]).is_err(), "{wrong:?}");
        }
        let endless = vec![b'1'; 2 << 20];
        assert!(read::<u32>(&mut endless.as_slice()).is_err());
    }
}

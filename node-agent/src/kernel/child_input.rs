//! Standard input of a child process that replaces state by what it reads.

use std::fs::File;
use std::io::{self, Seek, Write};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file in memory with all of `text`, read from its beginning. Not a pipe: a child takes the end of one for the end of the text, and if
/// this process is killed while it writes, applies a part, or deletes everything.
///
/// # Errors
/// No memory, or no file descriptor, is left.
pub fn complete(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"input", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_whole_text_is_there_before_anybody_reads() {
        let text = "flow\n".repeat(100_000);
        let mut read = String::new();
        complete(&text).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }
}

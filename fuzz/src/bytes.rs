//! Reads values from the fuzzer's bytes, and cuts a stream into pieces.

/// Takes numbers from the front; after the end all bytes are 0.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        out[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}

/// Cuts a stream into pieces whose lengths depend on `seed`: mostly a few bytes, sometimes many.
pub(crate) fn pieces(stream: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = stream;
    let mut state = u32::from(seed).wrapping_mul(2_654_435_761) | 1;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // The generator of Numerical Recipes; its upper bits are the more random ones.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = match state >> 24 {
            0..=191 => 1 + (state >> 16 & 7),
            _ => 1 + (state >> 16 & 255),
        };
        let (piece, after) = rest.split_at(rest.len().min(usize::try_from(length).unwrap()));
        rest = after;
        Some(piece)
    })
}

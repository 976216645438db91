//! Direct access to the front of a packet, as the flow cache's parsers use it.

/// The front of a packet, from its Ethernet header on. Numbers are in wire order (see [`crate::layout::flow`]).
///
/// [`Window::has`] is asked before the others: they may be called only for bytes in front of an end that it confirmed.
pub trait Window {
    /// Whether the window has `end` bytes.
    fn has(&self, end: u32) -> bool;
    /// The byte at an offset.
    fn u8(&self, at: u32) -> u8;
    /// Two bytes at an even offset.
    fn u16(&self, at: u32) -> u16;
    /// Four bytes at an even offset.
    fn u32(&self, at: u32) -> u32;
}

/// For tests and user space. Bytes that are not there are 0.
impl Window for &[u8] {
    fn has(&self, end: u32) -> bool {
        usize::try_from(end).is_ok_and(|end| end <= self.len())
    }

    fn u8(&self, at: u32) -> u8 {
        usize::try_from(at).ok().and_then(|at| self.get(at)).copied().unwrap_or(0)
    }

    fn u16(&self, at: u32) -> u16 {
        u16::from_ne_bytes([self.u8(at), self.u8(at.wrapping_add(1))])
    }

    fn u32(&self, at: u32) -> u32 {
        let byte = |more| self.u8(at.wrapping_add(more));
        u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)])
    }
}

/// The first and the last four bytes of eight.
#[inline(always)]
pub const fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

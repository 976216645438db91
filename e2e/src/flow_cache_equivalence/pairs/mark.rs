//! What tells the packets of the ways apart wherever they are seen, whatever was translated: eight bytes in front of the payload.

/// The packet's flow, direction and variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::flow_cache_equivalence) struct Mark {
    /// The flow.
    pub(in crate::flow_cache_equivalence) flow: u8,
    /// From the server.
    pub(in crate::flow_cache_equivalence) back: bool,
    /// Which of the flow's packets.
    pub(in crate::flow_cache_equivalence) variant: u8,
}

/// The first and the last bytes; between them are flow, direction and variant.
const HEAD: [u8; 3] = [0xe9, 0x5a, 0x70];
const TAIL: [u8; 2] = [0xa5, 0x1e];
/// Bytes of it.
pub(in crate::flow_cache_equivalence) const LENGTH: usize = 8;

impl Mark {
    /// As it is in a payload.
    pub(in crate::flow_cache_equivalence) fn to_bytes(self) -> [u8; LENGTH] {
        let ([a, b, c], [y, z]) = (HEAD, TAIL);
        [a, b, c, self.flow, self.back.into(), self.variant, y, z]
    }

    /// A payload of this length, at least that of the mark, which begins with it.
    pub(in crate::flow_cache_equivalence) fn payload(self, length: usize) -> Vec<u8> {
        let filler = (0..u8::MAX).cycle().take(length.saturating_sub(LENGTH));
        self.to_bytes().into_iter().chain(filler).collect()
    }

    /// The first one in a frame, behind whatever headers.
    pub(in crate::flow_cache_equivalence) fn find(frame: &[u8]) -> Option<Self> {
        frame.windows(LENGTH).find_map(|window| match window {
            [a, b, c, flow, back @ (0 | 1), variant, y, z] if [*a, *b, *c] == HEAD && [*y, *z] == TAIL => {
                Some(Self { flow: *flow, back: *back == 1, variant: *variant })
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_behind_any_headers_and_nothing_is_found_in_others() {
        let mark = Mark { flow: 7, back: true, variant: 200 };
        for length in [0, 8, 9, 1000] {
            let payload = mark.payload(length);
            assert_eq!(payload.len(), length.max(LENGTH));
            let frame: Vec<u8> = (0..54).chain(payload).collect();
            assert_eq!(Mark::find(&frame), Some(mark));
        }
        assert_eq!(Mark::find(&mark.to_bytes()[1..]), None);
        let mut other = mark.to_bytes();
        other[4] = 2;
        assert_eq!(Mark::find(&other), None);
    }
}

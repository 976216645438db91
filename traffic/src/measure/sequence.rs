//! Numbers of datagrams as they come: which are new, which came twice, which out of order.
//!
//! A datagram is reordered if its number is lower than the next one expected, which is one more than the highest that has come
//! (RFC 4737, section 3.3); duplicates are taken out first. What was lost is known when the sender tells how many it sent.

/// Numbers that are remembered to tell a duplicate from one that is late.
const WINDOW: u64 = 1 << 16;
const WORD: u64 = 64;

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    InOrder,
    Reordered,
    Duplicate,
}

/// The numbers of one flow.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// One more than the highest.
    next: u64,
    /// A bit for each of the last numbers.
    seen: Vec<u64>,
}

impl Default for Sequence {
    fn default() -> Self {
        Self { next: 0, seen: vec![0; usize::try_from(WINDOW / WORD).unwrap_or(0)] }
    }
}

impl Sequence {
    /// Notes a number. One that is too old to be remembered counts as reordered.
    pub(crate) fn arrived(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            // Those between were not seen yet.
            for skipped in self.next.max(number.saturating_sub(WINDOW - 1))..number {
                self.set(skipped, false);
            }
            self.set(number, true);
            self.next = number + 1;
            return Arrival::InOrder;
        }
        if self.next - number > WINDOW {
            return Arrival::Reordered;
        }
        if self.is_set(number) {
            return Arrival::Duplicate;
        }
        self.set(number, true);
        Arrival::Reordered
    }

    fn place(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        (usize::try_from(at / WORD).unwrap_or(0), 1 << (at % WORD))
    }

    fn set(&mut self, number: u64, seen: bool) {
        let (word, bit) = Self::place(number);
        if seen {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }

    fn is_set(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.seen[word] & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(numbers: impl IntoIterator<Item = u64>) -> [usize; 3] {
        let mut sequence = Sequence::default();
        let arrivals: Vec<_> = numbers.into_iter().map(|number| sequence.arrived(number)).collect();
        [Arrival::InOrder, Arrival::Reordered, Arrival::Duplicate]
            .map(|kind| arrivals.iter().filter(|arrival| **arrival == kind).count())
    }

    #[test]
    fn lost_numbers_are_neither_reordered_nor_duplicates() {
        assert_eq!(count((0..1000).filter(|n| n % 10 != 3)), [900, 0, 0]);
    }

    #[test]
    fn the_example_of_rfc_4737_section_11_4_1() {
        // Packets sent 1 to 10, arriving 1 2 3 7 8 9 10 4 5 6: three are reordered.
        assert_eq!(count([1, 2, 3, 7, 8, 9, 10, 4, 5, 6]), [7, 3, 0]);
        // One early packet makes those behind it late: 4 before 2 and 3.
        assert_eq!(count([1, 4, 2, 3, 5]), [3, 2, 0]);
    }

    #[test]
    fn a_number_that_comes_again_is_a_duplicate_whether_late_or_not() {
        assert_eq!(count([0, 0, 1, 3, 2, 2, 3]), [3, 1, 3]);
    }

    #[test]
    fn the_window_wraps_without_mistaking_new_numbers() {
        assert_eq!(count(0..200_000), [200_000, 0, 0]);
        assert_eq!(count((0..70_000).chain([69_999, 70_010, 70_005, 1])), [70_001, 2, 1]);
        // A jump of more than the window forgets everything before.
        assert_eq!(count([5, 1 << 39, (1 << 39) - 5, 5]), [2, 2, 0]);
    }
}

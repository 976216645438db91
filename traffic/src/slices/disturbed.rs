//! Which slices were disturbed by others.
//!
//! An end waits for its CPU also when nobody else is there: the kernel's own work for the path runs on it, and the other end may share
//! it. That part is much the same in all slices of a path. So a slice is disturbed when it waited for more than its path usually
//! does.

use super::Slice;
use crate::statistics::median;

/// What a slice may wait more than the median of its path, as a part of its length.
const MORE: f64 = 0.02;

/// For each slice whether it was disturbed.
pub(super) fn marks(slices: &[Slice]) -> Vec<bool> {
    let usual = median(&mut slices.iter().map(|slice| slice.away).collect::<Vec<_>>()).unwrap_or(0.0);
    slices.iter().map(|slice| slice.away > usual + MORE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_always_waits_is_no_disturbance() {
        let slices = [0.30, 0.31, 0.29, 0.35, 0.30].map(|away| Slice { away, ..Slice::default() });
        assert_eq!(marks(&slices), [false, false, false, true, false]);
        assert_eq!(marks(&[]), [false; 0]);
    }
}

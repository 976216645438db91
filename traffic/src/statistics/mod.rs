//! Medians with intervals, ratios of neighbouring slices, and what they say about a goal. Pure.

mod change;
mod estimate;
mod pairs;
mod runs;
mod verdict;

pub use change::Change;
pub use estimate::{Estimate, median};
pub use pairs::{Pair, Pairs, order, part};
pub use verdict::{Doubt, Goal, Verdict};

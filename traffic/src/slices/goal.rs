//! Goals as they are written: `NAME/NAME>=0.95`.

use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

use crate::statistics::Goal;

/// A bound on the ratio of two paths.
#[derive(Debug, Clone, PartialEq)]
pub struct GoalOf {
    /// The path that is judged.
    pub path: String,
    /// The path that it is compared with.
    pub against: String,
    /// The bound.
    pub goal: Goal,
}

impl FromStr for GoalOf {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("{text:?} is no goal: must be NAME/NAME>=NUMBER or NAME/NAME<=NUMBER");
        let (paths, bound, make): (_, _, fn(f64) -> Goal) =
            match (text.split_once(">="), text.split_once("<=")) {
                (Some((paths, bound)), _) => (paths, bound, Goal::AtLeast),
                (_, Some((paths, bound))) => (paths, bound, Goal::AtMost),
                _ => bail!(form()),
            };
        let (path, against) = paths.split_once('/').with_context(form)?;
        let bound: f64 =
            bound.trim().parse().ok().filter(|b: &f64| b.is_finite() && *b > 0.0).with_context(form)?;
        if path.is_empty() || against.is_empty() {
            bail!(form());
        }
        Ok(Self { path: path.trim().into(), against: against.trim().into(), goal: make(bound) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_name_two_paths_and_a_bound() {
        let goal: GoalOf = "cluster/pod>=0.95".parse().unwrap();
        assert_eq!(
            (goal.path.as_str(), goal.against.as_str(), goal.goal),
            ("cluster", "pod", Goal::AtLeast(0.95))
        );
        assert_eq!("a/b<=1.1".parse::<GoalOf>().unwrap().goal, Goal::AtMost(1.1));
        for wrong in ["", "a/b", "a>=1", "a/b>=x", "/b>=1", "a/b>=-1", "a/b>=inf"] {
            assert!(wrong.parse::<GoalOf>().is_err(), "{wrong}");
        }
    }
}

//! What `--check` says in the end: the rows that do not meet their goal, and with which code the program ends.

use std::io::Write;

use traffic::statistics::Verdict;

/// A goal was missed, or a row not measured.
const MISSED: i32 = 1;
/// None of that, but rows without a verdict. 2 is that of a wrong command line.
const NO_VERDICT: i32 = 3;

/// Names of rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) missed: Vec<String>,
    pub(super) not_measured: Vec<String>,
    pub(super) no_verdict: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, name: String, verdict: Verdict) {
        match verdict {
            Verdict::Met => {}
            Verdict::Missed => self.missed.push(name),
            Verdict::NotMeasured => self.not_measured.push(name),
            Verdict::Undecided(_) => self.no_verdict.push(name),
        }
    }

    /// Lists them, those that are missed by the word for it.
    pub(super) fn print(&self, out: &mut impl Write, missed: &str) -> std::io::Result<()> {
        writeln!(out)?;
        for (what, names) in
            [(missed, &self.missed), ("not measured", &self.not_measured), ("no verdict", &self.no_verdict)]
        {
            writeln!(out, "{what}: {}", names.len())?;
            for name in names {
                writeln!(out, "  {name}")?;
            }
        }
        out.flush()
    }

    /// The exit code of `--check`.
    pub(super) fn code(&self) -> i32 {
        match (self.missed.is_empty() && self.not_measured.is_empty(), self.no_verdict.is_empty()) {
            (false, _) => MISSED,
            (true, false) => NO_VERDICT,
            (true, true) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use traffic::statistics::Doubt;

    #[test]
    fn no_verdict_is_apart_from_missed() {
        let code = |verdicts: &[Verdict]| {
            let mut tally = Tally::default();
            verdicts.iter().for_each(|verdict| tally.add("row".into(), *verdict));
            tally.code()
        };
        let doubt = Verdict::Undecided(Doubt::Disturbed);
        assert_eq!(code(&[Verdict::Met]), 0);
        assert_eq!(code(&[Verdict::Met, doubt]), 3);
        assert_eq!(code(&[doubt, Verdict::Missed]), 1);
        assert_eq!(code(&[doubt, Verdict::NotMeasured]), 1);
    }

    #[test]
    fn each_name_is_listed_under_its_verdict() {
        let mut tally = Tally::default();
        tally.add("a".into(), Verdict::Missed);
        tally.add("b".into(), Verdict::Undecided(Doubt::Disturbed));
        let mut out = Vec::new();
        tally.print(&mut out, "goals missed").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "\ngoals missed: 1\n  a\nnot measured: 0\nno verdict: 1\n  b\n");
    }
}

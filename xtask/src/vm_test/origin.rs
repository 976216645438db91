//! Origin of instruction counts: the machine that counted them knows neither the commit nor, by its clock, the date.

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::exec;

/// Commit of this checkout and today's date (UTC). Read before the machine starts, as the checkout may change meanwhile.
pub(super) struct Origin {
    commit: String,
    date: String,
}

impl Origin {
    pub(super) fn now() -> Result<Self> {
        let commit =
            exec::output(exec::command("git").args(["describe", "--always", "--dirty", "--abbrev=10"]))?;
        let date = exec::output(exec::command("date").args(["-u", "+%Y-%m-%d"]))?;
        Ok(Self { commit: commit.trim().to_owned(), date: date.trim().to_owned() })
    }

    /// The figures with their origin.
    pub(super) fn told(self, figures: &str) -> Result<String> {
        let mut figures: Map<String, Value> = serde_json::from_str(figures)?;
        figures.insert("commit".to_owned(), self.commit.into());
        figures.insert("date".to_owned(), self.date.into());
        serde_json::to_string_pretty(&figures).context("figures as JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_their_rows_and_tell_where_they_are_from() {
        let text = r#"{"kernel": "6.1.0", "rows": [{"name": "fast", "instructions": 50, "all": [50]}]}"#;
        let origin = Origin { commit: "abc".into(), date: "2026-11-21".into() };
        let told = origin.told(text).unwrap();
        assert!(told.contains(r#""commit": "abc""#) && told.contains(r#""all""#), "{told}");
    }
}

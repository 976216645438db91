//! Where instruction counts are from: the machine that counted them knows neither the commit nor, by its clock, the date.

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::exec;

/// The figures with commit of this checkout and today's date (UTC).
pub(super) fn told(figures: &str) -> Result<String> {
    let commit = exec::output(exec::command("git").args(["describe", "--always", "--dirty", "--abbrev=10"]))?;
    let date = exec::output(exec::command("date").args(["-u", "+%Y-%m-%d"]))?;
    with(figures, &[("commit", commit.trim()), ("date", date.trim())])
}

fn with(text: &str, origin: &[(&str, &str)]) -> Result<String> {
    let mut figures: Map<String, Value> = serde_json::from_str(text)?;
    figures.extend(origin.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
    serde_json::to_string_pretty(&figures).context("figures as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_their_rows_and_tell_where_they_are_from() {
        let text = r#"{"kernel": "6.1.0", "rows": [{"name": "fast", "instructions": 50, "all": [50]}]}"#;
        let told = with(text, &[("commit", "abc")]).unwrap();
        assert!(told.contains(r#""commit": "abc""#) && told.contains(r#""all""#), "{told}");
    }
}

//! Whether a path of ours takes more instructions than it did.

use anyhow::{Context, Result, bail, ensure};

use super::icount::{Figures, Row};
use crate::exec;

/// By how many percent a path may take more.
const MORE: f64 = 2.0;
/// Names of our paths begin with one of these.
const OURS: &[&str] = &["fast", "service", "outside", "node", "vlan"];
/// Rows whose figures do not repeat within a percent: connections are found by the clock, and streams by the kernel's windows.
const UNSTEADY: &[&str] = &["-bulk", "-crr", "-once"];

/// A path in both.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    before: u64,
    now: u64,
    percent: f64,
}

/// Tells every path's change, and fails where one takes more.
pub(super) fn judge(base: &Figures, now: &Figures) -> Result<()> {
    let changes = changes(base, now)?;
    let commit = base.commit.as_deref().unwrap_or("an unknown commit");
    exec::say(format_args!("instructions against {commit}, at most {MORE} % more:"));
    for Change { name, before, now, percent } in &changes {
        let word = if *percent > MORE { " WORSE" } else { "" };
        exec::say(format_args!("{name:>24} {before:>8} -> {now:>8} {percent:>+7.2} %{word}"));
    }
    let worse: Vec<&str> =
        changes.iter().filter(|change| change.percent > MORE).map(|change| change.name.as_str()).collect();
    ensure!(worse.is_empty(), "more instructions than {commit} had: {}", worse.join(", "));
    Ok(())
}

fn changes(base: &Figures, now: &Figures) -> Result<Vec<Change>> {
    ensure!(
        base.kernel == now.kernel,
        "the figures are of kernel {}, this one is {}: record them anew at the base's commit",
        base.kernel,
        now.kernel
    );
    let ours = |name: &str| {
        OURS.iter().any(|ours| name.starts_with(ours)) && !UNSTEADY.iter().any(|end| name.ends_with(end))
    };
    let mut changes = Vec::new();
    for row in base.rows.iter().filter(|row| ours(&row.name)) {
        let Some(found) = now.rows.iter().find(|found| found.name == row.name) else {
            bail!("{} is not measured any more", row.name);
        };
        let (before, now) = (middle(row)?, middle(found)?);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let percent = 100.0 * (now as f64 / before as f64 - 1.0);
        changes.push(Change { name: row.name.clone(), before, now, percent });
    }
    ensure!(!changes.is_empty(), "the base has no path of ours");
    Ok(changes)
}

/// The median of all passes: the lowest one may be of a pass in which the kernel saved itself a wake-up.
fn middle(row: &Row) -> Result<u64> {
    let mut all = row.all.clone();
    all.sort_unstable();
    let middle = all.get(all.len() / 2).copied().filter(|count| *count > 0);
    middle.with_context(|| format!("{} has no figures", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(kernel: &str, rows: &[(&str, u64)]) -> Figures {
        // One pass of five took less.
        let row = |(name, count): &(&str, u64)| {
            let least = count * 9 / 10;
            serde_json::json!({"name": name, "instructions": least, "all": [count, least, count, count, count]})
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let text = serde_json::json!({"kernel": kernel, "commit": "c0ffee", "rows": rows}).to_string();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn three_percent_more_of_a_path_fails_and_one_or_less_does_not() {
        let base = figures("6.1.0", &[("fast", 50_000), ("service-udp", 40_000), ("ovs", 100_000)]);
        judge(&base, &figures("6.1.0", &[("fast", 50_500), ("service-udp", 30_000), ("ovs", 200_000)]))
            .unwrap();
        let worse = figures("6.1.0", &[("fast", 51_500), ("service-udp", 40_000)]);
        let error = judge(&base, &worse).unwrap_err().to_string();
        assert_eq!(error, "more instructions than c0ffee had: fast");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let base = figures("6.1.0", &[("fast", 50_000)]);
        let said = |now: &Figures| judge(&base, now).unwrap_err().to_string();
        assert!(said(&figures("6.1.1", &[("fast", 50_000)])).contains("kernel 6.1.0, this one is 6.1.1"));
        assert!(said(&figures("6.1.0", &[("ovs", 1)])).contains("fast is not measured any more"));
        let none = figures("6.1.0", &[("ovs", 1), ("fast-crr", 1), ("outside-bulk", 1)]);
        assert!(judge(&none, &base).unwrap_err().to_string().contains("no path of ours"));
    }
}

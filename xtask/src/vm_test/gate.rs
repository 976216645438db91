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
/// Rows of the kernel alone. Where a base is of another kernel they tell what that kernel costs.
const KERNELS: &[&str] = &["veth", "host"];

/// A path in both.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    before: u64,
    now: u64,
    percent: f64,
}

/// Paths of ours that are compared, and those of the kernel alone: what must be measured.
pub(super) fn paths(base: &Figures) -> Vec<&str> {
    let names = base.rows.iter().map(|row| row.name.as_str());
    names.filter(|name| is_ours(name) || is_kernels(name)).collect()
}

/// Tells every path's change, and fails where one takes more.
pub(super) fn judge(base: &Figures, now: &Figures) -> Result<()> {
    let changes = changes(base, now, is_ours)?;
    ensure!(!changes.is_empty(), "the base has no path of ours");
    let commit = base.commit.as_deref().unwrap_or("an unknown commit");
    let allowed = MORE + kernels_own(base, now)?;
    exec::say(format_args!("instructions against {commit}, at most {allowed:.2} % more:"));
    let mut worse = Vec::new();
    for Change { name, before, now, percent } in &changes {
        let is_worse = *percent > allowed;
        let word = if is_worse { " WORSE" } else { "" };
        exec::say(format_args!("{name:>24} {before:>8} -> {now:>8} {percent:>+7.2} %{word}"));
        if is_worse {
            worse.push(format!("{name} {percent:+.2} %"));
        }
    }
    ensure!(worse.is_empty(), "more instructions than {commit} had: {}", worse.join(", "));
    Ok(())
}

/// By how many percent the kernel's own paths take more, if the kernels are two.
fn kernels_own(base: &Figures, now: &Figures) -> Result<f64> {
    if base.kernel == now.kernel {
        return Ok(0.0);
    }
    let changes = changes(base, now, is_kernels)?;
    ensure!(
        !changes.is_empty(),
        "the base is of kernel {}, this one is {}, and nothing tells what that costs: a path of {} is needed in both",
        base.kernel,
        now.kernel,
        KERNELS.join(", ")
    );
    let most = changes.iter().map(|change| change.percent).fold(0.0, f64::max);
    exec::say(format_args!(
        "the base is of kernel {}, this one is {}, whose own paths take up to {most:.2} % more: record the base anew",
        base.kernel, now.kernel
    ));
    Ok(most)
}

fn is_ours(name: &str) -> bool {
    OURS.iter().any(|ours| name.starts_with(ours)) && !UNSTEADY.iter().any(|end| name.ends_with(end))
}

fn is_kernels(name: &str) -> bool {
    KERNELS.iter().any(|path| name.strip_suffix("-udp").unwrap_or(name) == *path)
}

fn changes(base: &Figures, now: &Figures, which: impl Fn(&str) -> bool) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for row in base.rows.iter().filter(|row| which(&row.name)) {
        let Some(found) = now.rows.iter().find(|found| found.name == row.name) else {
            bail!("{} is not measured any more", row.name);
        };
        let (before, now) = (middle(row)?, middle(found)?);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let percent = 100.0 * (now as f64 / before as f64 - 1.0);
        changes.push(Change { name: row.name.clone(), before, now, percent });
    }
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
    fn three_percent_more_of_a_path_is_worse_and_one_or_less_is_not() {
        let base = figures("6.1.0", &[("fast", 50_000), ("service-udp", 40_000), ("ovs", 100_000)]);
        let same = figures("6.1.0", &[("fast", 50_500), ("service-udp", 30_000), ("ovs", 200_000)]);
        judge(&base, &same).unwrap();
        let worse = figures("6.1.0", &[("fast", 51_500), ("service-udp", 40_000)]);
        let error = judge(&base, &worse).unwrap_err().to_string();
        assert_eq!(error, "more instructions than c0ffee had: fast +3.00 %");
    }

    #[test]
    fn what_another_kernel_takes_for_its_own_paths_ours_may_take_as_well() {
        let base = figures("6.1.0", &[("fast", 50_000), ("host", 40_000), ("host-udp", 30_000)]);
        let now = |fast, host| figures("6.1.1", &[("fast", fast), ("host", host), ("host-udp", 29_000)]);
        let good = |fast, host| judge(&base, &now(fast, host)).is_ok();
        assert_eq!((good(51_500, 40_000), good(51_500, 40_800), good(52_500, 40_800)), (false, true, false));
        // A kernel that takes less leaves no more room, and no less.
        assert_eq!((good(50_900, 38_000), good(51_500, 38_000)), (true, false));
        assert_eq!(paths(&base), ["fast", "host", "host-udp"]);
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let base = figures("6.1.0", &[("fast", 50_000)]);
        let said = |now: &Figures| judge(&base, now).unwrap_err().to_string();
        assert!(
            said(&figures("6.1.1", &[("fast", 50_000)]))
                .contains("kernel 6.1.0, this one is 6.1.1, and nothing tells")
        );
        assert!(said(&figures("6.1.0", &[("ovs", 1)])).contains("fast is not measured any more"));
        let none = figures("6.1.0", &[("ovs", 1), ("fast-crr", 1), ("outside-bulk", 1)]);
        assert!(judge(&none, &base).unwrap_err().to_string().contains("no path of ours"));
    }
}

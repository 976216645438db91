//! Formatting of counts, shares and time spans; parsing of intervals.

use std::time::Duration;

/// The shortest interval of `top`.
const SHORTEST: Duration = Duration::from_millis(100);

/// Formats a number with at most four digits and a decimal prefix: `999`, `12.3k`, `4.0M`.
pub(crate) fn short(value: f64) -> String {
    if value < 999.5 {
        return format!("{value:.0}");
    }
    let mut value = value;
    for prefix in ["k", "M", "G", "T"] {
        value /= 1000.0;
        if value < 999.95 || prefix == "T" {
            return format!("{value:.1}{prefix}");
        }
    }
    format!("{value:.1}")
}

/// Formats a count as [`short`] does.
#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
pub(crate) fn short_count(value: u64) -> String {
    short(value as f64)
}

/// Formats a share from 0 to 1 in percent. Values other than 0 and 1 are never shown as 0 % or 100 %.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(share) if share > 0.0 && share < 0.001 => "<0.1%".to_owned(),
        Some(share) if share > 0.999 && share < 1.0 => ">99.9%".to_owned(),
        Some(share) => format!("{:.1}%", share * 100.0),
    }
}

/// Formats a time span in milliseconds with its two largest units: `340ms`, `12.5s`, `3m20s`, `2h05m`, `4d03h`.
pub(crate) fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Reads `2s`, `0.5s`, `500ms` or `2`.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.trim().parse::<f64>().ok().map(|n| n * unit);
    let interval = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    match interval {
        Some(interval) if interval >= SHORTEST => Ok(interval),
        Some(_) => Err(format!("at least {SHORTEST:?} is needed")),
        None => Err("a time such as 2s or 500ms is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_at_most_four_digits() {
        let shown: Vec<_> = [0, 999, 1000, 12_345, 999_949, 999_950, 4_000_000, 5_000_000_000_000_000]
            .map(short_count)
            .into();
        assert_eq!(shown, ["0", "999", "1.0k", "12.3k", "999.9k", "1.0M", "4.0M", "5000.0T"]);
    }

    #[test]
    fn nearly_all_is_not_all_and_nearly_nothing_is_not_nothing() {
        let shares = [None, Some(0.0), Some(0.000_1), Some(0.5), Some(0.999_9), Some(1.0)];
        assert_eq!(shares.map(percent), ["-", "0.0%", "<0.1%", "50.0%", ">99.9%", "100.0%"]);
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [340, 12_540, 200_000, 7_500_000, 356_400_000].map(span);
        assert_eq!(spans, ["340ms", "12.5s", "3m20s", "2h05m", "4d03h"]);
    }

    #[test]
    fn intervals_are_read_in_seconds_and_milliseconds() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "s", "-1s", "soon", "1ms", "NaN"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}

//! Which specs a run selects: presets by name, or any regular expression.

use anyhow::{Context, Result, bail};

/// A selection of specs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Focus {
    /// Name, used for the run's directory.
    pub(super) name: String,
    /// Go regular expressions; a spec that one of them matches is selected.
    pub(super) expressions: Vec<String>,
    /// Whether these specs need IPv6.
    pub(super) dual_stack: bool,
    /// The least number of nodes on which all of them run.
    pub(super) nodes: u8,
    /// Whether a spec of the baseline that did not run at all is a failure.
    pub(super) whole_baseline: bool,
}

/// The presets, for the help text and for errors.
pub(super) const PRESETS: &str = "conformance, netpol, network, dual-stack, smoke";

impl Focus {
    /// Parses the name of a preset, or a regular expression. `smoke` is the list of names for that preset.
    pub(super) fn parse(text: &str, smoke: &str) -> Result<Self> {
        let focus = |name: &str, expression: &str| Self {
            name: name.to_owned(),
            expressions: vec![expression.to_owned()],
            dual_stack: false,
            nodes: 2,
            whole_baseline: false,
        };
        Ok(match text {
            "" => bail!("an empty focus takes every spec there is; presets are {PRESETS}"),
            "conformance" => focus(text, r"\[sig-network\].*\[Conformance\]"),
            "netpol" => focus(text, r"\[sig-network\] Netpol"),
            "network" => Self { whole_baseline: true, ..focus(text, r"\[sig-network\]") },
            "dual-stack" => Self {
                dual_stack: true,
                nodes: 3,
                ..focus(text, r"\[sig-network\].*\[Feature:IPv6DualStack\]")
            },
            "smoke" => {
                let expressions = names(smoke).map(|name| escape(name) + "$").collect();
                Self { expressions, ..focus(text, "") }
            }
            // The name of a spec, copied from a list or a report, selects that spec.
            _ if text.starts_with("[sig-") => focus("spec", &escape(text)),
            _ => focus("focus", text),
        })
    }
}

/// One name per line; lines that begin with `#` are comments.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'))
}

/// A Go regular expression that matches exactly this text.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// One line of the list of specs that are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skip {
    /// Applies only to a cluster without IPv6.
    pub(super) single_stack: bool,
    pub(super) expression: String,
    pub(super) reason: String,
}

/// Parses `WHEN REGEX # REASON` lines.
///
/// # Errors
/// A line without a reason, or with another WHEN than `always` and `single-stack`.
pub(super) fn skips(text: &str) -> Result<Vec<Skip>> {
    let mut skips = Vec::new();
    for line in names(text) {
        let (rule, reason) = line
            .rsplit_once(" # ")
            .filter(|(_, reason)| !reason.trim().is_empty())
            .with_context(|| format!("{line:?} gives no reason; a line is WHEN REGEX # REASON"))?;
        let (when, expression) =
            rule.split_once(' ').with_context(|| format!("{line:?} is not WHEN REGEX # REASON"))?;
        let single_stack = match when {
            "always" => false,
            "single-stack" => true,
            other => bail!("{other:?} in {line:?} is neither `always` nor `single-stack`"),
        };
        skips.push(Skip {
            single_stack,
            expression: expression.trim().to_owned(),
            reason: reason.trim().to_owned(),
        });
    }
    Ok(skips)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKIP: &str = include_str!("../../../testbed/conformance/skip.txt");
    const SMOKE: &str = include_str!("../../../testbed/conformance/smoke.txt");
    const BASELINE: &str = include_str!("../../../testbed/conformance/baseline.txt");

    #[test]
    fn a_name_from_a_report_means_itself_and_other_text_is_a_regular_expression() {
        let focus = Focus::parse("[sig-network] DNS should (x) [Conformance]", "").unwrap();
        assert_eq!(focus.expressions, [r"\[sig-network\] DNS should \(x\) \[Conformance\]"]);
        assert_eq!(Focus::parse("DNS|Proxy", "").unwrap().expressions, ["DNS|Proxy"]);
        assert!(Focus::parse("", "").is_err());
    }

    #[test]
    fn every_left_out_spec_has_a_reason() {
        assert!(skips(SKIP).unwrap().len() > 5);
        assert!(skips("always SCTP\n").is_err());
        assert!(skips("always SCTP # \n").is_err());
        assert!(skips("sometimes SCTP # x\n").is_err());
        let skip = &skips("# c\n\nsingle-stack after (a|b) # no # x\n").unwrap()[0];
        assert!(skip.single_stack);
        assert_eq!((skip.expression.as_str(), skip.reason.as_str()), ("after (a|b) # no", "x"));
    }

    #[test]
    fn the_smoke_specs_are_a_dozen_and_two_of_policies_and_all_of_them_must_pass() {
        let baseline = super::super::baseline::Baseline::parse(BASELINE).unwrap();
        let smoke: Vec<_> = names(SMOKE).collect();
        assert_eq!(smoke.len(), 14);
        assert_eq!(smoke.iter().filter(|n| n.contains("Netpol")).count(), 2);
        for name in &smoke {
            assert!(baseline.expects(name, 2), "{name} is not in the baseline of two nodes");
        }
        assert_eq!(Focus::parse("smoke", SMOKE).unwrap().expressions.len(), 14);
    }

    #[test]
    fn nothing_in_the_baseline_is_left_out() {
        // Expressions without operators can be compared as text.
        let baseline = super::super::baseline::Baseline::parse(BASELINE).unwrap();
        for skip in skips(SKIP).unwrap().iter().filter(|s| !s.expression.contains('(')) {
            assert!(!baseline.names().any(|n| n.contains(&skip.expression)), "{}", skip.expression);
        }
    }
}

//! Label selectors: matching, and the text that names address sets.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// A label selector. The empty selector matches everything; "no selector" is `Option::None` at the place of use.
///
/// Equal selectors compare equal whatever the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Selector {
    labels: BTreeMap<String, String>,
    requirements: BTreeSet<Requirement>,
}

/// One match expression.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

/// How a [`Requirement`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label is there, with any value.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// A selector that the API server should have rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The operator does not exist.
    #[error(
        "matchExpressions key `{key}`: unknown operator `{operator}`; supported: In, NotIn, Exists, DoesNotExist"
    )]
    Operator {
        /// Key of the label.
        key: String,
        /// The operator found.
        operator: String,
    },
    /// `In` and `NotIn` need values.
    #[error("matchExpressions key `{key}`: operator {operator} needs at least one value")]
    NoValues {
        /// Key of the label.
        key: String,
        /// `In` or `NotIn`.
        operator: String,
    },
}

impl Selector {
    /// From the Kubernetes object. All requirements must be usable.
    ///
    /// # Errors
    /// A requirement has an unknown operator, or no values where the operator needs one.
    pub fn parse(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut parsed = Self::labels_only(selector);
        for requirement in selector.match_expressions.iter().flatten() {
            parsed.requirements.insert(Requirement::parse(requirement)?);
        }
        Ok(parsed)
    }

    /// Like [`Self::parse`], but leaves unusable requirements out, so that the result selects more rather than less.
    /// The errors found are returned with it.
    pub fn parse_widened(selector: &LabelSelector) -> (Self, Vec<SelectorError>) {
        let mut parsed = Self::labels_only(selector);
        let mut errors = Vec::new();
        for requirement in selector.match_expressions.iter().flatten() {
            match Requirement::parse(requirement) {
                Ok(requirement) => {
                    parsed.requirements.insert(requirement);
                }
                Err(error) => errors.push(error),
            }
        }
        (parsed, errors)
    }

    fn labels_only(selector: &LabelSelector) -> Self {
        Self { labels: selector.match_labels.clone().unwrap_or_default(), requirements: BTreeSet::new() }
    }

    /// True when an object with `labels` is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// The text form that ovn-kubernetes uses in ids: `LS{ML:{a: b,},ME:{LSR{Key:k,Operator:In,Values:[v w],}},}`.
    pub fn text(&self) -> String {
        let mut text = String::from("LS{");
        if !self.labels.is_empty() {
            text.push_str("ML:{");
            for (key, value) in &self.labels {
                text.push_str(&format!("{key}: {value},"));
            }
            text.push_str("},");
        }
        if !self.requirements.is_empty() {
            let mut parts: Vec<String> = self.requirements.iter().map(Requirement::text).collect();
            parts.sort();
            text.push_str(&format!("ME:{{{}}},", parts.join(",")));
        }
        text.push('}');
        text
    }
}

impl Requirement {
    fn parse(requirement: &LabelSelectorRequirement) -> Result<Self, SelectorError> {
        let key = requirement.key.clone();
        let operator = match requirement.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => return Err(SelectorError::Operator { key, operator: other.to_owned() }),
        };
        let values: BTreeSet<String> = requirement.values.iter().flatten().cloned().collect();
        if values.is_empty() && matches!(operator, Operator::In | Operator::NotIn) {
            return Err(SelectorError::NoValues { key, operator: requirement.operator.clone() });
        }
        Ok(Self { key, operator, values })
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }

    fn text(&self) -> String {
        let operator = match self.operator {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
        };
        let values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        format!("LSR{{Key:{},Operator:{operator},Values:[{}],}}", self.key, values.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn selector(json: serde_json::Value) -> LabelSelector {
        serde_json::from_value(json).unwrap()
    }

    fn matches(json: serde_json::Value, with: &[(&str, &str)]) -> bool {
        Selector::parse(&selector(json)).unwrap().matches(&labels(with))
    }

    #[test]
    fn the_empty_selector_matches_everything() {
        assert!(matches(serde_json::json!({}), &[]));
        assert!(matches(serde_json::json!({"matchLabels": {}, "matchExpressions": []}), &[("a", "b")]));
    }

    #[test]
    fn all_labels_must_be_there() {
        let both = serde_json::json!({"matchLabels": {"a": "1", "b": "2"}});
        assert!(matches(both.clone(), &[("a", "1"), ("b", "2"), ("c", "3")]));
        assert!(!matches(both.clone(), &[("a", "1")]));
        assert!(!matches(both, &[("a", "1"), ("b", "3")]));
    }

    #[test]
    fn not_in_and_does_not_exist_match_a_missing_key_and_in_and_exists_do_not() {
        let with = |operator: &str, values: &[&str]| serde_json::json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]});
        for (operator, values, missing, same, other) in [
            ("In", &["v"][..], false, true, false),
            ("NotIn", &["v"], true, false, true),
            ("Exists", &[], false, true, true),
            ("DoesNotExist", &[], true, false, false),
        ] {
            assert_eq!(matches(with(operator, values), &[]), missing, "{operator}, key missing");
            assert_eq!(matches(with(operator, values), &[("k", "v")]), same, "{operator}, same value");
            assert_eq!(matches(with(operator, values), &[("k", "w")]), other, "{operator}, other value");
        }
    }

    #[test]
    fn the_text_is_that_of_the_reference_and_independent_of_order() {
        let text = |json| Selector::parse(&selector(json)).unwrap().text();
        assert_eq!(text(serde_json::json!({})), "LS{}");
        assert_eq!(text(serde_json::json!({"matchLabels": {"team": "red"}})), "LS{ML:{team: red,},}");
        let one = text(serde_json::json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
            {"key": "z", "operator": "Exists"}, {"key": "k", "operator": "In", "values": ["y", "x"]}]}));
        assert_eq!(
            one,
            "LS{ML:{a: 1,b: 2,},ME:{LSR{Key:k,Operator:In,Values:[x y],},LSR{Key:z,Operator:Exists,Values:[],}},}"
        );
        let other = text(serde_json::json!({"matchLabels": {"a": "1", "b": "2"}, "matchExpressions": [
            {"key": "k", "operator": "In", "values": ["x", "y"]}, {"key": "z", "operator": "Exists"}]}));
        assert_eq!(one, other);
    }

    #[test]
    fn an_unknown_operator_is_an_error_and_widens_when_asked() {
        let bad = selector(serde_json::json!({"matchLabels": {"a": "1"}, "matchExpressions": [
            {"key": "k", "operator": "Gt", "values": ["1"]}]}));
        assert_eq!(
            Selector::parse(&bad).unwrap_err().to_string(),
            "matchExpressions key `k`: unknown operator `Gt`; supported: In, NotIn, Exists, DoesNotExist"
        );
        let (widened, errors) = Selector::parse_widened(&bad);
        assert_eq!(errors.len(), 1);
        assert!(widened.matches(&labels(&[("a", "1")])));
    }

    #[test]
    fn in_without_values_is_an_error() {
        let bad =
            selector(serde_json::json!({"matchExpressions": [{"key": "k", "operator": "In", "values": []}]}));
        assert!(matches!(Selector::parse(&bad), Err(SelectorError::NoValues { .. })));
    }
}

//! Fields of objects by the part of kubectl's JSONPath that tests use: `.a.b`, `.a\.b` for a key with a dot, `[0]`, `[*]` and
//! `[?(@.key=="value")]`; text between `}` and `{` stays as it is.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One step of a path.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
    All,
    /// Elements whose field has this value.
    Where(String, String),
}

/// What kubectl prints for `jsonpath={TEMPLATE}`: values with a blank between them where there are several, nothing where there is none.
///
/// # Errors
/// The template has something else than the above.
pub(crate) fn field(object: &Value, template: &str) -> Result<String> {
    let mut text = String::new();
    // `.a},{.b` is the path `.a`, a comma, and the path `.b`.
    for (at, part) in template.split('}').enumerate() {
        let (literal, path) = match (at, part.split_once('{')) {
            (0, None) => ("", part),
            (_, Some((literal, path))) => (literal, path),
            (_, None) => bail!("{template}: `}}` without `{{` after it"),
        };
        text.push_str(literal);
        let steps = steps(path).with_context(|| format!("path {path:?}"))?;
        let found: Vec<String> = values(vec![object], &steps).into_iter().map(told).collect();
        text.push_str(&found.join(" "));
    }
    Ok(text)
}

fn told(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn values<'a>(mut found: Vec<&'a Value>, steps: &[Step]) -> Vec<&'a Value> {
    for step in steps {
        found = found.into_iter().flat_map(|value| after(value, step)).collect();
    }
    found
}

fn after<'a>(value: &'a Value, step: &Step) -> Vec<&'a Value> {
    match step {
        Step::Key(key) => value.get(key).into_iter().collect(),
        Step::Index(index) => value.get(index).into_iter().collect(),
        Step::All => value.as_array().into_iter().flatten().collect(),
        Step::Where(key, wanted) => {
            let has = |element: &&Value| element.get(key).is_some_and(|value| told(value) == *wanted);
            value.as_array().into_iter().flatten().filter(has).collect()
        }
    }
}

fn steps(path: &str) -> Result<Vec<Step>> {
    let mut rest = path;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']').context("`[` without `]`")?;
            steps.push(bracket(inside)?);
            rest = after;
        } else if let Some(name) = rest.strip_prefix('.') {
            let (key, after) = key(name);
            steps.push(Step::Key(key));
            rest = after;
        } else {
            bail!("`.` or `[` is needed before {rest:?}");
        }
    }
    Ok(steps)
}

/// The key at the start, and what comes after it.
fn key(text: &str) -> (String, &str) {
    let mut key = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => key.extend(letters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (key, &text[at..]),
            other => key.push(other),
        }
    }
    (key, "")
}

fn bracket(inside: &str) -> Result<Step> {
    if inside == "*" {
        return Ok(Step::All);
    }
    if let Some(condition) = inside.strip_prefix("?(@.").and_then(|text| text.strip_suffix(')')) {
        let (key, value) = condition.split_once("==").context("`==` is needed")?;
        return Ok(Step::Where(key.trim().to_owned(), value.trim().trim_matches(['"', '\'']).to_owned()));
    }
    inside.parse().map(Step::Index).with_context(|| format!("`[{inside}]` is not known"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {"annotations": {"k8s.ovn.org/pod-networks": "{\"a\":1}"}, "labels": {"app": "a"}},
            "spec": {"nodeName": "n1"},
            "status": {
                "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "containerStatuses": [{"restartCount": 2}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}],
            },
        })
    }

    #[test]
    fn what_kubectl_prints_is_found() {
        for (template, said) in [
            (".spec.nodeName", "n1"),
            (".status.phase},{.status.podIPs[0].ip", "Running,10.0.0.1"),
            (".status.podIPs[*].ip", "10.0.0.1 fd00::1"),
            (r".metadata.annotations.k8s\.ovn\.org/pod-networks", "{\"a\":1}"),
            (".status.conditions[?(@.type==\"Ready\")].status", "True"),
            (".status.containerStatuses[0].restartCount", "2"),
            (".metadata.labels", "{\"app\":\"a\"}"),
            (".status.absent[3].deeper", ""),
        ] {
            assert_eq!(field(&pod(), template).unwrap(), said, "{template}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for template in ["status", ".a[b]", ".a[0", ".a}x", ".a[?(@.b)]"] {
            assert!(field(&pod(), template).is_err(), "{template}");
        }
    }
}

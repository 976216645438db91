//! Every metric in alert rules and dashboard is one that the programs export.
#![expect(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files that name metrics.
const FILES: [&str; 2] = ["deploy/monitoring/alerts.yaml", "deploy/monitoring/dashboard.json"];
/// What an exporter adds to the name in the code.
const ENDS: [&str; 4] = ["_total", "_bucket", "_sum", "_count"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Metrics in a text, without the label names between braces.
fn named(text: &str) -> BTreeSet<String> {
    let word = |start: usize| -> String {
        text[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let all = text.match_indices("slipstream_node_").chain(text.match_indices("slipstream_controller_"));
    all.map(|(start, _)| word(start)).collect()
}

#[test]
fn every_metric_that_is_named_is_exported() {
    let sources = [("slipstream_node_", "node-agent/src"), ("slipstream_controller_", "controller/src")].map(
        |(prefix, directory)| {
            let mut text = String::new();
            collect(&repository().join(directory), &mut text);
            (prefix, text)
        },
    );
    let exported = |metric: &str| {
        sources.iter().any(|(prefix, source)| {
            let Some(name) = metric.strip_prefix(prefix) else { return false };
            let plain = ENDS.iter().find_map(|end| name.strip_suffix(end));
            [Some(name), plain].into_iter().flatten().any(|name| source.contains(&format!("\"{name}\"")))
        })
    };
    for file in FILES {
        let text = std::fs::read_to_string(repository().join(file)).unwrap();
        let named = named(&text);
        assert!(named.len() > 8, "{file}: {named:?}");
        let missing: Vec<&String> = named.iter().filter(|metric| !exported(metric)).collect();
        assert!(missing.is_empty(), "{file} names metrics that no program exports: {missing:?}");
    }
    assert!(!exported("slipstream_node_nothing_total"));
}

#[test]
fn each_alert_is_explained() {
    let alerts = std::fs::read_to_string(repository().join(FILES[0])).unwrap();
    let page = std::fs::read_to_string(repository().join("docs/operate.md")).unwrap();
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 8);
    let missing: Vec<&&str> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/operate.md does not explain {missing:?}");
}

fn collect(directory: &Path, text: &mut String) {
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

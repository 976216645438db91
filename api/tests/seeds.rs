//! `docs/seeds.md` has every old word that the programs know, and the tests that it names exist.
#![expect(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use api::settings::{ENVIRONMENT, EXTERNAL_IDS, FILE, WORDS};

/// Words of the old pages that no table of the programs has.
const PAGES: [&str; 14] = [
    "cluster-subnets",
    "logfile",
    "nics-to-bridge",
    "bridges-to-nics",
    "master-init",
    "minion-init",
    "gateway-init",
    "ovn-k8s-gateway-helper",
    "ovn-k8s-watcher",
    "set-connection",
    "start_northd",
    "start_controller",
    "/etc/openvswitch/ovn_k8s.conf",
    "--delete-transient-ports",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn page() -> String {
    std::fs::read_to_string(repository().join("docs/seeds.md")).unwrap()
}

#[test]
fn the_page_has_every_word() {
    let page = page();
    // Words between back quotes; flags may have dashes and a value.
    let quoted: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let has = |word: &str| {
        quoted.iter().any(|text| {
            text.split([' ', '=', ':']).any(|part| part.trim_start_matches('-') == word) || *text == word
        })
    };
    let files = FILE.iter().map(|(section, key, _)| format!("[{section}] {key}"));
    let known = WORDS
        .iter()
        .map(|word| word.name.to_owned())
        .chain(ENVIRONMENT.iter().flat_map(|(names, _)| names.iter().map(|name| (*name).to_owned())))
        .chain(EXTERNAL_IDS.iter().map(|(key, _)| (*key).to_owned()))
        .chain(files);
    let missing: Vec<String> = known.filter(|word| !has(word)).collect();
    assert!(missing.is_empty(), "docs/seeds.md has no {missing:?}");
    let missing: Vec<&&str> = PAGES.iter().filter(|word| !page.contains(**word)).collect();
    assert!(missing.is_empty(), "docs/seeds.md has no {missing:?}");
}

#[test]
fn the_tests_that_the_page_names_exist() {
    let page = page();
    let named: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.trim_end_matches([' ', '|']).rsplit("| ").next())
        .filter_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'))
        .filter(|name| name.matches('_').count() > 3 && !name.contains([' ', '.', '/']))
        .collect();
    assert!(named.len() > 10, "{named:?}");
    let mut sources = String::new();
    for package in ["api", "supervision", "controller", "node-agent", "entrypoint"] {
        for part in ["src", "tests"] {
            collect(&repository().join(package).join(part), &mut sources);
        }
    }
    let missing: Vec<&&str> = named.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no test is named {missing:?}");
}

fn collect(directory: &Path, text: &mut String) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

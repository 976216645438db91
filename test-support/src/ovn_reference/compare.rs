//! Differences between two sets of rows, and the reviewed list of those that are meant to be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::data::{DIFFERENCES, Stage};

/// One difference. The column is `(missing)` or `(extra)` when the complete row is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    table: String,
    row: String,
    column: String,
    detail: String,
}

impl Difference {
    /// What is there could not even be read.
    #[must_use]
    pub fn unreadable(why: &str) -> Self {
        Self { table: "-".into(), row: "-".into(), column: "(unreadable)".into(), detail: why.to_owned() }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | {} | {}", self.table, self.row, self.column, self.detail)
    }
}

/// Compares table by table, row by row, column by column. Both sides map tables to rows with `name` or `_name`.
#[must_use]
pub fn compare(expected: &Value, actual: &Value) -> Vec<Difference> {
    let (expected, actual) = (by_name(expected), by_name(actual));
    let keys: BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
    let mut differences = Vec::new();
    for key @ (table, row) in keys {
        let empty = Vec::new();
        let left = expected.get(key).unwrap_or(&empty);
        let right = actual.get(key).unwrap_or(&empty);
        let mut found = |column: &str, detail: String| {
            differences.push(Difference {
                table: table.clone(),
                row: row.clone(),
                column: column.to_owned(),
                detail,
            });
        };
        // Rows of one name are paired after the equal ones among them are gone.
        let mut right: Vec<_> = right.iter().collect();
        let mut rest = Vec::new();
        for value in left {
            match right.iter().position(|v| *v == value) {
                Some(at) => drop(right.remove(at)),
                None => rest.push(value),
            }
        }
        let mut right = right.into_iter();
        for value in rest {
            match right.next() {
                None => found("(missing)", shorten(value)),
                Some(other) => {
                    for (column, detail) in columns(value, other) {
                        found(&column, detail);
                    }
                }
            }
        }
        for value in right {
            found("(extra)", shorten(value));
        }
    }
    differences
}

fn by_name(tables: &Value) -> BTreeMap<(String, String), Vec<Value>> {
    let mut rows: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for (table, list) in tables.as_object().into_iter().flatten() {
        for row in list.as_array().into_iter().flatten() {
            let name = row.get("_name").or(row.get("name")).and_then(Value::as_str).unwrap_or_default();
            rows.entry((table.clone(), name.to_owned())).or_default().push(row.clone());
        }
    }
    rows
}

fn columns(expected: &Value, actual: &Value) -> Vec<(String, String)> {
    let keys: BTreeSet<_> =
        [expected, actual].into_iter().filter_map(Value::as_object).flat_map(|o| o.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        let (left, right) = (expected.get(key), actual.get(key));
        match (left.and_then(Value::as_object), right.and_then(Value::as_object)) {
            _ if left == right => {}
            // Maps differ by key, so that a reviewed difference covers one key only.
            (Some(left), Some(right)) => {
                let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
                let differing = keys.into_iter().filter(|k| left.get(*k) != right.get(*k));
                found.extend(differing.map(|k| (format!("{key}:{k}"), sides(left.get(k), right.get(k)))));
            }
            _ => found.push((key.clone(), sides(left, right))),
        }
    }
    found
}

fn sides(expected: Option<&Value>, actual: Option<&Value>) -> String {
    let side = |v: Option<&Value>| v.map_or("nothing".to_owned(), shorten);
    format!("expected {} but it is {}", side(expected), side(actual))
}

fn shorten(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 300 { text } else { text.chars().take(300).collect::<String>() + ".." }
}

/// One entry of the reviewed list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The table, or `annotations of nodes`, or `flows`.
    table: String,
    /// The row's name; `*` at the end, or alone, matches anything.
    row: String,
    column: String,
    /// Only in these stages; all if there are none.
    #[serde(default)]
    stages: Vec<String>,
    /// Why it is meant to be.
    reason: String,
}

impl Entry {
    fn covers(&self, stage: Stage, difference: &Difference) -> bool {
        let row = match self.row.strip_suffix('*') {
            Some(prefix) => difference.row.starts_with(prefix),
            None => difference.row == self.row,
        };
        row && self.table == difference.table && self.column == difference.column && self.is_of(stage)
    }

    fn is_of(&self, stage: Stage) -> bool {
        self.stages.is_empty() || self.stages.iter().any(|s| s == stage.name())
    }
}

/// The reviewed list, and which of its entries were of use.
#[derive(Debug)]
pub struct Reviewed {
    entries: Vec<Entry>,
    used: BTreeSet<usize>,
}

impl Reviewed {
    /// Reads the list.
    ///
    /// # Errors
    /// It is damaged, or an entry has no reason.
    pub fn load() -> Result<Self> {
        let entries: Vec<Entry> = serde_json::from_str(DIFFERENCES).context("reference/differences.json")?;
        for entry in &entries {
            anyhow::ensure!(
                !entry.reason.trim().is_empty(),
                "difference {} {} has no reason",
                entry.table,
                entry.row
            );
        }
        Ok(Self { entries, used: BTreeSet::new() })
    }

    /// The differences that no entry covers, and the entries that cover the others.
    #[must_use]
    pub fn subtract(&self, stage: Stage, differences: Vec<Difference>) -> (Vec<Difference>, Vec<usize>) {
        let mut known = Vec::new();
        let rest = differences
            .into_iter()
            .filter(|difference| match self.entries.iter().position(|e| e.covers(stage, difference)) {
                Some(entry) => {
                    known.push(entry);
                    false
                }
                None => true,
            })
            .collect();
        (rest, known)
    }

    /// Notes that these entries were of use.
    pub fn mark(&mut self, entries: Vec<usize>) {
        self.used.extend(entries);
    }

    /// Judges the differences of one stage where only some tables and columns are compared: each must be covered by an entry,
    /// and each entry of the stage `about` such a table and column must cover one.
    ///
    /// # Errors
    /// Differences that are not in the list, and entries of no use.
    pub fn judge(
        &self,
        stage: Stage,
        differences: Vec<Difference>,
        about: impl Fn(&str, &str) -> bool,
    ) -> Result<(), String> {
        let (rest, known) = self.subtract(stage, differences);
        let unlisted = rest.iter().map(|difference| format!("not in the reviewed list: {difference}"));
        let unused = self.entries.iter().enumerate().filter(|(at, entry)| {
            entry.is_of(stage) && about(&entry.table, &entry.column) && !known.contains(at)
        });
        let unused = unused.map(|(_, entry)| {
            format!("listed, but no difference: {} | {} | {}", entry.table, entry.row, entry.column)
        });
        let wrong: Vec<String> = unlisted.chain(unused).collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("{}: {}", stage.name(), wrong.join("\n"))) }
    }

    /// Entries that cover nothing.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        let unused = self.entries.iter().enumerate().filter(|(i, _)| !self.used.contains(i));
        unused.map(|(_, e)| format!("{} | {} | {}", e.table, e.row, e.column)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(expected: &Value, actual: &Value) -> Vec<String> {
        compare(expected, actual).iter().map(|d| format!("{} {} {}", d.table, d.row, d.column)).collect()
    }

    #[test]
    fn missing_extra_and_changed_rows_are_told_apart() {
        let expected = json!({"T": [{"name": "a", "x": 1}, {"name": "b", "x": 1}]});
        let actual = json!({"T": [{"name": "b", "x": 2}, {"name": "c"}]});
        assert_eq!(shown(&expected, &actual), ["T a (missing)", "T b x", "T c (extra)"]);
        assert!(shown(&expected, &expected).is_empty());
    }

    #[test]
    fn a_map_differs_by_its_keys() {
        let expected = json!({"T": [{"name": "a", "options": {"x": "1", "y": "1"}}]});
        let actual = json!({"T": [{"name": "a", "options": {"y": "1", "z": "1"}}]});
        assert_eq!(shown(&expected, &actual), ["T a options:x", "T a options:z"]);
    }

    #[test]
    fn rows_of_one_name_are_compared_as_a_set() {
        let expected = json!({"T": [{"_name": "a", "x": 1}, {"_name": "a", "x": 2}]});
        let actual = json!({"T": [{"_name": "a", "x": 2}, {"_name": "a", "x": 1}]});
        assert!(shown(&expected, &actual).is_empty());
        let fewer = json!({"T": [{"_name": "a", "x": 2}]});
        assert_eq!(shown(&expected, &fewer), ["T a (missing)"]);
    }

    #[test]
    fn an_entry_covers_its_row_column_and_stage_only() {
        let entry: Entry = serde_json::from_value(
            json!({"table": "T", "row": "a*", "column": "x", "stages": ["2-pods"], "reason": "r"}),
        )
        .unwrap();
        let difference = |row: &str, column: &str| Difference {
            table: "T".into(),
            row: row.into(),
            column: column.into(),
            detail: String::new(),
        };
        assert!(entry.covers(Stage::Pods, &difference("abc", "x")));
        assert!(!entry.covers(Stage::Nodes, &difference("abc", "x")));
        assert!(!entry.covers(Stage::Pods, &difference("b", "x")));
        assert!(!entry.covers(Stage::Pods, &difference("abc", "y")));
    }

    #[test]
    fn the_reviewed_list_can_be_read_and_every_entry_has_a_reason() {
        Reviewed::load().unwrap();
    }
}

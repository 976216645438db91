//! Every transaction of the northbound database, from the server's own file (ovsdb(5), standalone format): a monitor may receive
//! several in one update.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ovsdb_client::Uuid;
use serde_json::Value;

use super::order::{Order, Row};
use super::world::World;

const HEAD: &str = "OVSDB JSON ";

/// Fails if a pod that is to be closed was open after any transaction since the file was made.
pub(super) fn never_open(file: &Path, world: &World) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut order = Order::default();
    for (port, pod) in &world.pods {
        order.must_close(port.clone(), world.closing(pod));
    }
    replay(&text, &mut order)?;
    match order.open().first() {
        Some(first) => bail!("{} times: {first}", order.open().len()),
        None => Ok(format!("{} transactions in the database's file", order.transactions())),
    }
}

fn replay(text: &str, order: &mut Order) -> Result<()> {
    let mut groups = BTreeMap::new();
    let mut rest = text;
    let mut first = true;
    while let Some(after) = rest.strip_prefix(HEAD) {
        let (head, body) = after.split_once('\n').context("a record without an end")?;
        let length: usize =
            head.split(' ').next().and_then(|n| n.parse().ok()).context("a record's length")?;
        let (record, next) = body.split_at_checked(length).context("a record is cut off")?;
        // The first is the schema.
        if !std::mem::take(&mut first) {
            let record: Value = serde_json::from_str(record).context("a record")?;
            order.transaction(rows(&record, &mut groups)?);
        }
        rest = next;
    }
    if !rest.is_empty() {
        bail!("{} bytes of the file are no record", rest.len());
    }
    Ok(())
}

/// A port group so far.
#[derive(Clone, Debug, Default)]
struct Group {
    name: String,
    ports: BTreeSet<Uuid>,
    rules: BTreeSet<Uuid>,
}

fn rows(record: &Value, groups: &mut BTreeMap<Uuid, Group>) -> Result<Vec<Row>> {
    // Sets of rows that were there are written as what is toggled.
    let differences = record["_is_diff"].as_bool().unwrap_or(false);
    let mut rows = Vec::new();
    let of = |table: &str| record[table].as_object().into_iter().flatten();
    for (id, row) in of("Logical_Switch_Port") {
        let uuid = id.parse()?;
        if row.is_null() {
            rows.push(Row::Gone(uuid));
        } else if let Some(name) = row["name"].as_str()
            && is_pod(&row["external_ids"])
        {
            rows.push(Row::Port { uuid, name: name.to_owned() });
        }
    }
    for (id, row) in of("ACL") {
        let uuid = id.parse()?;
        if row.is_null() {
            rows.push(Row::Gone(uuid));
        } else if let Some(action) = row["action"].as_str() {
            rows.push(Row::Rule { uuid, drops: action == "drop" });
        }
    }
    for (id, row) in of("Port_Group") {
        let uuid = id.parse()?;
        if row.is_null() {
            groups.remove(&uuid);
            rows.push(Row::Gone(uuid));
            continue;
        }
        let toggles = differences && groups.contains_key(&uuid);
        let group = groups.entry(uuid).or_default();
        if let Some(name) = row["name"].as_str() {
            name.clone_into(&mut group.name);
        }
        for (set, column) in [(&mut group.ports, "ports"), (&mut group.rules, "acls")] {
            if row[column].is_null() {
                continue;
            }
            let new = references(&row[column])?;
            *set = if toggles { &*set ^ &new } else { new };
        }
        let Group { name, ports, rules } = group.clone();
        rows.push(Row::Group { uuid, name, ports, rules });
    }
    Ok(rows)
}

/// A set of references: `["set", [["uuid", x], ..]]`, or one alone.
fn references(value: &Value) -> Result<BTreeSet<Uuid>> {
    let list = match value[0].as_str() {
        Some("set") => value[1].as_array().map(Vec::as_slice).unwrap_or_default(),
        _ => std::slice::from_ref(value),
    };
    list.iter().map(|one| Ok(one[1].as_str().context("a reference")?.parse()?)).collect()
}

fn is_pod(ids: &Value) -> bool {
    ids[1].as_array().into_iter().flatten().any(|pair| pair[0] == "pod" && pair[1] == "true")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(n: u128) -> String {
        Uuid::from_u128(n).to_string()
    }

    fn file(records: &[Value]) -> String {
        let schema = json!({"name": "OVN_Northbound"});
        let one = |record: &Value| {
            let body = format!("{record}\n");
            format!("{HEAD}{} 0123\n{body}", body.len())
        };
        std::iter::once(&schema).chain(records).map(one).collect()
    }

    fn order(records: &[Value]) -> Order {
        let mut order = Order::default();
        order.must_close("x_a".to_owned(), BTreeSet::from(["deny".to_owned()]));
        replay(&file(records), &mut order).unwrap();
        order
    }

    fn all() -> Value {
        json!({
            "Logical_Switch_Port": {id(1): {"name": "x_a", "external_ids": ["map", [["pod", "true"]]]}},
            "Port_Group": {id(2): {"name": "deny", "ports": ["uuid", id(1)], "acls": ["set", [["uuid", id(3)]]]}},
            "ACL": {id(3): {"action": "drop"}},
            "_is_diff": true,
        })
    }

    #[test]
    fn a_port_that_comes_with_its_group_is_closed() {
        let order = order(&[all()]);
        assert_eq!(order.open(), [""; 0]);
        assert_eq!(order.transactions(), 1);
    }

    #[test]
    fn a_port_that_comes_before_its_group_was_open() {
        let mut before = all();
        before["Port_Group"].take();
        assert_eq!(order(&[before, all()]).open().len(), 1);
    }

    #[test]
    fn members_are_toggled_where_the_record_says_so() {
        let change = json!({"Port_Group": {id(2): {"ports": ["uuid", id(1)]}}, "_is_diff": true});
        assert_eq!(order(&[all(), change.clone()]).open().len(), 1, "it was taken out");
        let whole = json!({"Port_Group": {id(2): {"ports": ["uuid", id(1)]}}});
        assert_eq!(order(&[all(), whole]).open(), [""; 0], "the new value is the old one");
        assert_eq!(order(&[all(), change.clone(), change]).open().len(), 1, "and back");
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        let text = file(&[all()]);
        assert!(replay(&text[..text.len() - 2], &mut Order::default()).is_err());
        assert!(replay(&format!("{text}x"), &mut Order::default()).is_err());
    }
}

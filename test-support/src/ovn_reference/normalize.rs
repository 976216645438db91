//! Makes two OVN databases comparable: rows are named by what identifies them, references are those names, sets
//! are sorted, and what OVN itself writes while running is left out.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// Columns that change by themselves.
const VOLATILE: &[(&str, &[&str])] = &[
    (
        "NB_Global",
        &[
            "nb_cfg",
            "nb_cfg_timestamp",
            "sb_cfg",
            "sb_cfg_timestamp",
            "hv_cfg",
            "hv_cfg_timestamp",
            "connections",
        ],
    ),
    ("Logical_Switch_Port", &["up"]),
    ("Logical_Router_Port", &["status"]),
    ("Connection", &["is_connected", "status"]),
    ("BFD", &["status"]),
];
/// Keys of maps that do.
const VOLATILE_KEYS: &[(&str, &str, &[&str])] =
    &[("NB_Global", "options", &["svc_monitor_mac", "mac_prefix", "e2e_timestamp"])];

type Row = BTreeMap<String, Value>;

/// The output of `ovsdb-client -f json dump` as table to rows. `schema` tells sets of one from plain values;
/// `names` replaces strings that differ between runs, such as uids.
///
/// # Errors
/// The output is none of `ovsdb-client`.
pub fn database(dump: &str, schema: &Value, names: &HashMap<String, String>) -> Result<Value> {
    let tables = tables(dump, schema)?;
    let mut labels = HashMap::new();
    for (table, rows) in &tables {
        for row in rows {
            if let Some(uuid) = row.get("_uuid").and_then(uuid_of) {
                labels.insert(uuid.to_owned(), label(table, row));
            }
        }
    }
    let mut out = Map::new();
    for (table, rows) in tables {
        let rows: Vec<Value> = rows.iter().map(|row| finish(&table, row, &labels, names)).collect();
        if !rows.is_empty() {
            out.insert(table, Value::Array(rows));
        }
    }
    Ok(Value::Object(out))
}

fn tables(dump: &str, schema: &Value) -> Result<BTreeMap<String, Vec<Row>>> {
    let mut tables = BTreeMap::new();
    for part in serde_json::Deserializer::from_str(dump).into_iter::<Value>() {
        let part = part.context("output of ovsdb-client dump")?;
        let caption = part["caption"].as_str().unwrap_or_default();
        let table = caption.strip_suffix(" table").unwrap_or(caption).to_owned();
        let headings: Vec<&str> =
            part["headings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let rows = part["data"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| {
                headings
                    .iter()
                    .zip(row.as_array().into_iter().flatten())
                    .map(|(column, value)| ((*column).to_owned(), cell(schema, &table, column, value)))
                    .collect()
            })
            .collect();
        tables.insert(table, rows);
    }
    Ok(tables)
}

/// OVSDB's notation (RFC 7047, section 5.1) to plain JSON; a reference stays `["uuid", x]`.
fn cell(schema: &Value, table: &str, column: &str, value: &Value) -> Value {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::Array(items)]) if kind == "set" => Value::Array(items.clone()),
        Some([Value::String(kind), Value::Array(pairs)]) if kind == "map" => {
            let entry = |pair: &Value| Some((text(&pair[0])?, pair[1].clone()));
            Value::Object(pairs.iter().filter_map(entry).collect())
        }
        _ if is_set(schema, table, column) => Value::Array(vec![value.clone()]),
        _ => value.clone(),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Array(_) => uuid_of(value).map(str::to_owned),
        other => Some(other.to_string()),
    }
}

/// A set with one member is written like a plain value.
fn is_set(schema: &Value, table: &str, column: &str) -> bool {
    let kind = &schema["tables"][table]["columns"][column]["type"];
    kind.is_object()
        && kind.get("value").is_none()
        && kind.get("max").is_some_and(|max| max != &Value::from(1))
}

fn uuid_of(value: &Value) -> Option<&str> {
    match value.as_array()?.as_slice() {
        [Value::String(kind), Value::String(uuid)] if kind == "uuid" => Some(uuid),
        _ => None,
    }
}

/// A single value, or the one member of a set.
fn one(row: &Row, column: &str) -> String {
    match row.get(column) {
        Some(Value::Array(set)) if set.len() == 1 => text(&set[0]).unwrap_or_default(),
        Some(Value::Array(_)) | None => String::new(),
        Some(value) => text(value).unwrap_or_default(),
    }
}

/// What identifies a row to a reader.
fn label(table: &str, row: &Row) -> String {
    let id = row.get("external_ids").and_then(|ids| ids["k8s.ovn.org/id"].as_str());
    let get = |column| one(row, column);
    match (table, id) {
        ("ACL" | "QoS", Some(id)) => id.to_owned(),
        ("ACL", None) => format!("{} {} {}", get("direction"), get("priority"), get("match")),
        ("NAT", _) => {
            let condition = get("match");
            let condition = if condition.is_empty() { condition } else { format!(" match={condition}") };
            format!("{} {} {}{condition}", get("type"), get("external_ip"), get("logical_ip"))
        }
        ("Logical_Router_Static_Route", _) => {
            let text = format!(
                "{} via {} {} {}",
                get("ip_prefix"),
                get("nexthop"),
                get("policy"),
                get("output_port")
            );
            text.trim_end().to_owned()
        }
        ("Logical_Router_Policy", _) => format!("{} {}", get("priority"), get("match")),
        ("Static_MAC_Binding", _) => format!("{} {}", get("logical_port"), get("ip")),
        ("BFD", _) => format!("{} {}", get("logical_port"), get("dst_ip")),
        ("Meter_Band", _) => format!("{} {} {}", get("action"), get("rate"), get("burst_size")),
        ("Connection", _) => get("target"),
        _ => match get("name") {
            name if name.is_empty() => table.to_owned(),
            name => name,
        },
    }
}

/// References to names, sets sorted, empty columns out.
fn finish(
    table: &str,
    row: &Row,
    labels: &HashMap<String, String>,
    names: &HashMap<String, String>,
) -> Value {
    let volatile = VOLATILE.iter().find(|(t, _)| *t == table).map_or(&[][..], |(_, columns)| columns);
    let mut out = Map::new();
    for (column, value) in row {
        if column == "_uuid" || volatile.contains(&column.as_str()) {
            continue;
        }
        let keys = VOLATILE_KEYS
            .iter()
            .find(|(t, c, _)| *t == table && c == column)
            .map_or(&[][..], |(_, _, keys)| keys);
        let mut value = value.clone();
        if let Value::Object(map) = &mut value {
            map.retain(|key, _| !keys.contains(&key.as_str()));
        }
        let value = plain(value, labels, names);
        let empty = match &value {
            Value::Array(set) => set.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(s) => s.is_empty(),
            Value::Bool(false) => column != "enabled",
            _ => false,
        };
        if !empty {
            out.insert(column.clone(), value);
        }
    }
    let label = label(table, row);
    if out.get("name").and_then(Value::as_str) != Some(&label) {
        out.insert("_name".into(), label.into());
    }
    Value::Object(out)
}

fn plain(value: Value, labels: &HashMap<String, String>, names: &HashMap<String, String>) -> Value {
    if let Some(uuid) = uuid_of(&value) {
        return labels.get(uuid).map_or_else(|| uuid.into(), |l| l.as_str().into());
    }
    match value {
        Value::Array(set) => {
            let mut set: Vec<_> = set.into_iter().map(|v| plain(v, labels, names)).collect();
            set.sort_by_key(Value::to_string);
            Value::Array(set)
        }
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(k, v)| (k, plain(v, labels, names))).collect())
        }
        Value::String(s) => names.get(&s).cloned().unwrap_or(s).into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_become_names_and_empty_columns_go() {
        let schema = json!({"tables": {
            "Logical_Switch": {"columns": {"ports": {"type": {"key": {"type": "uuid"}, "min": 0, "max": "unlimited"}}}},
            "Logical_Switch_Port": {"columns": {"up": {"type": {"key": "boolean", "min": 0, "max": 1}}}},
        }});
        let dump = r#"
            {"caption": "Logical_Switch table", "headings": ["_uuid", "name", "ports", "external_ids"],
             "data": [[["uuid", "1"], "n1", ["uuid", "2"], ["map", []]]]}
            {"caption": "Logical_Switch_Port table", "headings": ["_uuid", "name", "up", "options"],
             "data": [[["uuid", "2"], "red_a", true, ["map", [["uid", "77"]]]]]}"#;
        let names = HashMap::from([("77".to_owned(), "uid-of-red/a".to_owned())]);
        let expected = json!({
            "Logical_Switch": [{"name": "n1", "ports": ["red_a"]}],
            "Logical_Switch_Port": [{"name": "red_a", "options": {"uid": "uid-of-red/a"}}],
        });
        assert_eq!(database(dump, &schema, &names).unwrap(), expected);
    }

    #[test]
    fn a_row_without_a_name_is_named_by_what_identifies_it() {
        let row: Row =
            [("type", "snat"), ("external_ip", "1.1.1.1"), ("logical_ip", "10.0.0.0/8"), ("match", "")]
                .map(|(k, v)| (k.to_owned(), Value::from(v)))
                .into();
        assert_eq!(label("NAT", &row), "snat 1.1.1.1 10.0.0.0/8");
        assert_eq!(label("Copp", &Row::new()), "Copp");
    }
}

//! What `ovn-trace` says, and the rows of the northbound database behind it.

use std::collections::BTreeMap;

use serde_json::Value;

/// A logical flow that the packet met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The logical switch or router.
    pub(super) datapath: String,
    /// The stage, such as `ls_out_acl_eval`.
    pub(super) stage: String,
    /// What the flow matches.
    pub(super) matched: String,
    /// First digits of the flow's UUID.
    pub(super) uuid: String,
}

/// The whole trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Traced {
    pub(super) steps: Vec<Step>,
    /// Logical ports that the packet came out of.
    pub(super) outputs: Vec<String>,
}

/// Reads the detailed output of ovn-trace (ovn-trace(8)).
pub(super) fn read(text: &str) -> Traced {
    let (mut traced, mut datapath) = (Traced::default(), String::new());
    for line in text.lines() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("ingress(dp=\"").or_else(|| line.strip_prefix("egress(dp=\"")) {
            datapath = rest.split('"').next().unwrap_or_default().to_owned();
        } else if let Some(rest) = line.strip_prefix("/* output to \"") {
            let mut words = rest.split('"');
            let (port, kind) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            // Through others the packet goes on to the next switch or router.
            if matches!(kind, "" | "localnet") {
                traced.outputs.push(port.to_owned());
            }
        } else if let Some((stage, matched, uuid)) = step(line) {
            let datapath = datapath.clone();
            traced.steps.push(Step {
                datapath,
                stage: stage.to_owned(),
                matched: matched.to_owned(),
                uuid: uuid.to_owned(),
            });
        }
    }
    traced
}

/// ` 8. ls_in_acl_eval (northd.c:7000): MATCH, priority 2001, uuid 5cd2e0a0`.
fn step(line: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = line.split_once(". ")?;
    number.parse::<u32>().ok()?;
    let (head, uuid) = rest.rsplit_once(", uuid ")?;
    let (head, _priority) = head.rsplit_once(", priority ")?;
    let (stage, matched) = head.split_once(": ")?;
    Some((stage.split(' ').next()?, matched, uuid.trim()))
}

/// Rows of a table as `ovn-nbctl --format=json` prints them: by column.
pub(super) fn rows(text: &str) -> Vec<BTreeMap<String, Value>> {
    let Ok(table) = serde_json::from_str::<Value>(text) else { return Vec::new() };
    let headings: Vec<String> = table["headings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    let row = |cells: &Value| -> Option<BTreeMap<String, Value>> {
        Some(headings.iter().cloned().zip(cells.as_array()?.iter().map(plain)).collect())
    };
    table["data"].as_array().into_iter().flatten().filter_map(row).collect()
}

/// A value of OVSDB (RFC 7047) as plain JSON: a map as an object, a set of one or of none as that.
fn plain(value: &Value) -> Value {
    match (value[0].as_str(), &value[1]) {
        (Some("uuid"), id) => id.clone(),
        (Some("map"), Value::Array(pairs)) => pairs
            .iter()
            .filter_map(|pair| Some((pair[0].as_str()?.to_owned(), pair[1].clone())))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        (Some("set"), Value::Array(list)) => match list.as_slice() {
            [] => Value::Null,
            [one] => plain(one),
            more => more.iter().map(plain).collect(),
        },
        _ => value.clone(),
    }
}

/// By first digits of a logical flow's UUID: the row of the northbound database that it is made from.
pub(super) fn hints(rows: &[BTreeMap<String, Value>]) -> BTreeMap<String, String> {
    let hint = |row: &BTreeMap<String, Value>| {
        let uuid = row.get("_uuid")?.as_str()?;
        let hint = row.get("external_ids")?.get("stage-hint")?.as_str()?;
        Some((uuid.get(..8)?.to_owned(), hint.to_owned()))
    };
    rows.iter().filter_map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"
# tcp,reg14=0x2

ingress(dp="n1", inport="shop_web")
-----------------------------------
 0. ls_in_check_port_sec (northd.c:9352): 1, priority 50, uuid 83d9a2a5
    reg0[15] = check_in_port_sec();
    next;
    /* output to "stor-n1", type "patch" */

egress(dp="n2", inport="stor-n2", outport="shop_db")
----------------------------------------------------
 4. ls_out_acl_eval (northd.c:7213): reg8[30..31] == 0 && (outport == @a1, b), priority 2001, uuid 0c1f6a1e
    reg8[16] = 1;
    next;
 9. ls_out_check_port_sec (northd.c:6000): 1, priority 0, uuid 9fd0f2c1
    output;
    /* output to "shop_db", type "" */
"#;

    #[test]
    fn steps_and_outputs_are_read() {
        let traced = read(TRACE);
        assert_eq!(traced.outputs, ["shop_db"]);
        let acl = &traced.steps[1];
        assert_eq!(
            (acl.datapath.as_str(), acl.stage.as_str(), acl.uuid.as_str()),
            ("n2", "ls_out_acl_eval", "0c1f6a1e")
        );
        assert_eq!(acl.matched, "reg8[30..31] == 0 && (outport == @a1, b)");
    }

    #[test]
    fn rows_of_ovn_are_plain_json_and_flows_lead_to_their_rows() {
        let text = r#"{"headings":["_uuid","external_ids","name"],"data":[[["uuid","0c1f6a1e-1"],
            ["map",[["stage-hint","5d3f1a11"]]],["set",[]]],[["uuid","83d9a2a5-1"],["map",[]],"x"]]}"#;
        let rows = rows(text);
        assert_eq!((&rows[0]["name"], &rows[1]["name"]), (&Value::Null, &Value::from("x")));
        assert_eq!(hints(&rows), BTreeMap::from([("0c1f6a1e".to_owned(), "5d3f1a11".to_owned())]));
    }
}

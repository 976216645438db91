//! Whether an address is given twice, at any moment while the scenes are played.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use testbed::cluster::Bed;

/// Looks at the logical ports again and again.
pub(super) struct Addresses {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<String>>,
}

impl Addresses {
    /// Begins.
    pub(super) fn watch(bed: &Bed) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let bed = Bed::open(&bed.config().name)?;
        let work = move || {
            let (mut looks, mut most) = (0_u32, 0);
            while !flag.load(Ordering::Relaxed) {
                most = most.max(each_once(&bed)?);
                looks += 1;
                thread::sleep(Duration::from_millis(250));
            }
            Ok(format!("no address is given twice: {looks} looks, up to {most} pods"))
        };
        let thread = thread::Builder::new().name("addresses".into()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Ends, and says what was seen.
    pub(super) fn end(self) -> Result<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|panic| anyhow!("the watching thread panicked: {panic:?}"))?
    }
}

/// Fails if two pods' logical ports have an address in common; else says how many pods there are.
pub(super) fn each_once(bed: &Bed) -> Result<usize> {
    let out = bed.nbctl(&[
        "--format=json",
        "--columns=name,addresses",
        "find",
        "Logical_Switch_Port",
        "external_ids:pod=true",
    ])?;
    judge(&serde_json::from_str(&out).context("logical ports")?)
}

fn judge(table: &Value) -> Result<usize> {
    let rows = table["data"].as_array().context("no rows")?;
    let mut owners = BTreeMap::new();
    for row in rows {
        let name = row[0].as_str().unwrap_or_default();
        for text in strings(&row[1]) {
            // MAC address first, then addresses.
            for address in text.split(' ').skip(1) {
                if let Some(other) = owners.insert(address.to_owned(), name) {
                    bail!("{address} was given to {other} and to {name}");
                }
            }
        }
    }
    Ok(rows.len())
}

/// A value, or a set of values: `["set", [..]]` (RFC 7047, 5.1).
fn strings(value: &Value) -> Vec<&str> {
    match value.as_str() {
        Some(one) => vec![one],
        None => value[1].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_of_two_ports_is_named_with_both() {
        let row = |name: &str, address: &str| json!([name, address]);
        let one = row("ns_a", "0a:58:0a:f4:00:03 10.244.0.3 fd00::3");
        assert_eq!(judge(&json!({"data": [one, row("ns_b", "0a:58:0a:f4:00:04 10.244.0.4")]})).unwrap(), 2);
        let set = json!(["ns_c", ["set", ["0a:58:0a:f4:00:05 10.244.0.5 fd00::3"]]]);
        let error = judge(&json!({"data": [one, set]})).unwrap_err().to_string();
        assert!(["fd00::3", "ns_a", "ns_c"].iter().all(|word| error.contains(word)), "{error}");
    }
}

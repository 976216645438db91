//! Configuration of ovn-controller: `external_ids` of the Open_vSwitch row (ovn-controller(8)).

use std::collections::BTreeMap;

use anyhow::Context;
use ovsdb_client::vswitch::OpenVSwitch;
use ovsdb_client::{Atom, Condition, Datum, Map, Mutator, Transaction, Uuid};

use super::mappings;
use crate::ovs::Ovs;

/// Settings that start scripts of OVS write too.
const OF_THE_MACHINE: [&str; 2] = ["system-id", "hostname"];

/// Node-specific settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChassisConfig {
    /// Name of the Node object.
    pub node: String,
    /// Southbound database, as in `tcp:172.18.0.10:6642`.
    pub southbound: String,
    /// Address of the tunnel endpoint.
    pub encap_ip: String,
    /// Name of the gateway bridge.
    pub bridge: String,
    /// Name of the second uplink's bridge.
    pub second_bridge: Option<String>,
}

impl ChassisConfig {
    /// Makes ovn-controller reconnect to the southbound database, by an equivalent spelling of its address (port with five digits
    /// instead of four): after the node's address has moved, its connection uses an address that no longer exists, which it would
    /// detect only minutes later.
    pub fn connect_anew(&mut self, plain: &str) {
        let other = plain.split(',').map(|remote| match remote.rsplit_once(':') {
            Some((server, port)) if port.parse::<u16>().is_ok() => format!("{server}:0{port}"),
            _ => remote.to_owned(),
        });
        let other = other.collect::<Vec<_>>().join(",");
        self.southbound = if self.southbound == plain { other } else { plain.to_owned() };
    }
}

/// Writes differing settings in one transaction. Returns the chassis name (`system-id`): `announced` if the cluster knows the node
/// by it already, else the existing one, else a new one.
///
/// # Errors
/// The database is empty or rejects the transaction.
pub async fn ensure(ovs: &Ovs, config: &ChassisConfig, announced: Option<&str>) -> anyhow::Result<String> {
    let row = ovs.system().context("the Open_vSwitch database is empty; run `ovs-vsctl init`")?;
    let there = announced.map(str::to_owned).or_else(|| chassis_name(&row));
    let chassis = there.unwrap_or_else(|| Uuid::new_v4().to_string());
    let mut txn = Transaction::new();
    let mut columns = Vec::new();
    if let Some(ids) = changed(&row.external_ids, external_ids(config, &chassis, &row)) {
        columns.push(("external_ids", ids.into()));
    }
    if let Some(other) = changed(&row.other_config, other_config()) {
        columns.push(("other_config", other.into()));
    }
    if !columns.is_empty() {
        txn.update("Open_vSwitch", vec![Condition::uuid(row.uuid)], columns);
        ovs.transact(txn).await.context("chassis settings in Open_vSwitch")?;
    }
    Ok(chassis)
}

/// Removes OVN's bridge and the settings that [`ensure`] writes. OVS's own description of the machine, `system-id` and `hostname`, stays.
///
/// # Errors
/// The database rejects the transaction.
pub async fn remove(ovs: &Ovs) -> anyhow::Result<()> {
    let Some(row) = ovs.system() else { return Ok(()) };
    let mut txn = Transaction::new();
    let which = || vec![Condition::uuid(row.uuid)];
    let keys = |all: Vec<(&'static str, String)>| {
        let ours = all.into_iter().map(|(key, _)| key).filter(|key| !OF_THE_MACHINE.contains(key));
        Datum::set(ours.map(|key| Atom::String(key.into())))
    };
    let any = ChassisConfig {
        node: String::new(),
        southbound: "any".to_owned(),
        encap_ip: String::new(),
        bridge: String::new(),
        second_bridge: None,
    };
    txn.mutate(
        "Open_vSwitch",
        which(),
        [
            ("external_ids", Mutator::Delete, keys(external_ids(&any, "", &row))),
            ("other_config", Mutator::Delete, keys(other_config())),
        ],
    );
    if let Some(others) = mappings::of_others(&row) {
        // After the whole value was deleted above.
        let pair = Datum::map([(mappings::KEY, others)]);
        txn.mutate("Open_vSwitch", which(), [("external_ids", Mutator::Insert, pair)]);
    }
    if let Some(bridge) = ovs.bridge(api::ovn_name::INTEGRATION_BRIDGE) {
        let gone = Datum::set([Atom::Uuid(bridge.uuid)]);
        txn.mutate("Open_vSwitch", which(), [("bridges", Mutator::Delete, gone)]);
    }
    ovs.transact(txn).await.context("settings of OVN in Open_vSwitch").map(drop)
}

/// Keys of settings that differ from those of [`ensure`]. The cluster knows the node as `announced`; ports bound to another chassis
/// name would not work.
pub fn changed_by_others(ovs: &Ovs, config: &ChassisConfig, announced: &str) -> Vec<String> {
    ovs.system().map(|row| wrong_keys(&row, config, announced)).unwrap_or_default()
}

fn wrong_keys(row: &OpenVSwitch, config: &ChassisConfig, announced: &str) -> Vec<String> {
    let of = |current: &Map<String, String>, wanted: Vec<(&'static str, String)>| {
        let wrong = wanted.into_iter().filter(|(key, value)| current.get(*key) != Some(value));
        wrong.map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
    };
    let mut keys = of(&row.external_ids, external_ids(config, announced, row));
    keys.extend(of(&row.other_config, other_config()));
    keys
}

/// Chassis name set by OVS's start scripts or an earlier agent.
fn chassis_name(row: &OpenVSwitch) -> Option<String> {
    row.external_ids.get("system-id").filter(|id| !id.is_empty()).cloned()
}

/// `row`: its entries of other physical networks in `ovn-bridge-mappings` are kept.
fn external_ids(config: &ChassisConfig, chassis: &str, row: &OpenVSwitch) -> Vec<(&'static str, String)> {
    let mut ids = vec![
        ("system-id", chassis.to_owned()),
        ("hostname", config.node.clone()),
        ("ovn-encap-type", "geneve".to_owned()),
        ("ovn-encap-ip", config.encap_ip.clone()),
        // Makes slow and fast packets identical for the peer: the fast path cannot maintain an outer UDP checksum with
        // segmentation offload.
        ("ovn-encap-csum", "false".to_owned()),
        (mappings::KEY, mappings::with_own(row, &config.bridge, config.second_bridge.as_deref())),
        ("ovn-monitor-all", "true".to_owned()),
        ("ovn-remote-probe-interval", "100000".to_owned()),
        ("ovn-bridge-remote-probe-interval", "0".to_owned()),
        ("ovn-enable-lflow-cache", "true".to_owned()),
        ("ovn-ofctrl-wait-before-clear", "0".to_owned()),
        ("ovn-is-interconn", "false".to_owned()),
        ("ovn-set-local-ip", "true".to_owned()),
    ];
    if !config.southbound.is_empty() {
        ids.push(("ovn-remote", config.southbound.clone()));
    }
    ids
}

fn other_config() -> Vec<(&'static str, String)> {
    // On a busy node OVS needs longer for a bundle of many flows than the default allows.
    vec![("bundle-idle-timeout", "0".to_owned())]
}

/// `current` with `wanted` merged in; `None` when it is contained already. Other keys are kept.
fn changed(
    current: &Map<String, String>,
    wanted: Vec<(&'static str, String)>,
) -> Option<BTreeMap<String, String>> {
    let current = BTreeMap::from(current);
    let mut new = current.clone();
    new.extend(wanted.into_iter().map(|(k, v)| (k.to_owned(), v)));
    (new != current).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ChassisConfig {
        ChassisConfig {
            node: "n1".to_owned(),
            southbound: "tcp:172.18.0.10:6642".to_owned(),
            encap_ip: "172.18.0.2".to_owned(),
            bridge: "breth0".to_owned(),
            second_bridge: None,
        }
    }

    /// Settings of the reference's node that are the agent's, not the start script's.
    const REFERENCE: &str = "hostname=n1 ovn-bridge-mappings=physnet:breth0 ovn-bridge-remote-probe-interval=0 \
        ovn-enable-lflow-cache=true ovn-encap-ip=172.18.0.2 ovn-encap-type=geneve ovn-is-interconn=false \
        ovn-monitor-all=true ovn-ofctrl-wait-before-clear=0 ovn-remote-probe-interval=100000 \
        ovn-remote=tcp:172.18.0.10:6642 ovn-set-local-ip=true system-id=00000000-0000-4000-8000-000000000001";

    #[test]
    fn settings_are_those_of_the_reference_and_the_tunnel_checksum() {
        let none = OpenVSwitch::default();
        let ids = external_ids(&config(), "00000000-0000-4000-8000-000000000001", &none);
        let mut ours: Vec<String> = ids.iter().map(|(k, v)| format!("{k}={v}")).collect();
        ours.retain(|pair| pair != "ovn-encap-csum=false");
        ours.sort();
        let mut reference: Vec<&str> = REFERENCE.split_whitespace().collect();
        reference.sort_unstable();
        assert_eq!(ours, reference);
        assert_eq!(ids.len(), reference.len() + 1);
    }

    #[test]
    fn another_spelling_of_the_southbound_database_is_the_same_database() {
        let mut config = config();
        let plain = config.southbound.clone();
        config.connect_anew(&plain);
        assert_eq!(config.southbound, "tcp:172.18.0.10:06642");
        config.connect_anew(&plain);
        assert_eq!(config.southbound, plain);
        let several = "ssl:[fd00::1]:6642,unix:/run/ovn/ovnsb_db.sock";
        config.southbound = several.to_owned();
        config.connect_anew(several);
        assert_eq!(config.southbound, "ssl:[fd00::1]:06642,unix:/run/ovn/ovnsb_db.sock");
    }

    #[test]
    fn what_somebody_changed_is_seen_and_settings_of_others_are_not() {
        let ids =
            external_ids(&config(), "a", &OpenVSwitch::default()).into_iter().map(|(k, v)| (k.to_owned(), v));
        let other = other_config().into_iter().map(|(k, v)| (k.to_owned(), v));
        let mut row = OpenVSwitch {
            external_ids: ids.chain([("theirs".to_owned(), "x".to_owned())]).collect(),
            other_config: other.collect(),
            ..OpenVSwitch::default()
        };
        assert!(wrong_keys(&row, &config(), "a").is_empty());
        let mapped = |value: &str| {
            let mut row = row.clone();
            let mut ids = BTreeMap::from(&row.external_ids);
            ids.insert("ovn-bridge-mappings".to_owned(), value.to_owned());
            row.external_ids = ids.into();
            wrong_keys(&row, &config(), "a")
        };
        assert!(mapped("dc:br-dc,physnet:breth0").is_empty(), "an entry of others");
        assert_eq!(mapped("dc:br-dc,physnet:other"), ["ovn-bridge-mappings"]);
        let mut ids = BTreeMap::from(&row.external_ids);
        ids.insert("system-id".to_owned(), "b".to_owned());
        ids.retain(|key, _| !["ovn-remote", "theirs"].contains(&&**key));
        (row.external_ids, row.other_config) = (ids.into(), Map::default());
        let mut wrong = wrong_keys(&row, &config(), "a");
        wrong.sort();
        assert_eq!(wrong, ["bundle-idle-timeout", "ovn-remote", "system-id"]);
    }

    #[test]
    fn settings_of_others_stay_and_the_same_again_is_no_change() {
        let foreign = Map::from([("ovn-bridge-datapath-type".to_owned(), "netdev".to_owned())]);
        let row = OpenVSwitch { external_ids: foreign.clone(), ..OpenVSwitch::default() };
        let new = changed(&foreign, external_ids(&config(), "x", &row)).unwrap();
        assert_eq!(new.get("ovn-bridge-datapath-type").map(String::as_str), Some("netdev"));
        assert_eq!(changed(&new.into(), external_ids(&config(), "x", &row)), None);
    }
}

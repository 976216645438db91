//! Rows of the gateway bridge and of internal ports in the Open_vSwitch database. All functions are idempotent and write only
//! differences.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use api::MacAddr;
use ovsdb_client::vswitch::{Bridge, Interface, OpenVSwitch};
use ovsdb_client::{Atom, Condition, Datum, MonitorSpec, Mutator, Transaction};

use crate::ovs::Ovs;

/// Timeout for ovs-vswitchd to apply a change; then the uplink migration fails.
const PATIENCE: Duration = Duration::from_secs(15);

/// Desired gateway bridge.
#[derive(Debug, Clone)]
pub struct BridgeSpec<'a> {
    /// Name.
    pub name: &'a str,
    /// The uplink.
    pub uplink: &'a str,
    /// `system` (kernel) or `netdev` (userspace).
    pub datapath_type: &'a str,
    /// Hardware address.
    pub mac: MacAddr,
}

/// Creates the bridge or updates its columns; an existing bridge keeps its ports. Returns true when it was created.
///
/// # Errors
/// The database rejects the transaction, or ovs-vswitchd does not open the bridge's interface in time.
pub async fn ensure(ovs: &Ovs, spec: &BridgeSpec<'_>) -> anyhow::Result<bool> {
    let external_ids = BTreeMap::from([
        ("bridge-id".to_owned(), spec.name.to_owned()),
        ("bridge-uplink".to_owned(), spec.uplink.to_owned()),
    ]);
    let mac = spec.mac.to_string();
    let mut txn = Transaction::new();
    let existing = ovs.bridge(spec.name);
    match &existing {
        Some(row) => correct(&mut txn, row, &external_ids, &mac),
        None => create(&mut txn, spec, &external_ids, &mac),
    }
    ovs.transact(txn).await.with_context(|| format!("bridge {}", spec.name))?;
    wait_for_port(ovs, spec.name).await?;
    Ok(existing.is_none())
}

fn correct(txn: &mut Transaction, row: &Bridge, external_ids: &BTreeMap<String, String>, mac: &str) {
    let mut columns: Vec<(&str, Datum)> = Vec::new();
    if external_ids.iter().any(|(k, v)| row.external_ids.get(k) != Some(v)) {
        let mut all = BTreeMap::from(&row.external_ids);
        all.extend(external_ids.clone());
        columns.push(("external_ids", all.into()));
    }
    if row.other_config.get("hwaddr").map(String::as_str) != Some(mac) {
        let mut all = BTreeMap::from(&row.other_config);
        all.insert("hwaddr".to_owned(), mac.to_owned());
        columns.push(("other_config", all.into()));
    }
    if row.fail_mode.as_deref() != Some("standalone") {
        columns.push(("fail_mode", "standalone".into()));
    }
    if !columns.is_empty() {
        txn.update("Bridge", vec![Condition::uuid(row.uuid)], columns);
    }
}

fn create(txn: &mut Transaction, spec: &BridgeSpec<'_>, external_ids: &BTreeMap<String, String>, mac: &str) {
    let interface = txn.insert("Interface", [("name", spec.name.into()), ("type", "internal".into())]);
    let port = txn.insert("Port", [("name", spec.name.into()), ("interfaces", Datum::set([interface]))]);
    let bridge = txn.insert(
        "Bridge",
        [
            ("name", spec.name.into()),
            ("ports", Datum::set([port])),
            ("datapath_type", spec.datapath_type.into()),
            ("fail_mode", "standalone".into()),
            ("external_ids", external_ids.clone().into()),
            ("other_config", Datum::map([("hwaddr", mac)])),
        ],
    );
    attach(txn, "Open_vSwitch", vec![], "bridges", bridge);
    request_configuration(txn);
}

/// Adds an interface of the host to the bridge, as a transient port that is removed at reboot.
///
/// # Errors
/// The bridge does not exist, the interface is a port of another bridge, the database rejects the transaction, or ovs-vswitchd does not
/// open the interface in time.
pub async fn ensure_port(ovs: &Ovs, bridge: &str, port: &str) -> anyhow::Result<()> {
    let row = ovs.bridge(bridge).with_context(|| format!("bridge {bridge} does not exist"))?;
    if !has_port(ovs, &row, port) {
        if ovs.port(port).is_some() {
            bail!(
                "interface {port} is a port of another OVS bridge than {bridge}; remove it from that bridge"
            );
        }
        let mut txn = Transaction::new();
        let interface = txn.insert("Interface", [("name", Datum::from(port))]);
        let new = txn.insert(
            "Port",
            [
                ("name", port.into()),
                ("interfaces", Datum::set([interface])),
                ("other_config", Datum::map([("transient", "true")])),
            ],
        );
        attach(&mut txn, "Bridge", vec![Condition::uuid(row.uuid)], "ports", new);
        request_configuration(&mut txn);
        ovs.transact(txn).await.with_context(|| format!("port {port} of bridge {bridge}"))?;
    }
    wait_for_port(ovs, port).await
}

/// Removes an interface from the bridge; returns false when it was not a port.
///
/// # Errors
/// The database rejects the transaction, or ovs-vswitchd does not apply it in time.
pub async fn remove_port(ovs: &Ovs, bridge: &str, port: &str) -> anyhow::Result<bool> {
    let (Some(bridge_row), Some(port_row)) = (ovs.bridge(bridge), ovs.port(port)) else { return Ok(false) };
    if !bridge_row.ports.contains(&port_row.uuid) {
        return Ok(false);
    }
    let mut txn = Transaction::new();
    let which = vec![Condition::uuid(bridge_row.uuid)];
    txn.mutate("Bridge", which, [("ports", Mutator::Delete, Datum::set([Atom::Uuid(port_row.uuid)]))]);
    configured(ovs, txn).await.with_context(|| format!("remove port {port} of bridge {bridge}"))?;
    Ok(true)
}

/// Removes the bridge with its ports; returns false when it did not exist.
///
/// # Errors
/// The database rejects the transaction, or ovs-vswitchd does not apply it in time.
pub async fn remove(ovs: &Ovs, bridge: &str) -> anyhow::Result<bool> {
    let Some(row) = ovs.bridge(bridge) else { return Ok(false) };
    let mut txn = Transaction::new();
    let value = Datum::set([Atom::Uuid(row.uuid)]);
    txn.mutate("Open_vSwitch", vec![], [("bridges", Mutator::Delete, value)]);
    configured(ovs, txn).await.with_context(|| format!("remove bridge {bridge}"))?;
    Ok(true)
}

/// Executes a transaction and waits until ovs-vswitchd has applied it.
async fn configured(ovs: &Ovs, mut txn: Transaction) -> anyhow::Result<()> {
    request_configuration(&mut txn);
    txn.select("Open_vSwitch", vec![], &["next_cfg"]);
    let results = ovs.transact(txn).await?;
    let wanted = results
        .last()
        .and_then(|r| r.rows.first())
        .and_then(|row| row.get("next_cfg"))
        .and_then(Datum::scalar)
        .and_then(|atom| match atom {
            Atom::Integer(n) => Some(*n),
            _ => None,
        })
        .context("next_cfg is missing in the reply of the database")?;
    let replica = ovs.client().monitor(MonitorSpec::new().table::<OpenVSwitch>(&["cur_cfg"])).await?;
    let reached = || replica.read().table::<OpenVSwitch>().iter().any(|row| row.cur_cfg >= wanted);
    let mut changes = replica.changes();
    let wait = async {
        while !reached() {
            changes.next().await.context("the Open_vSwitch database session ended")?;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
        bail!("ovs-vswitchd did not apply the change within {PATIENCE:?}; is it running?")
    })
}

fn attach(txn: &mut Transaction, table: &str, which: Vec<Condition>, column: &str, row: Atom) {
    txn.mutate(table, which, [(column, Mutator::Insert, Datum::set([row]))]);
}

/// Increments `next_cfg`, which ovs-vswitchd copies to `cur_cfg` after it has applied a change (ovs-vswitchd.conf.db(5)).
fn request_configuration(txn: &mut Transaction) {
    txn.mutate("Open_vSwitch", vec![], [("next_cfg", Mutator::Add, Datum::from(1_i64))]);
}

/// Whether the port belongs to the bridge.
pub fn has_port(ovs: &Ovs, bridge: &Bridge, port: &str) -> bool {
    ovs.port(port).is_some_and(|row| bridge.ports.contains(&row.uuid))
}

/// Waits until ovs-vswitchd has given the interface an OpenFlow port number.
///
/// # Errors
/// ovs-vswitchd reports an error of the interface, or does not open it in time.
pub async fn wait_for_port(ovs: &Ovs, name: &str) -> anyhow::Result<()> {
    let outcome = ovs
        .wait_for(PATIENCE, |ovs| {
            let row = ovs.interface(name)?;
            match (&row.error, row.ofport) {
                (Some(error), _) => Some(Err(error.clone())),
                (None, Some(port)) if port > 0 => Some(Ok(())),
                _ => None,
            }
        })
        .await;
    match outcome {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => bail!("OVS cannot use interface {name}: {error}"),
        None => bail!("ovs-vswitchd did not open interface {name} within {PATIENCE:?}; is it running?"),
    }
}

/// Number of a port of this name, as text; `None` until OVS has assigned it.
pub fn port_number(ovs: &Ovs, name: &str) -> Option<String> {
    ovs.interface(name).and_then(|row| openflow_port(&row)).map(|number| number.to_string())
}

/// OpenFlow port number of an interface, once assigned.
pub fn openflow_port(row: &Interface) -> Option<i64> {
    row.ofport.filter(|port| *port > 0)
}

/// Creates the integration bridge as ovn-controller would, unless it exists.
///
/// # Errors
/// The database rejects the transaction.
pub async fn ensure_integration(ovs: &Ovs) -> anyhow::Result<()> {
    let name = api::ovn_name::INTEGRATION_BRIDGE;
    if ovs.bridge(name).is_some() {
        return Ok(());
    }
    let mut txn = Transaction::new();
    let interface = txn.insert("Interface", [("name", name.into()), ("type", "internal".into())]);
    let port = txn.insert("Port", [("name", name.into()), ("interfaces", Datum::set([interface]))]);
    let bridge = txn.insert(
        "Bridge",
        [
            ("name", name.into()),
            ("ports", Datum::set([port])),
            ("datapath_type", ovs.datapath_type().into()),
            ("fail_mode", "secure".into()),
        ],
    );
    attach(&mut txn, "Open_vSwitch", vec![], "bridges", bridge);
    request_configuration(&mut txn);
    ovs.transact(txn).await.map(drop).with_context(|| format!("bridge {name}"))
}

/// An internal port of the integration bridge.
#[derive(Debug, Clone)]
pub struct InternalPort<'a> {
    /// Name of port and interface.
    pub name: &'a str,
    /// Logical switch port it is bound to.
    pub iface_id: &'a str,
    /// Hardware address.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u32,
}

/// Creates or updates an internal port of the integration bridge.
///
/// # Errors
/// The port belongs to another bridge, the database rejects the transaction, or ovs-vswitchd does not open the interface in time.
pub async fn ensure_internal_port(ovs: &Ovs, spec: &InternalPort<'_>) -> anyhow::Result<()> {
    ensure_integration(ovs).await?;
    let integration = api::ovn_name::INTEGRATION_BRIDGE;
    let bridge = ovs.bridge(integration).with_context(|| format!("bridge {integration} does not exist"))?;
    let mut txn = Transaction::new();
    let mac = spec.mac.to_string();
    match ovs.interface(spec.name) {
        Some(row) if has_port(ovs, &bridge, spec.name) => {
            let mut columns: Vec<(&str, Datum)> = vec![("mac", mac.into()), ("mtu_request", spec.mtu.into())];
            if row.external_ids.get("iface-id").map(String::as_str) != Some(spec.iface_id) {
                columns.push(("external_ids", Datum::map([("iface-id", spec.iface_id)])));
            }
            txn.update("Interface", vec![Condition::uuid(row.uuid)], columns);
        }
        Some(_) => {
            bail!("interface {} is a port of another OVS bridge; remove it from that bridge", spec.name)
        }
        None => {
            let interface = txn.insert(
                "Interface",
                [
                    ("name", spec.name.into()),
                    ("type", "internal".into()),
                    ("mac", mac.into()),
                    ("mtu_request", spec.mtu.into()),
                    ("external_ids", Datum::map([("iface-id", spec.iface_id)])),
                ],
            );
            let port =
                txn.insert("Port", [("name", spec.name.into()), ("interfaces", Datum::set([interface]))]);
            attach(&mut txn, "Bridge", vec![Condition::uuid(bridge.uuid)], "ports", port);
            request_configuration(&mut txn);
        }
    }
    ovs.transact(txn).await.with_context(|| format!("port {}", spec.name))?;
    wait_for_port(ovs, spec.name).await
}

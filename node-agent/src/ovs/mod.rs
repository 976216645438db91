//! Open_vSwitch database of the node: one session and one in-memory replica for the whole agent.

use std::sync::Arc;
use std::time::Duration;

use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};
use ovsdb_client::{Client, Endpoint, Error, MonitorSpec, OpResult, Options, Replica, Transaction};

pub mod chassis;
pub mod mappings;
pub mod openflow;
pub mod ports;
pub mod tracked;
pub mod unixctl;

/// Session with the Open_vSwitch database, and its replica. Clones share them.
#[derive(Debug, Clone)]
pub struct Ovs {
    client: Client,
    replica: Replica,
}

/// Index by name, of tables with names.
const BY_NAME: &str = "name";
/// Index of interfaces by logical port (`external_ids:iface-id`).
const BY_IFACE_ID: &str = "iface-id";
/// Index of interfaces by container id (`external_ids:sandbox`).
const BY_SANDBOX: &str = "sandbox";
/// Index of ports and bridges by the rows they reference.
const BY_CHILD: &str = "child";

impl Ovs {
    /// Connects and reads the monitored tables. Later disconnections are handled by reconnecting.
    ///
    /// # Errors
    /// The database is not synced after `timeout`.
    pub async fn connect(endpoints: &str, timeout: Duration) -> Result<Self, Error> {
        let endpoints = Endpoint::parse_list(endpoints)?;
        let client =
            Client::new(Options { endpoints, database: "Open_vSwitch".to_owned(), ..Options::default() });
        client.connected(timeout).await?;
        let spec = MonitorSpec::new()
            .table::<OpenVSwitch>(&[
                "bridges",
                "external_ids",
                "other_config",
                "ovs_version",
                "datapath_types",
            ])
            .table::<Bridge>(&[
                "name",
                "ports",
                "external_ids",
                "other_config",
                "datapath_type",
                "fail_mode",
                "datapath_id",
                "mirrors",
                "sflow",
                "netflow",
                "ipfix",
                "stp_enable",
                "rstp_enable",
            ])
            .table::<Mirror>(&[
                "name",
                "select_all",
                "select_src_port",
                "select_dst_port",
                "select_vlan",
                "output_port",
            ])
            .table::<Port>(&[
                "name",
                "interfaces",
                "external_ids",
                "other_config",
                "qos",
                "tag",
                "trunks",
                "vlan_mode",
                "protected",
            ])
            .table::<Interface>(&[
                "name",
                "external_ids",
                "ofport",
                "error",
                "type",
                "mac_in_use",
                "ifindex",
                "options",
                "ingress_policing_rate",
                "ingress_policing_kpkts_rate",
            ])
            .index::<Bridge>(BY_NAME, |row| vec![row.name.clone()])
            .index::<Bridge>(BY_CHILD, |row| row.ports.iter().map(ToString::to_string).collect())
            .index::<Port>(BY_NAME, |row| vec![row.name.clone()])
            .index::<Port>(BY_CHILD, |row| row.interfaces.iter().map(ToString::to_string).collect())
            .index::<Interface>(BY_NAME, |row| vec![row.name.clone()])
            .index::<Interface>(BY_IFACE_ID, |row| {
                row.external_ids.get("iface-id").cloned().into_iter().collect()
            })
            .index::<Interface>(BY_SANDBOX, |row| {
                row.external_ids.get("sandbox").cloned().into_iter().collect()
            });
        let replica = match tokio::time::timeout(timeout, client.monitor(spec)).await {
            Ok(replica) => replica?,
            Err(_elapsed) => return Err(Error::Timeout { method: "monitor".to_owned(), after: timeout }),
        };
        Ok(Self { client, replica })
    }

    /// Session, for own transactions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Replica of the tables Open_vSwitch, Bridge, Mirror, Port and Interface.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Executes a transaction; on return the replica contains its effect.
    ///
    /// # Errors
    /// The database rejects the transaction, or is not connected.
    pub async fn transact(&self, transaction: Transaction) -> Result<Vec<OpResult>, Error> {
        self.client.transact(transaction).await
    }

    /// The single row of table Open_vSwitch.
    pub fn system(&self) -> Option<Arc<OpenVSwitch>> {
        self.replica.read().table::<OpenVSwitch>().iter().next().cloned()
    }

    /// The bridge called `name`.
    pub fn bridge(&self, name: &str) -> Option<Arc<Bridge>> {
        self.replica.read().table::<Bridge>().by_index(BY_NAME, name).next().cloned()
    }

    /// The port called `name`.
    pub fn port(&self, name: &str) -> Option<Arc<Port>> {
        self.replica.read().table::<Port>().by_index(BY_NAME, name).next().cloned()
    }

    /// The interface called `name`.
    pub fn interface(&self, name: &str) -> Option<Arc<Interface>> {
        self.replica.read().table::<Interface>().by_index(BY_NAME, name).next().cloned()
    }

    /// Calls `check` after every change until it returns a value; `None` after `timeout`.
    pub async fn wait_for<T>(
        &self,
        timeout: Duration,
        mut check: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.replica.changes();
        let wait = async {
            loop {
                if let Some(value) = check(self) {
                    return Some(value);
                }
                changes.next().await?;
            }
        };
        tokio::time::timeout(timeout, wait).await.ok().flatten()
    }

    /// Datapath type of the bridges: `external_ids:ovn-bridge-datapath-type`, as ovn-controller reads it; default `system`.
    pub fn datapath_type(&self) -> String {
        let set = self.system().and_then(|row| row.external_ids.get("ovn-bridge-datapath-type").cloned());
        set.filter(|t| !t.is_empty()).unwrap_or_else(|| "system".to_owned())
    }

    /// True when OVS's userspace datapath does segmentation and checksums itself (`userspace-tso-enable`).
    pub fn userspace_tso(&self) -> bool {
        let set = self.system().and_then(|row| row.other_config.get("userspace-tso-enable").cloned());
        set.as_deref() == Some("true")
    }
}

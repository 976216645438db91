//! Pod ports on the integration bridge: rows of Port and Interface, with `external_ids` used by OVN and the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::NamespacedName;
use api::ovn_name::INTEGRATION_BRIDGE;
use ovsdb_client::vswitch::{Bridge, Interface, Port};
use ovsdb_client::{Atom, Condition, Datum, Error, Mutator, Transaction, Uuid};

use super::{BY_CHILD, BY_IFACE_ID, BY_SANDBOX, Ovs};
use crate::attach;

/// Content of a pod's port row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPort {
    /// Name of the port and its interface.
    pub name: String,
    /// Logical port: `NAMESPACE_POD` on the cluster network, with a prefix on another (`api::ovn_name::network_pod_port`).
    pub iface_id: String,
    /// UID of the pod (`iface-id-ver`); OVN binds the port only when the logical port has the same.
    pub iface_id_ver: String,
    /// The container (sandbox) id.
    pub sandbox: String,
    /// Name of the interface in the pod.
    pub pod_interface: String,
    /// The pod's MAC address.
    pub mac: String,
    /// The pod's addresses with prefix length, separated by commas.
    pub addresses: String,
}

/// Pod ports cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The integration bridge does not exist yet; ovn-controller creates it.
    #[error("bridge br-int does not exist yet; waiting for ovn-controller to create it")]
    NoBridge,
    /// A port of another container has the name.
    #[error("OVS port {name} belongs to {owner}; not replaced")]
    Foreign {
        /// Port name.
        name: String,
        /// Owner of the port.
        owner: String,
    },
    /// The port was removed during the wait.
    #[error("OVS port {name} was removed while waiting for OVN")]
    Removed {
        /// Port name.
        name: String,
    },
    /// ovn-controller did not report the port as installed in time.
    #[error("OVS port {name}: ovn-controller did not set external_ids:ovn-installed within {after:?}{hint}")]
    NotInstalled {
        /// Port name.
        name: String,
        /// Time waited.
        after: Duration,
        /// Error of the interface's row, or what to check.
        hint: String,
    },
    /// The database rejected the transaction or is not connected.
    #[error("OVS port {name}: {source}")]
    Database {
        /// Names of the ports.
        name: String,
        /// Error of the database.
        source: Error,
    },
}

impl PortError {
    /// True when a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoBridge | Self::NotInstalled { .. } | Self::Removed { .. } => true,
            Self::Foreign { .. } => false,
            Self::Database { source, .. } => {
                source.not_sent()
                    || source.outcome_unknown()
                    || source.is_servers_disk()
                    || matches!(source, Error::Closed)
            }
        }
    }
}

impl PodPort {
    fn external_ids(&self) -> Datum {
        Datum::map([
            ("attached_mac", self.mac.as_str()),
            ("iface-id", &self.iface_id),
            ("iface-id-ver", &self.iface_id_ver),
            ("ip_addresses", &self.addresses),
            ("pod-if-name", &self.pod_interface),
            ("sandbox", &self.sandbox),
        ])
    }

    /// Id of the interface ([`attach::interface_id`]): of the container, unless the port has the name of another than the first.
    pub fn id(&self) -> String {
        attach::interface_of_link(&self.name, &self.sandbox).unwrap_or_else(|| self.sandbox.clone())
    }

    /// The pod; `None` when the logical port is not named after one. Neither part of its name contains an underscore.
    pub fn pod(&self) -> Option<NamespacedName> {
        let mut parts = self.iface_id.rsplitn(3, '_');
        let (name, namespace) = (parts.next()?, parts.next()?);
        Some(NamespacedName::new(namespace, name))
    }

    /// Virtual network of the logical port; `None`: the cluster network.
    pub fn network(&self) -> Option<NamespacedName> {
        let prefix = self.iface_id.rsplitn(3, '_').nth(2)?;
        // The name of the interface may follow.
        let mut parts = prefix.split('.');
        Some(NamespacedName::new(parts.next()?, parts.next()?))
    }

    /// Parses an interface's row; `None` when it is not a pod's.
    pub fn of(row: &Interface) -> Option<Self> {
        let ids = &row.external_ids;
        let get = |key: &str| ids.get(key).cloned().unwrap_or_default();
        Some(Self {
            name: row.name.clone(),
            iface_id: ids.get("iface-id")?.clone(),
            iface_id_ver: get("iface-id-ver"),
            sandbox: ids.get("sandbox")?.clone(),
            pod_interface: ids.get("pod-if-name").cloned().unwrap_or_else(|| "eth0".to_owned()),
            mac: get("attached_mac"),
            addresses: get("ip_addresses"),
        })
    }
}

impl Ovs {
    /// Adds the ports of one pod's interfaces to the integration bridge, in one transaction that also removes ports of older sandboxes of
    /// the pod. Returns the row ids of the interfaces.
    ///
    /// # Errors
    /// [`PortError`]; then none is added.
    pub async fn add_pod_ports(&self, ports: &[PodPort]) -> Result<Vec<Uuid>, PortError> {
        let bridge = self.bridge(INTEGRATION_BRIDGE).ok_or(PortError::NoBridge)?;
        let mut transaction = Transaction::new();
        let mut inserts = Vec::new();
        for port in ports {
            inserts.push(self.plan_add(bridge.uuid, port, &mut transaction)?);
        }
        if let Some(first) = ports.first() {
            transaction.comment(format!("slipstream: pod {} in sandbox {}", first.iface_id, first.sandbox));
        }
        let database = |source| {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            PortError::Database { name: names.join(", "), source }
        };
        let results = self.transact(transaction).await.map_err(database)?;
        let uuid = |insert: &usize| results.get(*insert).and_then(|r| r.uuid);
        let all: Option<Vec<Uuid>> = inserts.iter().map(uuid).collect();
        all.ok_or_else(|| database(Error::Protocol("an insert without a row id in the reply".to_owned())))
    }

    /// Adds what makes a port to a transaction; returns the position of the interface's insert.
    fn plan_add(
        &self,
        bridge: Uuid,
        port: &PodPort,
        transaction: &mut Transaction,
    ) -> Result<usize, PortError> {
        let snapshot = self.replica().read();
        let interfaces = snapshot.table::<Interface>();
        if let Some(there) = interfaces.by_index("name", &port.name).next() {
            let ours =
                PodPort::of(there).is_some_and(|p| p.sandbox == port.sandbox && p.iface_id == port.iface_id);
            if !ours {
                let ids = &there.external_ids;
                let owner = ids.get("iface-id").map_or("an unknown owner", String::as_str);
                return Err(PortError::Foreign { name: port.name.clone(), owner: format!("`{owner}`") });
            }
        }
        for stale in interfaces.by_index(BY_IFACE_ID, &port.iface_id) {
            for row in snapshot.table::<Port>().by_index(BY_CHILD, &stale.uuid.to_string()) {
                tracing::info!(
                    port = row.name,
                    iface_id = port.iface_id,
                    "removing a port of an older sandbox of the pod"
                );
                for holder in snapshot.table::<Bridge>().by_index(BY_CHILD, &row.uuid.to_string()) {
                    let gone = Datum::set([row.uuid]);
                    transaction.mutate(
                        "Bridge",
                        vec![Condition::uuid(holder.uuid)],
                        [("ports", Mutator::Delete, gone)],
                    );
                }
            }
        }
        let interface_op = transaction.len();
        let interface = transaction.insert(
            "Interface",
            [("name", port.name.as_str().into()), ("external_ids", port.external_ids())],
        );
        let row = transaction.insert(
            "Port",
            [
                ("name", Datum::from(port.name.as_str())),
                ("interfaces", Datum::set([interface])),
                ("other_config", Datum::map([("transient", "true")])),
            ],
        );
        let new = Datum::set::<Atom>([row]);
        transaction.mutate("Bridge", vec![Condition::uuid(bridge)], [("ports", Mutator::Insert, new)]);
        Ok(interface_op)
    }

    /// Waits until ovn-controller has installed the port's flows (`external_ids:ovn-installed=true`).
    ///
    /// # Errors
    /// [`PortError`].
    pub async fn wait_installed(&self, uuid: Uuid, name: &str, timeout: Duration) -> Result<(), PortError> {
        enum Seen {
            Installed,
            Gone,
        }
        let look = |ovs: &Self| {
            // While disconnected the replica is stale, and a missing row is not significant.
            let snapshot = ovs.replica().read();
            match snapshot.table::<Interface>().get(&uuid) {
                Some(row) if row.external_ids.get("ovn-installed").is_some_and(|v| v == "true") => {
                    Some(Seen::Installed)
                }
                Some(_) => None,
                None => Some(Seen::Gone),
            }
        };
        match self.wait_for(timeout, look).await {
            Some(Seen::Installed) => Ok(()),
            Some(Seen::Gone) => Err(PortError::Removed { name: name.to_owned() }),
            None => Err(PortError::NotInstalled {
                name: name.to_owned(),
                after: timeout,
                hint: self.why_not(uuid),
            }),
        }
    }

    fn why_not(&self, uuid: Uuid) -> String {
        let row = self.replica().read().table::<Interface>().get(&uuid).cloned();
        match row {
            Some(row) if row.error.is_some() => format!("; error of the OVS interface: {}", row.error.as_deref().unwrap_or_default()),
            Some(row) if row.ofport.is_none() => "; OVS has not opened the port: is ovs-vswitchd running?".to_owned(),
            _ => "; is ovn-controller running and connected, and does the logical port exist with this iface-id-ver?".to_owned(),
        }
    }

    /// Removes ports by name, in one transaction. Unknown names are ignored.
    ///
    /// # Errors
    /// The database did not carry out the transaction.
    pub async fn delete_ports(&self, names: &[String]) -> Result<(), PortError> {
        let mut transaction = Transaction::new();
        {
            let snapshot = self.replica().read();
            let mut gone: BTreeMap<Uuid, Vec<Uuid>> = BTreeMap::new();
            for name in names {
                for row in snapshot.table::<Port>().by_index("name", name) {
                    for holder in snapshot.table::<Bridge>().by_index(BY_CHILD, &row.uuid.to_string()) {
                        gone.entry(holder.uuid).or_default().push(row.uuid);
                    }
                }
            }
            for (bridge, ports) in gone {
                transaction.mutate(
                    "Bridge",
                    vec![Condition::uuid(bridge)],
                    [("ports", Mutator::Delete, Datum::set(ports))],
                );
            }
        }
        let database = |source| PortError::Database { name: names.join(", "), source };
        self.transact(transaction).await.map_err(database).map(drop)
    }

    /// All pod ports.
    pub fn pod_ports(&self) -> Vec<PodPort> {
        let snapshot = self.replica().read();
        snapshot.table::<Interface>().iter().filter_map(|row| PodPort::of(row)).collect()
    }

    /// The pod ports of one container with their rows.
    pub fn ports_of(&self, sandbox: &str) -> Vec<Arc<Interface>> {
        let snapshot = self.replica().read();
        snapshot.table::<Interface>().by_index(BY_SANDBOX, sandbox).cloned().collect()
    }

    /// True when a port of this name is on the integration bridge.
    pub fn is_on_integration_bridge(&self, port: &str) -> bool {
        let Some(bridge) = self.bridge(INTEGRATION_BRIDGE) else { return false };
        self.port(port).is_some_and(|row| bridge.ports.contains(&row.uuid))
    }
}

//! Rows that ovn-kubernetes left in the database for features that this controller does not have. Such rows are never
//! changed, and are reported before anything is written: the administrator who migrates a cluster must know that they are no
//! longer maintained.

use std::collections::BTreeMap;
use std::fmt;

use api::ovn_name::{self, key};
use ovsdb_client::{Map, Snapshot, nb};

use crate::plan::external_gateways;

/// Owner types of the rows that the controller writes.
const OWN_TYPES: [&str; 15] = [
    "Cluster",
    external_gateways::OWNER_TYPE,
    "MultiNetpolNamespace",
    "MultiNetworkPolicy",
    "MultiNetworkPolicyNamedPort",
    "MultiPodSelector",
    "MultiPodSelectorNamedPort",
    "NetpolDefault",
    "NetpolNamespace",
    "NetpolNode",
    "NetworkPolicy",
    "NetworkPolicyNamedPort",
    "PodSelector",
    "PodSelectorNamedPort",
    "ServiceSourceRanges",
];
/// Owner type of network policies' ACLs in older versions of ovn-kubernetes: our ACLs in another form, which would stay open
/// beside the present ones.
const SUPERSEDED: &str = "NetworkPolicyPortIndexOwnerType";
/// Owner type of address sets and port groups that hold a namespace's pods for other features. They have no effect alone.
const HELPER: &str = "Namespace";
/// The switch that joins the zones of an interconnect.
const TRANSIT_SWITCH: &str = "transit_switch";

/// Whether a row with these `external_ids` is of a kind that the controller writes.
pub fn is_ours(ids: &Map<String, String>) -> bool {
    let owner = ids.get(key::OWNER_CONTROLLER).is_some_and(|owner| owner == ovn_name::OWNER);
    let kind = ids.get(key::OWNER_TYPE).map(String::as_str);
    owner && kind.is_some_and(|kind| OWN_TYPES.contains(&kind) || kind == SUPERSEDED)
}

/// Whether a row with these `external_ids` is one of a virtual network of ours.
pub fn of_virtual_network(ids: &Map<String, String>) -> bool {
    ids.contains_key(key::VIRTUAL_NETWORK)
}

/// Whether a row with these `external_ids` belongs to another network than the cluster's own, and that one is not ours.
pub fn of_other_network(ids: &Map<String, String>) -> bool {
    other_network(ids).is_some()
}

fn other_network(ids: &Map<String, String>) -> Option<&String> {
    // Without a name, or with this one, a row is the cluster's own.
    let other = ids.get(key::NETWORK).filter(|name| *name != api::annotation::DEFAULT_NETWORK);
    other.filter(|_| !of_virtual_network(ids))
}

/// Rows of one feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Number of rows.
    pub rows: usize,
    /// Table and name of one of them.
    pub example: String,
}

/// Rows of features that the controller does not have, by feature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// What was found, by name of the feature.
    pub features: BTreeMap<String, Found>,
}

impl Foreign {
    /// Searches a database for such rows.
    pub fn find(snapshot: &Snapshot<'_>) -> Self {
        let mut found = Self::default();
        /// Rows that carry their owner's marks.
        macro_rules! marked {
            ($($row:ident $table:literal)*) => {$(
                for row in snapshot.table::<nb::$row>().iter() {
                    found.marked($table, &row.external_ids);
                }
            )*};
        }
        marked! {
            Acl "ACL"
            AddressSet "Address_Set"
            LoadBalancer "Load_Balancer"
            LogicalRouter "Logical_Router"
            LogicalRouterPolicy "Logical_Router_Policy"
            LogicalRouterStaticRoute "Logical_Router_Static_Route"
            LogicalSwitch "Logical_Switch"
            Nat "NAT"
            PortGroup "Port_Group"
        }
        for row in snapshot.table::<nb::LogicalSwitch>().iter() {
            if row.name == TRANSIT_SWITCH {
                found.note("interconnect zones", "Logical_Switch", &row.name);
            }
            for _rule in &row.qos_rules {
                found.note("EgressQoS", "QoS rule of Logical_Switch", &row.name);
            }
        }
        for row in snapshot.table::<nb::LogicalRouterStaticRoute>().iter() {
            let of_gateway = row.options.get("ecmp_symmetric_reply").is_some_and(|value| value == "true");
            if of_gateway && !row.external_ids.contains_key(external_gateways::MARK) {
                found.note("AdminPolicyBasedExternalRoute", "Logical_Router_Static_Route", &row.ip_prefix);
            }
        }
        found
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }

    fn note(&mut self, feature: &str, table: &str, name: &str) {
        let found = self.features.entry(feature.to_owned());
        found.or_insert_with(|| Found { rows: 0, example: format!("{table} `{name}`") }).rows += 1;
    }

    fn marked(&mut self, table: &str, ids: &Map<String, String>) {
        let name = || [key::NAME, key::ID, "name"].iter().find_map(|key| ids.get(*key));
        let name = || name().map(String::as_str).unwrap_or("without a name");
        if let Some(network) = other_network(ids) {
            return self.note("user-defined and secondary networks", table, network);
        }
        match (ids.get(key::OWNER_CONTROLLER), ids.get(key::OWNER_TYPE)) {
            (Some(owner), _) if owner.ends_with("-network-controller") && owner != ovn_name::OWNER => {
                self.note("user-defined and secondary networks", table, owner);
            }
            (Some(_), Some(kind)) if !is_ours(ids) && kind != HELPER => {
                self.note(feature(kind), table, name())
            }
            (Some(_), _) => {}
            (None, _) => {
                // The format of versions before these marks.
                if let Some(namespace) = ids.get("egressFirewall") {
                    self.note("EgressFirewall", table, namespace);
                } else if let Some(service) = ids.get("EgressSVC") {
                    self.note("EgressService", table, service);
                } else if let Some(name) =
                    ids.get("name").filter(|_| table.starts_with("Logical_Router") || table == "NAT")
                {
                    let hybrid = name.starts_with("hybrid-");
                    self.note(if hybrid { "hybrid overlay" } else { "EgressIP" }, table, name);
                }
            }
        }
    }
}

/// The feature by the name that an operator knows it by.
fn feature(owner_type: &str) -> &str {
    match owner_type {
        "EgressFirewallDNS" => "EgressFirewall",
        "MulticastNS" | "MulticastCluster" => "multicast",
        "HybridNodeRoute" => "AdminPolicyBasedExternalRoute",
        "UDNIsolation" | "UDNEnabledService" => "user-defined and secondary networks",
        "VirtualMachine" => "virtual machines",
        other => other,
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (feature, found)) in self.features.iter().enumerate() {
            let (comma, rows) =
                (if at == 0 { "" } else { ", " }, if found.rows == 1 { "row" } else { "rows" });
            write!(f, "{comma}{feature} ({} {rows}, such as {})", found.rows, found.example)?;
        }
        Ok(())
    }
}

/// The controller is not configured to work beside such rows.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the northbound database holds rows of features that this controller does not have: {0}; nobody would keep them up to \
     date. Remove the objects behind them while ovn-kubernetes still runs, or start with --adopt: the rows are then left as \
     they are"
)]
pub struct NotAdopted(pub Foreign);

impl Foreign {
    /// Whether the controller may work on the database; `adopt`: it is configured to leave such rows.
    ///
    /// # Errors
    /// There are such rows, and the controller is not configured to leave them.
    pub fn check(self, adopt: bool) -> Result<(), NotAdopted> {
        if self.is_empty() {
            return Ok(());
        }
        if !adopt {
            return Err(NotAdopted(self));
        }
        tracing::warn!(
            "the northbound database holds rows of other features, which are left as they are: {self}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(pairs: &[(&str, &str)]) -> Map<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn owned(kind: &str) -> Map<String, String> {
        ids(&[(key::OWNER_CONTROLLER, ovn_name::OWNER), (key::OWNER_TYPE, kind), (key::NAME, "x")])
    }

    #[test]
    fn only_kinds_that_the_controller_writes_are_its_own() {
        for kind in OWN_TYPES.into_iter().chain([SUPERSEDED]) {
            assert!(is_ours(&owned(kind)), "{kind}");
        }
        for kind in ["EgressIP", "AdminNetworkPolicy", "MulticastNS", HELPER, "SomethingNew"] {
            assert!(!is_ours(&owned(kind)), "{kind}");
        }
        assert!(!is_ours(&ids(&[(key::OWNER_CONTROLLER, ovn_name::OWNER)])));
        assert!(!is_ours(&ids(&[(key::OWNER_TYPE, "NetworkPolicy")])));
    }

    #[test]
    fn a_finding_names_feature_number_and_one_row() {
        let mut found = Foreign::default();
        found.marked("NAT", &owned("EgressIP"));
        found.marked("Logical_Router_Policy", &ids(&[("name", "old-egress-ip")]));
        found.marked("Port_Group", &owned("AdminNetworkPolicy"));
        found.marked("ACL", &owned("SomethingNew"));
        for own in ["NetworkPolicy", HELPER, SUPERSEDED] {
            found.marked("ACL", &owned(own));
        }
        found.marked("Address_Set", &ids(&[(key::NETWORK, "default")]));
        found.marked(
            "Logical_Switch",
            &ids(&[(key::NETWORK, "shop/blue"), (key::VIRTUAL_NETWORK, "shop/blue")]),
        );
        found.marked("Address_Set", &Map::default());
        assert_eq!(
            found.to_string(),
            "AdminNetworkPolicy (1 row, such as Port_Group `x`), EgressIP (2 rows, such as NAT `x`), \
             SomethingNew (1 row, such as ACL `x`)"
        );
    }
}

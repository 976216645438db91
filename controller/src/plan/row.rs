//! What a plan consists of: rows and edges, named by natural keys, independent of the content of the database.
//!
//! The desired content of NB is a set of [`Item`]s. Every item belongs to one or more *units* (a node, a pod, a service, a
//! policy): planning a unit again yields its items again, and the reconciler turns the difference into operations. A row
//! is kept as long as one unit wants it; so is an edge.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ovsdb_client::Datum;

/// Generates the enum, the list of all tables and their names from one list.
macro_rules! tables {
    ($($table:ident $name:literal,)*) => {
        /// A table of the northbound database that the controller writes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Table {
            $(#[doc = concat!("Table `", $name, "`.")] $table,)*
        }

        impl Table {
            /// Every table.
            pub const ALL: &[Self] = &[$(Self::$table),*];

            /// The name in the schema.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$table => $name,)*
                }
            }
        }
    };
}

tables! {
    Acl "ACL",
    AddressSet "Address_Set",
    Bfd "BFD",
    Copp "Copp",
    GatewayChassis "Gateway_Chassis",
    LoadBalancer "Load_Balancer",
    LoadBalancerGroup "Load_Balancer_Group",
    LogicalRouter "Logical_Router",
    LogicalRouterPolicy "Logical_Router_Policy",
    LogicalRouterPort "Logical_Router_Port",
    LogicalRouterStaticRoute "Logical_Router_Static_Route",
    LogicalSwitch "Logical_Switch",
    LogicalSwitchPort "Logical_Switch_Port",
    Meter "Meter",
    MeterBand "Meter_Band",
    Nat "NAT",
    PortGroup "Port_Group",
    StaticMacBinding "Static_MAC_Binding",
}

impl Table {
    /// Whether rows exist without being referenced (`isRoot` in the schema). Others need a strong reference.
    pub fn is_root(self) -> bool {
        !matches!(
            self,
            Self::Acl
                | Self::GatewayChassis
                | Self::LogicalRouterPolicy
                | Self::LogicalRouterPort
                | Self::LogicalRouterStaticRoute
                | Self::LogicalSwitchPort
                | Self::MeterBand
                | Self::Nat
        )
    }

    /// Whether a reference in this column keeps the row it refers to (`refType` strong, or none, in the schema).
    pub fn is_strong(self, column: &str) -> bool {
        matches!(
            (self, column),
            (Self::LogicalSwitch, "ports" | "acls" | "load_balancer_group")
                | (
                    Self::LogicalRouter,
                    "ports" | "static_routes" | "policies" | "nat" | "load_balancer_group"
                )
                | (Self::LogicalRouterPort, "gateway_chassis")
                | (Self::PortGroup, "acls")
                | (Self::Meter, "bands")
        )
    }

    /// Whether the rows in this column are parts of their owner, which is never written without them: a port group without its
    /// ACLs would let everything pass.
    pub fn is_made_of(self, column: &str) -> bool {
        matches!(
            (self, column),
            (Self::LogicalSwitch | Self::PortGroup, "acls")
                | (Self::LogicalRouterPort, "gateway_chassis")
                | (Self::Meter, "bands")
        )
    }

    /// Whether a reference column holds at most one row.
    pub fn is_single(self, column: &str) -> bool {
        matches!(column, "bfd" | "copp")
    }

    /// Whether the schema requires unique names, among the tables that are not root.
    pub fn has_unique_name(self) -> bool {
        matches!(self, Self::GatewayChassis | Self::LogicalRouterPort | Self::LogicalSwitchPort)
    }
}

/// The text of a [`RowKey`]. Clones share it, as the same key is used in rows, edges and indexes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: Into<Arc<str>>> From<T> for Key {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl From<Key> for Datum {
    fn from(key: Key) -> Self {
        key.as_str().into()
    }
}

/// A row, identified by its name where the table has one; by `k8s.ovn.org/id` for ACLs, port groups and address sets, as two
/// ids may have one hashed name; for rows without either by a text built by the constructors in [`super::key`], which starts
/// with the owner's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// Table of the row.
    pub table: Table,
    /// Name, id or text that identifies the row in its table.
    pub key: Key,
}

impl RowKey {
    /// The key of a row of `table`.
    pub fn new(table: Table, key: impl Into<Key>) -> Self {
        Self { table, key: key.into() }
    }

    /// The database name of a row that is named by the hash of its id.
    pub fn hashed_name(&self) -> String {
        api::ovn_name::hashed(&self.key)
    }
}

/// A row that must exist, with the columns that the plan decides. Columns that are not named are left as they are;
/// columns that refer to other rows, or that several units fill together, are not here but [`Edge`]s.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredRow {
    /// Identity of the row.
    pub key: RowKey,
    /// Values by name of the column.
    pub columns: BTreeMap<&'static str, Datum>,
}

impl DesiredRow {
    /// A row without columns.
    pub fn new(key: RowKey) -> Self {
        Self { key, columns: BTreeMap::new() }
    }

    /// Adds a column.
    #[must_use]
    pub fn with(mut self, column: &'static str, value: impl Into<Datum>) -> Self {
        self.columns.insert(column, value.into());
        self
    }
}

/// One member of a set-valued column of `owner`, such as a port of a switch or an address of an address set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Row that has the column.
    pub owner: RowKey,
    /// Name of the column.
    pub column: &'static str,
    /// The member that the column contains.
    pub member: Member,
}

/// The member of an edge.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// Another row (a reference in the database).
    Row(RowKey),
    /// A plain text, such as an address.
    Text(String),
}

/// A row or an edge.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A row.
    Row(DesiredRow),
    /// A member of a row's column.
    Edge(Edge),
}

impl Item {
    /// `owner.column` contains row `member`.
    pub fn link(owner: &RowKey, column: &'static str, member: &RowKey) -> Self {
        Self::Edge(Edge { owner: owner.clone(), column, member: Member::Row(member.clone()) })
    }

    /// `owner.column` contains the text `member`.
    pub fn text(owner: &RowKey, column: &'static str, member: impl Into<String>) -> Self {
        Self::Edge(Edge { owner: owner.clone(), column, member: Member::Text(member.into()) })
    }
}

impl From<DesiredRow> for Item {
    fn from(row: DesiredRow) -> Self {
        Self::Row(row)
    }
}

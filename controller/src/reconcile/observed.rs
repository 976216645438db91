//! The northbound replica as the differ reads it: rows by the same keys that plans use.

use ovsdb_client::{Atom, Datum, MonitorSpec, Row, RowChange, Schema, Snapshot, Uuid, nb};

use crate::plan::uplink::router_of;
use crate::plan::{RowKey, Table, key};

/// Name of the index by [key](RowKey) that every table has.
pub(super) const BY_KEY: &str = "key";

/// Runs the body with `$row` standing for the row type of a table.
macro_rules! with_table {
    ($table:expr, $row:ident => $body:expr) => {
        match $table {
            Table::Acl => {
                type $row = nb::Acl;
                $body
            }
            Table::AddressSet => {
                type $row = nb::AddressSet;
                $body
            }
            Table::Bfd => {
                type $row = nb::Bfd;
                $body
            }
            Table::Copp => {
                type $row = nb::Copp;
                $body
            }
            Table::GatewayChassis => {
                type $row = nb::GatewayChassis;
                $body
            }
            Table::LoadBalancer => {
                type $row = nb::LoadBalancer;
                $body
            }
            Table::LoadBalancerGroup => {
                type $row = nb::LoadBalancerGroup;
                $body
            }
            Table::LogicalRouter => {
                type $row = nb::LogicalRouter;
                $body
            }
            Table::LogicalRouterPolicy => {
                type $row = nb::LogicalRouterPolicy;
                $body
            }
            Table::LogicalRouterPort => {
                type $row = nb::LogicalRouterPort;
                $body
            }
            Table::LogicalRouterStaticRoute => {
                type $row = nb::LogicalRouterStaticRoute;
                $body
            }
            Table::LogicalSwitch => {
                type $row = nb::LogicalSwitch;
                $body
            }
            Table::LogicalSwitchPort => {
                type $row = nb::LogicalSwitchPort;
                $body
            }
            Table::Meter => {
                type $row = nb::Meter;
                $body
            }
            Table::MeterBand => {
                type $row = nb::MeterBand;
                $body
            }
            Table::Nat => {
                type $row = nb::Nat;
                $body
            }
            Table::PortGroup => {
                type $row = nb::PortGroup;
                $body
            }
            Table::StaticMacBinding => {
                type $row = nb::StaticMacBinding;
                $body
            }
        }
    };
}

/// A row type with a natural key. Rows that belong to one router are keyed without the router here.
trait Keyed: Row {
    fn natural_key(&self) -> Option<String>;
}

macro_rules! keyed_by_name {
    ($($row:ident)*) => {$(
        impl Keyed for nb::$row {
            fn natural_key(&self) -> Option<String> {
                Some(self.name.clone())
            }
        }
    )*};
}

keyed_by_name! {
    Copp GatewayChassis LoadBalancer LoadBalancerGroup LogicalRouter LogicalRouterPort LogicalSwitch LogicalSwitchPort
    Meter
}

/// Names of port groups and address sets are hashes, and two ids may have the same hash; an id belongs to one row.
macro_rules! keyed_by_id {
    ($($row:ident)*) => {$(
        impl Keyed for nb::$row {
            fn natural_key(&self) -> Option<String> {
                self.external_ids.get(api::ovn_name::key::ID).cloned()
            }
        }
    )*};
}

keyed_by_id! { Acl AddressSet PortGroup }

impl Keyed for nb::LogicalRouterPolicy {
    fn natural_key(&self) -> Option<String> {
        Some(key::policy_content(self.priority, &self.r#match))
    }
}

impl Keyed for nb::LogicalRouterStaticRoute {
    fn natural_key(&self) -> Option<String> {
        let policy = self.policy.as_deref().unwrap_or_default();
        let port = self.output_port.as_deref().unwrap_or_default();
        let content = key::static_route_content(&self.ip_prefix, &self.nexthop, policy, port);
        match self.route_table.as_str() {
            "" => Some(content),
            table => Some(key::static_route_in_table_content(&content, table)),
        }
    }
}

impl Keyed for nb::MeterBand {
    fn natural_key(&self) -> Option<String> {
        Some(key::meter_band(&self.action, self.rate, self.burst_size).key.to_string())
    }
}

impl Keyed for nb::Nat {
    fn natural_key(&self) -> Option<String> {
        Some(key::nat_content(&self.r#type, &self.external_ip, &self.logical_ip))
    }
}

impl Keyed for nb::Bfd {
    fn natural_key(&self) -> Option<String> {
        Some(key::bfd(&self.logical_port, &self.dst_ip).key.to_string())
    }
}

impl Keyed for nb::StaticMacBinding {
    fn natural_key(&self) -> Option<String> {
        Some(key::mac_binding(&self.logical_port, &self.ip).key.to_string())
    }
}

fn keys<R: Keyed>(row: &R) -> Vec<String> {
    row.natural_key().into_iter().collect()
}

/// The columns of a table to monitor: all but those that other clients write and the controller does not read.
fn monitored<R: Row>() -> Vec<&'static str> {
    let ignored: &[&str] = match R::TABLE {
        "BFD" => &["status"],
        "Logical_Switch_Port" => &["up", "dynamic_addresses"],
        "Logical_Router_Port" => &["status"],
        _ => &[],
    };
    R::COLUMNS.iter().copied().filter(|column| !ignored.contains(column)).collect()
}

/// The tables and columns to monitor.
pub fn monitor_spec() -> MonitorSpec {
    Table::ALL.iter().fold(MonitorSpec::new(), |spec, table| {
        with_table!(table, R => spec.table::<R>(&monitored::<R>()).index::<R>(BY_KEY, keys::<R>))
    })
}

/// Column of a router that holds rows of a table without names.
fn router_column(table: Table) -> Option<&'static str> {
    match table {
        Table::LogicalRouterStaticRoute => Some("static_routes"),
        Table::LogicalRouterPolicy => Some("policies"),
        Table::Nat => Some("nat"),
        _ => None,
    }
}

/// One state of the replica, and the schema of its server.
pub struct ReplicaView<'a> {
    snapshot: Snapshot<'a>,
    schema: &'a Schema,
}

impl<'a> ReplicaView<'a> {
    /// A view on a snapshot. Keep it only briefly: updates wait meanwhile.
    pub fn new(snapshot: Snapshot<'a>, schema: &'a Schema) -> Self {
        Self { snapshot, schema }
    }

    /// The tables.
    pub fn snapshot(&self) -> &Snapshot<'a> {
        &self.snapshot
    }

    /// The key of a row that has a name or an id; `None` for rows of routers, and for ACLs without id.
    pub fn key_of(&self, table: Table, uuid: Uuid) -> Option<RowKey> {
        if router_column(table).is_some() {
            return None;
        }
        let key = with_table!(table, R => self.snapshot.table::<R>().get(&uuid)?.natural_key());
        Some(RowKey::new(table, key?))
    }

    /// The key of a row of `router`, which is in no other router.
    pub fn key_in_router(&self, router: &str, table: Table, uuid: Uuid) -> Option<RowKey> {
        let content = with_table!(table, R => self.snapshot.table::<R>().get(&uuid)?.natural_key())?;
        Some(key::in_router(table, router, &content))
    }
}

/// The key of a changed row before and after the change. Rows of routers have none.
pub fn changed_keys(change: &RowChange) -> Option<(Table, Option<RowKey>, Option<RowKey>)> {
    let table = Table::ALL.iter().copied().find(|table| table.name() == change.table)?;
    if router_column(table).is_some() {
        return Some((table, None, None));
    }
    let (old, new) = with_table!(table, R => (
        change.old::<R>().and_then(Keyed::natural_key),
        change.new_row::<R>().and_then(Keyed::natural_key),
    ));
    Some((table, old.map(|key| RowKey::new(table, key)), new.map(|key| RowKey::new(table, key))))
}

/// What distinguished a row of a router before it was changed in place.
pub fn changed_content(change: &RowChange) -> Option<String> {
    let table = Table::ALL.iter().copied().find(|table| table.name() == change.table)?;
    router_column(table)?;
    with_table!(table, R => {
        change.new_row::<R>()?;
        change.old::<R>()?.natural_key()
    })
}

/// The gateway router that a route leads out of by one of its uplinks, before the route was changed in place.
pub fn changed_routes_router(change: &RowChange) -> Option<String> {
    let port = change.old::<nb::LogicalRouterStaticRoute>()?.output_port.as_deref()?;
    router_of(port).map(str::to_owned)
}

/// Members that a change of a row removed from a set column, and members that it added.
pub fn members_changed(table: Table, change: &RowChange, column: &str) -> (Vec<Atom>, Vec<Atom>) {
    // Sets may be large: compared in place, without building values of them.
    macro_rules! of_sets {
        ($row:ident, $field:ident, $atom:expr) => {
            match (change.old::<nb::$row>(), change.new_row::<nb::$row>()) {
                (Some(old), Some(new)) => {
                    let (gone, came) = old.$field.differences(&new.$field);
                    return (gone.into_iter().map($atom).collect(), came.into_iter().map($atom).collect());
                }
                _ => return Default::default(),
            }
        };
    }
    let uuid = |uuid: &Uuid| Atom::Uuid(*uuid);
    match (table, column) {
        (Table::LogicalSwitch, "ports") => of_sets!(LogicalSwitch, ports, uuid),
        (Table::LogicalSwitch, "acls") => of_sets!(LogicalSwitch, acls, uuid),
        (Table::LogicalSwitch, "load_balancer") => of_sets!(LogicalSwitch, load_balancer, uuid),
        (Table::LogicalRouter, "ports") => of_sets!(LogicalRouter, ports, uuid),
        (Table::LogicalRouter, "nat") => of_sets!(LogicalRouter, nat, uuid),
        (Table::LogicalRouter, "static_routes") => of_sets!(LogicalRouter, static_routes, uuid),
        (Table::LogicalRouter, "policies") => of_sets!(LogicalRouter, policies, uuid),
        (Table::PortGroup, "ports") => of_sets!(PortGroup, ports, uuid),
        (Table::PortGroup, "acls") => of_sets!(PortGroup, acls, uuid),
        (Table::AddressSet, "addresses") => {
            of_sets!(AddressSet, addresses, |text: &String| Atom::String(text.clone()))
        }
        (Table::LoadBalancerGroup, "load_balancer") => of_sets!(LoadBalancerGroup, load_balancer, uuid),
        _ => {}
    }
    let (old, new) = with_table!(table, R => (
        change.old::<R>().and_then(|row| row.get(column)),
        change.new_row::<R>().and_then(|row| row.get(column)),
    ));
    match (old, new) {
        // Both are sorted.
        (Some(Datum::Set(old)), Some(Datum::Set(new))) if old != new => {
            let lacks = |set: &[Atom], atom: &Atom| set.binary_search(atom).is_err();
            let gone = old.iter().filter(|atom| lacks(&new, atom)).cloned().collect();
            let came = new.iter().filter(|atom| lacks(&old, atom)).cloned().collect();
            (gone, came)
        }
        _ => (Vec::new(), Vec::new()),
    }
}

impl ReplicaView<'_> {
    /// Rows that the key names; more than one only in tables without a unique index.
    pub fn find_all(&self, key: &RowKey) -> Vec<Uuid> {
        let by_key = |text: &str| -> Vec<Uuid> {
            with_table!(key.table, R => {
                self.snapshot.table::<R>().by_index(BY_KEY, text).map(|row| row.uuid()).collect()
            })
        };
        let mut found = match router_column(key.table) {
            None => by_key(&key.key),
            Some(column) => {
                let Some((router, content)) = key::split(&key.key) else { return Vec::new() };
                let routers = self.find_all(&RowKey::new(Table::LogicalRouter, router));
                let held = |uuid: &Uuid| {
                    let atom = Atom::Uuid(*uuid);
                    routers.iter().any(|router| self.contains(Table::LogicalRouter, *router, column, &atom))
                };
                by_key(content).into_iter().filter(held).collect()
            }
        };
        found.sort_unstable();
        found
    }

    /// A column's value.
    pub fn column(&self, table: Table, uuid: Uuid, column: &str) -> Option<Datum> {
        with_table!(table, R => self.snapshot.table::<R>().get(&uuid)?.get(column))
    }

    /// Whether a set column contains a value.
    pub fn contains(&self, table: Table, uuid: Uuid, column: &str, member: &Atom) -> bool {
        // Sets may be large: looked up in place, without building a value of them.
        macro_rules! in_set {
            ($row:ident, $field:ident, $member:expr) => {
                self.snapshot.table::<nb::$row>().get(&uuid).is_some_and(|row| row.$field.contains($member))
            };
        }
        match (table, column, member) {
            (Table::LogicalSwitch, "ports", Atom::Uuid(member)) => in_set!(LogicalSwitch, ports, member),
            (Table::LogicalSwitch, "acls", Atom::Uuid(member)) => in_set!(LogicalSwitch, acls, member),
            (Table::LogicalSwitch, "load_balancer", Atom::Uuid(member)) => {
                in_set!(LogicalSwitch, load_balancer, member)
            }
            (Table::LogicalRouter, "ports", Atom::Uuid(member)) => in_set!(LogicalRouter, ports, member),
            (Table::LogicalRouter, "nat", Atom::Uuid(member)) => in_set!(LogicalRouter, nat, member),
            (Table::LogicalRouter, "load_balancer", Atom::Uuid(member)) => {
                in_set!(LogicalRouter, load_balancer, member)
            }
            (Table::LogicalRouter, "static_routes", Atom::Uuid(member)) => {
                in_set!(LogicalRouter, static_routes, member)
            }
            (Table::LogicalRouter, "policies", Atom::Uuid(member)) => {
                in_set!(LogicalRouter, policies, member)
            }
            (Table::PortGroup, "ports", Atom::Uuid(member)) => in_set!(PortGroup, ports, member),
            (Table::PortGroup, "acls", Atom::Uuid(member)) => in_set!(PortGroup, acls, member),
            (Table::AddressSet, "addresses", Atom::String(member)) => {
                in_set!(AddressSet, addresses, member)
            }
            (Table::LoadBalancerGroup, "load_balancer", Atom::Uuid(member)) => {
                in_set!(LoadBalancerGroup, load_balancer, member)
            }
            _ => match self.column(table, uuid, column) {
                Some(Datum::Set(atoms)) => atoms.contains(member),
                _ => false,
            },
        }
    }

    /// Whether the server's schema has the column.
    pub fn has_column(&self, table: Table, column: &str) -> bool {
        self.schema.has_column(table.name(), column)
    }

    /// Rows that have a strong reference to a row of a non-root table.
    pub fn holders(&self, table: Table, uuid: Uuid) -> Vec<(Table, Uuid, &'static str)> {
        let switches = self.snapshot.table::<nb::LogicalSwitch>();
        let routers = self.snapshot.table::<nb::LogicalRouter>();
        let router_ports = self.snapshot.table::<nb::LogicalRouterPort>();
        match table {
            Table::LogicalSwitchPort => {
                let holding = switches.iter().filter(|row| row.ports.contains(&uuid));
                holding.map(|row| (Table::LogicalSwitch, row.uuid, "ports")).collect()
            }
            Table::LogicalRouterPort => {
                let holding = routers.iter().filter(|row| row.ports.contains(&uuid));
                holding.map(|row| (Table::LogicalRouter, row.uuid, "ports")).collect()
            }
            Table::GatewayChassis => {
                let holding = router_ports.iter().filter(|row| row.gateway_chassis.contains(&uuid));
                holding.map(|row| (Table::LogicalRouterPort, row.uuid, "gateway_chassis")).collect()
            }
            _ => Vec::new(),
        }
    }
}

//! Detects that another client changed rows of this controller, and limits how often a row is repaired, so that two writers
//! who disagree do not overwrite each other without end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ovsdb_client::{Atom, ChangeKind, RowChange};

use super::desired::{Desired, Touched};
use super::leftovers::may_leave;
use super::observed::{ReplicaView, changed_content, changed_keys, changed_routes_router, members_changed};
use crate::plan::{Edge, Member, RowKey, Table, key};

/// Repairs of one row within [`WINDOW`].
const LIMIT: u32 = 5;
/// Time after which the count of a row's repairs starts at 0 again.
const WINDOW: Duration = Duration::from_secs(60);

/// Set columns that several units fill, by table.
fn set_columns(table: Table) -> &'static [&'static str] {
    match table {
        Table::AddressSet => &["addresses"],
        Table::LoadBalancerGroup => &["load_balancer"],
        Table::LogicalRouter => {
            &["ports", "static_routes", "policies", "nat", "load_balancer", "load_balancer_group", "copp"]
        }
        Table::LogicalRouterPort => &["gateway_chassis"],
        Table::LogicalSwitch => &["ports", "acls", "load_balancer", "load_balancer_group"],
        Table::Meter => &["bands"],
        Table::PortGroup => &["ports", "acls"],
        _ => &[],
    }
}

/// The table of a set column's members, if a removed row can be identified by itself or its own change reports it.
fn members_of(table: Table, column: &str) -> Option<Table> {
    Some(match (table, column) {
        (Table::LogicalRouter, "ports") => Table::LogicalRouterPort,
        (_, "ports") => Table::LogicalSwitchPort,
        (_, "acls") => Table::Acl,
        (_, "load_balancer") => Table::LoadBalancer,
        (_, "load_balancer_group") => Table::LoadBalancerGroup,
        (_, "copp") => Table::Copp,
        (_, "gateway_chassis") => Table::GatewayChassis,
        (_, "bands") => Table::MeterBand,
        _ => return None,
    })
}

/// The wanted edges that have gone with members of a set. A member that is not there any more was removed as a row, which
/// its own change reports; comparing all of a large set whenever one member goes would cost more than all other work.
fn edges_gone(
    desired: &Desired,
    view: &ReplicaView<'_>,
    owner: &RowKey,
    column: &'static str,
    gone: Vec<Atom>,
) -> Vec<Edge> {
    let edge = |member: Member| Edge { owner: owner.clone(), column, member };
    let held = members_of(owner.table, column);
    if held.is_none() && gone.iter().any(|atom| matches!(atom, Atom::Uuid(_))) {
        let all = desired.edges_of(owner).filter(|(desired, _)| *desired == column);
        return all.map(|(_, member)| edge(member.clone())).collect();
    }
    let members = gone.into_iter().filter_map(|atom| match atom {
        Atom::String(text) => Some(Member::Text(text)),
        Atom::Uuid(uuid) => view.key_of(held?, uuid).map(Member::Row),
        _ => None,
    });
    members.filter(|member| desired.has_edge(owner, column, member)).map(edge).collect()
}

/// The desired rows that a change of the database removed.
pub fn lost<'a>(desired: &'a Desired, changes: &'a [RowChange]) -> impl Iterator<Item = RowKey> + 'a {
    let removed = changes.iter().filter(|change| change.kind == ChangeKind::Deleted);
    removed.filter_map(|change| changed_keys(change)?.1.filter(|key| desired.row(key).is_some()))
}

/// The desired rows that a change of the database concerns, each with the rows and edges to compare. The controller's own
/// transactions are reported too; comparing them finds no difference.
pub fn touched_by(desired: &Desired, view: &ReplicaView<'_>, change: &RowChange) -> Vec<(RowKey, Touched)> {
    let Some((table, old, new)) = changed_keys(change) else { return Vec::new() };
    let whole = |key: RowKey| {
        let mut touched = Touched::default();
        desired.touch(&key, &mut touched);
        (key, touched)
    };
    if let Some(content) = changed_content(change) {
        // Rows of routers come and go with a change of the router; only changes in place are checked here.
        if let Some(router) = changed_routes_router(change) {
            let own = key::in_router(table, &router, &content);
            return Some(own).filter(|key| desired.row(key).is_some()).map(whole).into_iter().collect();
        }
        let concerned = desired
            .rows()
            .filter(|key| key.table == table && key::split(&key.key).is_some_and(|(_, own)| own == content));
        return concerned.cloned().map(whole).collect();
    }
    if change.kind == ChangeKind::Inserted {
        return Vec::new();
    }
    if old != new {
        return [old, new]
            .into_iter()
            .flatten()
            .filter(|key| desired.row(key).is_some())
            .map(whole)
            .collect();
    }
    let Some(key) = new.filter(|key| desired.row(key).is_some()) else { return Vec::new() };
    let mut touched = Touched::default();
    touched.rows.insert(key.clone());
    for column in set_columns(table) {
        let (gone, came) = members_changed(table, change, column);
        touched.edges.extend(edges_gone(desired, view, &key, column, gone));
        // Only this controller writes these sets, except members that other features of ovn-kubernetes put into port groups.
        if matches!(table, Table::AddressSet | Table::PortGroup) {
            let held = if *column == "ports" { Table::LogicalSwitchPort } else { Table::Acl };
            let members = came.into_iter().filter_map(|atom| match atom {
                Atom::String(text) => Some(Member::Text(text)),
                Atom::Uuid(uuid) if may_leave(view, held, uuid) => view.key_of(held, uuid).map(Member::Row),
                _ => None,
            });
            touched.edges.extend(members.map(|member| Edge { owner: key.clone(), column, member }));
        }
    }
    vec![(key, touched)]
}

/// Recent repairs of each row.
#[derive(Debug, Default)]
pub struct RepairLimit {
    rows: HashMap<RowKey, (u32, Instant)>,
}

impl RepairLimit {
    /// Counts a repair of a row; false when there were too many recently.
    pub fn allow(&mut self, key: &RowKey, now: Instant) -> bool {
        if self.rows.len() > 10_000 {
            self.rows.retain(|_, (_, since)| now.duration_since(*since) < WINDOW);
        }
        let (count, since) = self.rows.entry(key.clone()).or_insert((0, now));
        if now.duration_since(*since) >= WINDOW {
            (*count, *since) = (0, now);
        }
        *count += 1;
        *count <= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_put_right_a_few_times_a_minute_and_again_after_it() {
        let mut limit = RepairLimit::default();
        let key = RowKey::new(Table::Acl, "x");
        let start = Instant::now();
        for _ in 0..LIMIT {
            assert!(limit.allow(&key, start));
        }
        assert!(!limit.allow(&key, start));
        assert!(limit.allow(&RowKey::new(Table::Acl, "y"), start));
        assert!(limit.allow(&key, start + WINDOW));
    }
}

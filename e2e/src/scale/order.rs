//! Whether a pod that a policy isolates was ever open: transaction by transaction, is the port of each such pod in the groups
//! that close it, and do these have a rule that drops? Pure.

use std::collections::{BTreeSet, HashMap};

use ovsdb_client::Uuid;

/// A row as one transaction left it.
#[derive(Clone, Debug)]
pub(super) enum Row {
    /// A pod's port.
    Port { uuid: Uuid, name: String },
    /// A port group.
    Group { uuid: Uuid, name: String, ports: BTreeSet<Uuid>, rules: BTreeSet<Uuid> },
    /// A rule.
    Rule { uuid: Uuid, drops: bool },
    /// A row of any of these kinds that is gone.
    Gone(Uuid),
}

#[derive(Debug, Default)]
struct Group {
    name: String,
    ports: BTreeSet<Uuid>,
    rules: BTreeSet<Uuid>,
}

/// What the database held after the transactions so far.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The groups that must close a port, by the port's name.
    closing: HashMap<String, BTreeSet<String>>,
    ports: HashMap<Uuid, String>,
    groups: HashMap<Uuid, Group>,
    /// Groups of `closing` by name.
    by_name: HashMap<String, Uuid>,
    dropping: BTreeSet<Uuid>,
    transactions: u64,
    open: Vec<String>,
}

impl Order {
    /// From now on this port must be in these groups whenever it is there.
    pub(super) fn must_close(&mut self, port: String, groups: BTreeSet<String>) {
        self.closing.insert(port, groups);
    }

    /// Transactions seen.
    pub(super) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// What was open, and after which transaction.
    pub(super) fn open(&self) -> &[String] {
        &self.open
    }

    /// Takes in what one transaction changed.
    pub(super) fn transaction(&mut self, rows: Vec<Row>) {
        self.transactions += 1;
        let mut suspects = BTreeSet::new();
        for row in rows {
            self.take(row, &mut suspects);
        }
        for port in suspects {
            self.judge(port);
        }
    }

    fn take(&mut self, row: Row, suspects: &mut BTreeSet<Uuid>) {
        match row {
            Row::Port { uuid, name } => {
                self.ports.insert(uuid, name);
                suspects.insert(uuid);
            }
            Row::Rule { uuid, drops } => {
                if drops {
                    self.dropping.insert(uuid);
                } else if self.dropping.remove(&uuid) {
                    suspects.extend(
                        self.groups.values().filter(|g| g.rules.contains(&uuid)).flat_map(|g| &g.ports),
                    );
                }
            }
            Row::Group { uuid, name, ports, rules } => {
                let new = Group { name: name.clone(), ports, rules };
                self.by_name.insert(name, uuid);
                if let Some(old) = self.groups.insert(uuid, new) {
                    let new = &self.groups[&uuid];
                    suspects.extend(old.ports.difference(&new.ports));
                    if !old.rules.is_subset(&new.rules) {
                        suspects.extend(&old.ports);
                    }
                }
            }
            Row::Gone(uuid) => {
                self.ports.remove(&uuid);
                if let Some(old) = self.groups.remove(&uuid) {
                    self.by_name.retain(|_, of| *of != uuid);
                    suspects.extend(old.ports);
                }
                // A rule that a group still has cannot go.
                self.dropping.remove(&uuid);
            }
        }
    }

    fn judge(&mut self, uuid: Uuid) {
        let Some(name) = self.ports.get(&uuid) else { return };
        for wanted in self.closing.get(name).into_iter().flatten() {
            let group = self.by_name.get(wanted).and_then(|group| self.groups.get(group));
            let lack = match group {
                None => "which is not there",
                Some(group) if !group.ports.contains(&uuid) => "which it is not in",
                Some(group) if group.rules.is_disjoint(&self.dropping) => "which drops nothing",
                Some(group) => {
                    debug_assert_eq!(&group.name, wanted);
                    continue;
                }
            };
            self.open.push(format!(
                "after transaction {} port {name} is not closed by group {wanted}, {lack}",
                self.transactions
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn port(n: u128) -> Row {
        Row::Port { uuid: id(n), name: format!("x_{n}") }
    }

    fn group<const N: usize>(ports: [u128; N], rules: &[u128]) -> Row {
        let of = |list: &[u128]| list.iter().map(|&n| id(n)).collect();
        Row::Group { uuid: id(100), name: "deny".to_owned(), ports: of(&ports), rules: of(rules) }
    }

    fn rule() -> Row {
        Row::Rule { uuid: id(200), drops: true }
    }

    fn order() -> Order {
        let mut order = Order::default();
        order.must_close("x_1".to_owned(), BTreeSet::from(["deny".to_owned()]));
        order
    }

    #[test]
    fn all_in_one_transaction_is_good_in_any_order_of_its_rows() {
        let mut order = order();
        order.transaction(vec![port(1), port(2), group([1], &[200]), rule()]);
        order.transaction(vec![Row::Gone(id(1)), group([], &[200])]);
        assert_eq!(order.open(), [""; 0]);
        assert_eq!(order.transactions(), 2);
    }

    #[test]
    fn a_port_before_its_group_was_open() {
        let mut order = order();
        order.transaction(vec![port(1)]);
        order.transaction(vec![group([1], &[200]), rule()]);
        assert_eq!(
            order.open(),
            ["after transaction 1 port x_1 is not closed by group deny, which is not there"]
        );
    }

    #[test]
    fn a_group_that_drops_nothing_closes_nothing() {
        let mut order = order();
        order.transaction(vec![port(1), group([1], &[])]);
        assert!(order.open()[0].ends_with("which drops nothing"), "{:?}", order.open());
    }

    #[test]
    fn a_port_that_leaves_its_group_and_stays_is_open() {
        let mut order = order();
        order.transaction(vec![port(1), port(2), group([1, 2], &[200]), rule()]);
        order.transaction(vec![group([1], &[200])]);
        assert_eq!(order.open(), [""; 0], "x_2 is of no policy");
        order.transaction(vec![group([], &[200])]);
        assert!(order.open()[0].ends_with("which it is not in"), "{:?}", order.open());
    }

    #[test]
    fn a_group_that_goes_or_loses_its_rule_opens_its_ports() {
        for last in [Row::Gone(id(100)), group([1], &[]), Row::Rule { uuid: id(200), drops: false }] {
            let mut order = order();
            order.transaction(vec![port(1), group([1], &[200]), rule()]);
            order.transaction(vec![last]);
            assert_eq!(order.open().len(), 1, "{:?}", order.open());
        }
    }
}

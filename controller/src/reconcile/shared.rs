//! One copy of what stands in many rows. Of the load balancers of a service on hundreds of nodes all columns but one are
//! equal, and a key stands in its row and in every edge to it: kept once each, a large cluster fits into little memory.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ovsdb_client::Datum;

use crate::plan::{Edge, Key, Member, RowKey};

/// A value that is compared and hashed as a value. One whose elements are in another order is another one here, which costs
/// a copy and nothing else.
#[derive(Debug, Clone)]
struct Value(Arc<Datum>);

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &*self.0 {
            Datum::Set(atoms) => atoms.hash(state),
            Datum::Map(pairs) => pairs.hash(state),
        }
    }
}

/// Keys and values in use. Those that nobody uses any more go when their number has doubled.
#[derive(Debug, Default)]
pub struct Shared {
    values: HashSet<Value>,
    keys: HashSet<Key>,
    /// Entries at which the unused ones are looked for.
    limit: usize,
}

/// Fewer entries than this are not looked through.
const MIN_LIMIT: usize = 16_384;

impl Shared {
    /// The value as it is kept.
    pub fn value(&mut self, value: Datum) -> Arc<Datum> {
        let value = Value(Arc::new(value));
        if let Some(Value(known)) = self.values.get(&value) {
            return Arc::clone(known);
        }
        self.values.insert(value.clone());
        value.0
    }

    /// The key as it is kept.
    pub fn row_key(&mut self, key: RowKey) -> RowKey {
        match self.keys.get(&key.key) {
            Some(known) => RowKey { table: key.table, key: known.clone() },
            None => {
                self.keys.insert(key.key.clone());
                key
            }
        }
    }

    /// The edge with its keys as they are kept.
    pub fn edge(&mut self, edge: Edge) -> Edge {
        let member = match edge.member {
            Member::Row(row) => Member::Row(self.row_key(row)),
            text @ Member::Text(_) => text,
        };
        Edge { owner: self.row_key(edge.owner), column: edge.column, member }
    }

    /// Drops what nobody uses, now and then.
    pub fn tidy(&mut self) {
        if self.values.len() + self.keys.len() < self.limit.max(MIN_LIMIT) {
            return;
        }
        self.values.retain(|value| Arc::strong_count(&value.0) > 1);
        self.keys.retain(Key::is_shared);
        self.limit = 2 * (self.values.len() + self.keys.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Table;

    #[test]
    fn equal_values_and_keys_are_kept_once() {
        let mut shared = Shared::default();
        let (a, b) = (shared.value("x".into()), shared.value("x".into()));
        assert!(Arc::ptr_eq(&a, &b));
        let key = |shared: &mut Shared| shared.row_key(RowKey::new(Table::Acl, "x"));
        let (a, b) = (key(&mut shared), key(&mut shared));
        assert!(std::ptr::eq(a.key.as_str(), b.key.as_str()));
    }

    #[test]
    fn what_nobody_uses_goes() {
        let mut shared = Shared::default();
        let kept = shared.value(Datum::from("kept"));
        for at in 0..MIN_LIMIT {
            shared.value(Datum::from(at.to_string()));
        }
        shared.tidy();
        assert_eq!(shared.values.len(), 1);
        assert_eq!(*kept, Datum::from("kept"));
    }
}

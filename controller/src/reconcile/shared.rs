//! Shares the column values that many rows have in common. The load balancers of a service on hundreds of nodes are equal in all
//! columns but one; with one copy of each value a large cluster needs little memory.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ovsdb_client::Datum;

/// Columns of a row that the plan decides, by name in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    names: Arc<[&'static str]>,
    values: Arc<[Arc<Datum>]>,
}

impl Columns {
    /// Name and value of each column.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<Datum>)> {
        self.names.iter().copied().zip(&*self.values)
    }
}

/// A value, compared and hashed by content. Equal sets whose elements are in another order count as different, which costs a copy
/// and nothing else.
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

/// Interned values. Unused ones are dropped when the number of values has doubled since the last time.
#[derive(Debug, Default)]
pub struct Shared {
    values: HashSet<Value>,
    /// The distinct lists of column names: a few for each table.
    names: HashSet<Arc<[&'static str]>>,
    /// Number of values at which unused ones are dropped.
    limit: usize,
}

/// Below this number of values none is dropped.
const MIN_LIMIT: usize = 16_384;

impl Shared {
    /// The columns with interned names and values.
    pub fn columns(&mut self, columns: impl IntoIterator<Item = (&'static str, Datum)>) -> Columns {
        let (names, values): (Vec<_>, Vec<_>) =
            columns.into_iter().map(|(name, value)| (name, self.value(value))).unzip();
        let names = match self.names.get(&*names) {
            Some(known) => Arc::clone(known),
            None => {
                let names: Arc<[&'static str]> = names.into();
                self.names.insert(Arc::clone(&names));
                names
            }
        };
        Columns { names, values: values.into() }
    }

    /// The interned value.
    fn value(&mut self, value: Datum) -> Arc<Datum> {
        let value = Value(Arc::new(value));
        if let Some(Value(known)) = self.values.get(&value) {
            return Arc::clone(known);
        }
        self.values.insert(value.clone());
        value.0
    }

    /// Drops unused values if the number has doubled since the last time.
    pub fn tidy(&mut self) {
        if self.values.len() < self.limit.max(MIN_LIMIT) {
            return;
        }
        self.values.retain(|value| Arc::strong_count(&value.0) > 1);
        self.limit = 2 * self.values.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_and_names_are_kept_once() {
        let mut shared = Shared::default();
        let mut columns = |value: &str| shared.columns([("name", "x".into()), ("vips", value.into())]);
        let (a, b) = (columns("a"), columns("b"));
        assert!(Arc::ptr_eq(&a.names, &b.names));
        assert!(Arc::ptr_eq(&a.values[0], &b.values[0]) && !Arc::ptr_eq(&a.values[1], &b.values[1]));
        assert_eq!(a.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["name", "vips"]);
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

//! A set whose members are counted.

use std::hash::Hash;

use hashbrown::{Equivalent, HashMap};

/// Members that were added more often than removed.
#[derive(Debug, Clone)]
pub(super) struct Counted<K>(HashMap<K, u32>);

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Counted<K> {
    /// Adds one; returns true when there was none.
    pub(super) fn add(&mut self, member: K) -> bool {
        let count = self.0.entry(member).or_insert(0);
        *count = count.saturating_add(1);
        *count == 1
    }

    /// Removes one; returns true when none is left.
    pub(super) fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, member: &Q) -> bool {
        let Some(count) = self.0.get_mut(member) else { return false };
        *count = count.saturating_sub(1);
        let last = *count == 0;
        if last {
            self.0.remove(member);
        }
        last
    }

    pub(super) fn contains<Q: Hash + Equivalent<K> + ?Sized>(&self, member: &Q) -> bool {
        self.0.contains_key(member)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

//! A map column's value.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use super::shared;

/// A map, as a slice of pairs in order of the keys. Clones share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Map<K, V>(Arc<[(K, V)]>);

/// The pairs of a [`Map`], in order.
pub type MapIter<'a, K, V> = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

impl<K: Ord, V> Map<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.0.binary_search_by(|(one, _)| one.borrow().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Whether a key has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }
}

impl<K, V> Map<K, V> {
    /// The pairs, in order of the keys.
    pub fn iter(&self) -> MapIter<'_, K, V> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, in order of the keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both are one copy.
    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<K: Ord + Clone, V: PartialEq + Clone> Map<K, V> {
    /// The map with a difference applied, as `update2` has them: a pair that it has goes, any other comes in place of what
    /// the key had.
    pub(crate) fn changed(&self, mut difference: Vec<(K, V)>) -> Self {
        sort(&mut difference);
        let mut merged = Vec::with_capacity(self.len() + difference.len());
        let mut own = self.0.iter().peekable();
        for (key, value) in difference {
            while let Some(one) = own.next_if(|one| one.0 < key) {
                merged.push(one.clone());
            }
            let old = own.next_if(|one| one.0 == key);
            if old.is_none_or(|(_, old)| *old != value) {
                merged.push((key, value));
            }
        }
        merged.extend(own.cloned());
        Self(shared(merged))
    }
}

/// Puts pairs into order; of one key the last stays.
fn sort<K: Ord, V>(pairs: &mut Vec<(K, V)>) {
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    // Of two equal ones `dedup_by` takes out the later, which is the one to keep.
    pairs.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same {
            std::mem::swap(later, earlier);
        }
        same
    });
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<(K, V)> = pairs.into_iter().collect();
        sort(&mut pairs);
        Self(shared(pairs))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K: Ord, V> From<BTreeMap<K, V>> for Map<K, V> {
    fn from(pairs: BTreeMap<K, V>) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K: Ord + Clone, V: Clone> From<&Map<K, V>> for BTreeMap<K, V> {
    fn from(map: &Map<K, V>) -> Self {
        map.0.iter().cloned().collect()
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = MapIter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for Map<K, V> {
    type Output = V;

    /// # Panics
    /// When the key has no value.
    #[expect(clippy::expect_used, reason = "as the maps of the standard library")]
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key has a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_in_order_and_the_last_value_of_a_key_stays() {
        let map = Map::from([("b", 1), ("a", 2), ("b", 3), ("b", 4)]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &2), (&"b", &4)]);
        assert_eq!((map.get("b"), map.get("c"), map["a"]), (Some(&4), None, 2));
    }

    #[test]
    fn a_difference_removes_equal_pairs_and_replaces_others() {
        let map = Map::from([("a", 1), ("b", 2), ("c", 3)]);
        let changed = map.changed(vec![("d", 4), ("b", 5), ("a", 1)]);
        assert_eq!(changed, Map::from([("b", 5), ("c", 3), ("d", 4)]));
        assert!(map.changed(vec![("a", 1), ("b", 2), ("c", 3)]).is_empty());
        assert_eq!(Map::default().changed(vec![("a", 1)]), Map::from([("a", 1)]));
    }
}

//! One copy of a value that many rows have.

use std::hash::{BuildHasher, RandomState};

use super::Map;

/// Places for values.
const SLOTS: usize = 1024;

/// String maps seen lately, each at the place that follows from its hash: rows with equal options or external identifiers mostly come
/// one after another. Takes bounded memory and time, whatever comes; a value that is not found is kept twice, which only costs memory.
pub struct Kept {
    slots: Box<[Map<String, String>]>,
    hasher: RandomState,
}

impl Kept {
    /// In place of an equal one, the copy that other rows have.
    pub fn share(&mut self, map: &mut Map<String, String>) {
        if map.is_empty() {
            return;
        }
        let hash = usize::try_from(self.hasher.hash_one(&*map)).unwrap_or_default();
        let Some(slot) = self.slots.get_mut(hash % SLOTS) else { return };
        if slot == map {
            *map = slot.clone();
        } else {
            *slot = map.clone();
        }
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self { slots: vec![Map::default(); SLOTS].into(), hasher: RandomState::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_maps_are_one_copy() {
        let map = |value: usize| Map::from([("key".to_owned(), value.to_string())]);
        let mut kept = Kept::default();
        let (mut one, mut other) = (map(1), map(1));
        assert!(!one.is_same(&other));
        kept.share(&mut one);
        kept.share(&mut other);
        assert!(one.is_same(&other));
        for number in 0..10 * SLOTS {
            let mut unlike = map(number);
            kept.share(&mut unlike);
            assert_eq!(unlike, map(number));
        }
    }
}

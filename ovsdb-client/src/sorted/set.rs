//! A set column's value.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::shared;

/// A set, as a slice in order without duplicates. Clones share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set<T>(Arc<[T]>);

impl<T: Ord> Set<T> {
    /// Whether the set has an element.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.binary_search_by(|one| one.borrow().cmp(element)).is_ok()
    }

    /// What the other one lacks, and what it has besides.
    pub fn differences<'a>(&'a self, other: &'a Self) -> (Vec<&'a T>, Vec<&'a T>) {
        let (mut gone, mut came) = (Vec::new(), Vec::new());
        if Arc::ptr_eq(&self.0, &other.0) {
            return (gone, came);
        }
        let mut new = other.iter().peekable();
        for old in self {
            while let Some(one) = new.next_if(|one| *one < old) {
                came.push(one);
            }
            if new.next_if(|one| *one == old).is_none() {
                gone.push(old);
            }
        }
        came.extend(new);
        (gone, came)
    }

    /// Whether all its elements are in the other one.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|element| other.contains(element))
    }
}

impl<T: Ord + Clone> Set<T> {
    /// The set with the given elements toggled: those that it has go, the others come.
    pub(crate) fn toggled(&self, mut elements: Vec<T>) -> Self {
        elements.sort_unstable();
        elements.dedup();
        let mut merged = Vec::with_capacity(self.len() + elements.len());
        let mut own = self.iter().peekable();
        for element in elements {
            while let Some(one) = own.next_if(|one| **one < element) {
                merged.push(one.clone());
            }
            if own.next_if(|one| **one == element).is_none() {
                merged.push(element);
            }
        }
        merged.extend(own.cloned());
        Self(shared(merged))
    }
}

impl<T> Default for Set<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Deref for Set<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Set<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Ord> FromIterator<T> for Set<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements: Vec<T> = elements.into_iter().collect();
        elements.sort_unstable();
        elements.dedup();
        Self(shared(elements))
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for Set<T> {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Ord> From<BTreeSet<T>> for Set<T> {
    fn from(elements: BTreeSet<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Ord + Clone> From<&Set<T>> for BTreeSet<T> {
    fn from(set: &Set<T>) -> Self {
        set.iter().cloned().collect()
    }
}

impl<'a, T> IntoIterator for &'a Set<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_in_order_and_has_no_duplicates() {
        let set = Set::from([3, 1, 3, 2]);
        assert_eq!(*set, [1, 2, 3]);
        assert!(set.contains(&2) && !set.contains(&4));
        assert!(Set::from([1, 3]).is_subset(&set) && !Set::from([0]).is_subset(&set));
    }

    #[test]
    fn two_sets_tell_what_only_one_of_them_has() {
        let set = Set::from([1, 3, 5, 7]);
        let of = |other: [i32; 4]| {
            let other = Set::from(other);
            let (gone, came) = set.differences(&other);
            (gone.into_iter().copied().collect::<Vec<_>>(), came.into_iter().copied().collect::<Vec<_>>())
        };
        assert_eq!(of([0, 3, 4, 9]), (vec![1, 5, 7], vec![0, 4, 9]));
        assert_eq!(of([1, 3, 5, 7]), (vec![], vec![]));
        let empty = Set::default();
        assert_eq!(set.differences(&empty).0.len(), 4);
        assert_eq!(empty.differences(&set).1.len(), 4);
        assert_eq!(set.differences(&set.clone()), (vec![], vec![]));
    }

    #[test]
    fn what_is_toggled_comes_or_goes() {
        let set = Set::from([1, 3, 5]);
        assert_eq!(*set.toggled(vec![6, 3, 0, 4]), [0, 1, 4, 5, 6]);
        assert_eq!(*set.toggled(vec![1, 3, 5]), [0; 0]);
        assert_eq!(*Set::default().toggled(vec![2, 1]), [1, 2]);
        assert_eq!(set.toggled(vec![]), set);
    }
}

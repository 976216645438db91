//! Values of OVSDB columns without a static type.

mod convert;
mod wire;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use uuid::Uuid;

/// One scalar value.
#[derive(Debug, Clone)]
pub enum Atom {
    /// 64-bit signed integer.
    Integer(i64),
    /// Floating point number. Compared by [`f64::total_cmp`].
    Real(f64),
    /// Truth value.
    Boolean(bool),
    /// UTF-8 string.
    String(String),
    /// Reference to a row.
    Uuid(Uuid),
    /// Reference to a row that the same transaction inserts.
    NamedUuid(String),
}

impl Atom {
    fn rank(&self) -> u8 {
        match self {
            Self::Integer(_) => 0,
            Self::Real(_) => 1,
            Self::Boolean(_) => 2,
            Self::String(_) => 3,
            Self::Uuid(_) => 4,
            Self::NamedUuid(_) => 5,
        }
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(b),
            (Self::Real(a), Self::Real(b)) => a.total_cmp(b),
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) | (Self::NamedUuid(a), Self::NamedUuid(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

impl Hash for Atom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rank().hash(state);
        match self {
            Self::Integer(value) => value.hash(state),
            Self::Real(value) => value.to_bits().hash(state),
            Self::Boolean(value) => value.hash(state),
            Self::String(value) | Self::NamedUuid(value) => value.hash(state),
            Self::Uuid(value) => value.hash(state),
        }
    }
}

/// A column's value: a set (a scalar is a set of one, an absent optional a set of none) or a map.
///
/// Values made by the `From` conversions, [`Datum::set`] and [`Datum::map`] are canonical (sorted, no duplicates),
/// and so are decoded ones; equality compares values, whatever the order of a hand-made vector.
#[derive(Debug, Clone)]
pub enum Datum {
    /// Set of atoms.
    Set(Vec<Atom>),
    /// Map of atoms to atoms.
    Map(Vec<(Atom, Atom)>),
}

impl Datum {
    /// The empty set: the value of an optional column that is not set.
    pub const EMPTY: Self = Self::Set(Vec::new());

    /// A canonical set.
    pub fn set<T: Into<Atom>>(atoms: impl IntoIterator<Item = T>) -> Self {
        let mut atoms: Vec<Atom> = atoms.into_iter().map(Into::into).collect();
        atoms.sort_unstable();
        atoms.dedup();
        Self::Set(atoms)
    }

    /// A canonical map. Of two equal keys the last one wins.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let pairs: BTreeMap<Atom, Atom> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self::Map(pairs.into_iter().collect())
    }

    /// Number of atoms or pairs.
    pub fn len(&self) -> usize {
        match self {
            Self::Set(atoms) => atoms.len(),
            Self::Map(pairs) => pairs.len(),
        }
    }

    /// True for the empty set and the empty map.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The only atom of a set of one.
    pub fn scalar(&self) -> Option<&Atom> {
        match self {
            Self::Set(atoms) if atoms.len() == 1 => atoms.first(),
            _ => None,
        }
    }

    /// The string of a set of one string.
    pub fn as_str(&self) -> Option<&str> {
        match self.scalar() {
            Some(Atom::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The row reference of a set of one reference.
    pub fn as_uuid(&self) -> Option<Uuid> {
        match self.scalar() {
            Some(Atom::Uuid(uuid)) => Some(*uuid),
            _ => None,
        }
    }

    fn is_canonical(&self) -> bool {
        match self {
            Self::Set(atoms) => atoms.is_sorted_by(|a, b| a < b),
            Self::Map(pairs) => pairs.is_sorted_by(|a, b| a.0 < b.0),
        }
    }

    /// The value in canonical form.
    pub fn canonical(self) -> Self {
        if self.is_canonical() {
            return self;
        }
        match self {
            Self::Set(atoms) => Self::set(atoms),
            Self::Map(pairs) => Self::map(pairs),
        }
    }
}

impl PartialEq for Datum {
    fn eq(&self, other: &Self) -> bool {
        if self.is_canonical() && other.is_canonical() {
            return match (self, other) {
                (Self::Set(a), Self::Set(b)) => a == b,
                (Self::Map(a), Self::Map(b)) => a == b,
                _ => false,
            };
        }
        self.clone().canonical() == other.clone().canonical()
    }
}

impl Eq for Datum {}

//! Values of OVSDB columns without a static type, and their form on the wire (RFC 7047 section 5.1).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
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

    /// The same value in canonical form.
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

macro_rules! from_scalar {
    ($($type:ty => |$value:ident| $atom:expr;)*) => {$(
        impl From<$type> for Atom {
            fn from($value: $type) -> Self {
                $atom
            }
        }
        impl From<$type> for Datum {
            fn from(value: $type) -> Self {
                Self::Set(vec![value.into()])
            }
        }
    )*};
}

from_scalar! {
    i64 => |value| Self::Integer(value);
    i32 => |value| Self::Integer(value.into());
    u32 => |value| Self::Integer(value.into());
    u16 => |value| Self::Integer(value.into());
    f64 => |value| Self::Real(value);
    bool => |value| Self::Boolean(value);
    String => |value| Self::String(value);
    &String => |value| Self::String(value.clone());
    &str => |value| Self::String(value.to_owned());
    Uuid => |value| Self::Uuid(value);
    &Uuid => |value| Self::Uuid(*value);
    &Atom => |value| value.clone();
}

impl From<Atom> for Datum {
    fn from(value: Atom) -> Self {
        Self::Set(vec![value])
    }
}

impl<T: Into<Atom>> From<Option<T>> for Datum {
    fn from(value: Option<T>) -> Self {
        Self::Set(value.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Atom>> From<Vec<T>> for Datum {
    fn from(values: Vec<T>) -> Self {
        Self::set(values)
    }
}

impl<T: Into<Atom>, const N: usize> From<[T; N]> for Datum {
    fn from(values: [T; N]) -> Self {
        Self::set(values)
    }
}

impl<T: Into<Atom>> From<BTreeSet<T>> for Datum {
    fn from(values: BTreeSet<T>) -> Self {
        Self::set(values)
    }
}

impl<'a, T> From<&'a BTreeSet<T>> for Datum
where
    &'a T: Into<Atom>,
{
    fn from(values: &'a BTreeSet<T>) -> Self {
        Self::set(values)
    }
}

impl<K: Into<Atom>, V: Into<Atom>> From<BTreeMap<K, V>> for Datum {
    fn from(values: BTreeMap<K, V>) -> Self {
        Self::map(values)
    }
}

impl<'a, K, V> From<&'a BTreeMap<K, V>> for Datum
where
    &'a K: Into<Atom>,
    &'a V: Into<Atom>,
{
    fn from(values: &'a BTreeMap<K, V>) -> Self {
        Self::map(values)
    }
}

impl<K: Into<Atom>, V: Into<Atom>> From<HashMap<K, V>> for Datum {
    fn from(values: HashMap<K, V>) -> Self {
        Self::map(values)
    }
}

impl Serialize for Atom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Real(value) => serializer.serialize_f64(*value),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::String(value) => serializer.serialize_str(value),
            Self::Uuid(value) => {
                let mut text = Uuid::encode_buffer();
                ("uuid", &*value.hyphenated().encode_lower(&mut text)).serialize(serializer)
            }
            Self::NamedUuid(name) => ("named-uuid", name).serialize(serializer),
        }
    }
}

impl Serialize for Datum {
    /// A set of one is written as the atom, every other set as `["set", [...]]`: a server takes `[]` for a syntax error.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Set(atoms) => match atoms.as_slice() {
                [one] => one.serialize(serializer),
                _ => ("set", atoms).serialize(serializer),
            },
            Self::Map(pairs) => ("map", pairs).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Atom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Datum::deserialize(deserializer)? {
            Datum::Set(mut atoms) if atoms.len() == 1 => Ok(atoms.remove(0)),
            _ => Err(de::Error::custom("expected an atom, found a set or a map")),
        }
    }
}

impl<'de> Deserialize<'de> for Datum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DatumVisitor)
    }
}

struct DatumVisitor;

impl<'de> Visitor<'de> for DatumVisitor {
    type Value = Datum;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an OVSDB value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Datum, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Datum, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Datum, E> {
        i64::try_from(value)
            .map(Datum::from)
            .map_err(|_range| E::custom(format!("integer {value} does not fit in 64 bits with sign")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Datum, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Datum, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Datum, A::Error> {
        let missing = || de::Error::custom("expected [\"set\"|\"map\"|\"uuid\"|\"named-uuid\", value]");
        let tag: Cow<'de, str> = seq.next_element()?.ok_or_else(missing)?;
        let value = match tag.as_ref() {
            "uuid" => Datum::from(seq.next_element::<Uuid>()?.ok_or_else(missing)?),
            "named-uuid" => Datum::from(Atom::NamedUuid(seq.next_element()?.ok_or_else(missing)?)),
            "set" => Datum::set(seq.next_element::<Vec<Atom>>()?.ok_or_else(missing)?),
            "map" => Datum::map(seq.next_element::<Vec<(Atom, Atom)>>()?.ok_or_else(missing)?),
            _ => return Err(missing()),
        };
        match seq.next_element::<de::IgnoredAny>()? {
            None => Ok(value),
            Some(_) => Err(missing()),
        }
    }
}

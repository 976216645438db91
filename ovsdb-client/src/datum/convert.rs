//! Conversions of ordinary Rust values to atoms and values.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::{Atom, Datum};

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

//! Typed columns: how the field types of generated rows are read from the wire, changed by differences, and shown as
//! [`Datum`]s. Optional columns are `Option`, sets [`Set`], maps [`Map`].

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use uuid::Uuid;

use crate::sorted::Kept;
use crate::{Atom, Datum, Map, Set};

/// What a value from the wire means for a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The new value.
    Replace,
    /// A difference, as in `modify` of `update2` (ovsdb-server(7)): elements of a set are toggled; of a map, equal pairs
    /// are removed, others added or changed; everything that holds at most one value is replaced.
    Difference,
}

/// Field type of a generated row.
pub trait Column: Default + Clone + PartialEq {
    /// Takes a value from the wire.
    ///
    /// # Errors
    /// The value is not of the column's type.
    fn set<'de, D: Deserializer<'de>>(&mut self, mode: Mode, value: D) -> Result<(), D::Error>;
    /// The value without its type.
    fn datum(&self) -> Datum;
    /// Takes the copy of the value that other rows have, if it is kept.
    fn share(&mut self, _kept: &mut Kept) {}
}

/// Element type of a generated row's field.
pub trait Element: Sized + Clone + Ord + Into<Atom> + 'static {
    /// For error messages.
    const EXPECTED: &'static str;
    /// From a JSON integer.
    fn integer(_value: i64) -> Option<Self> {
        None
    }
    /// From a JSON truth value.
    fn boolean(_value: bool) -> Option<Self> {
        None
    }
    /// From a JSON string.
    fn string(_value: Cow<'_, str>) -> Option<Self> {
        None
    }
    /// From `["uuid", ...]`.
    fn uuid(_value: Uuid) -> Option<Self> {
        None
    }
}

impl Element for i64 {
    const EXPECTED: &'static str = "an integer";
    fn integer(value: i64) -> Option<Self> {
        Some(value)
    }
}

impl Element for bool {
    const EXPECTED: &'static str = "a truth value";
    fn boolean(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Element for String {
    const EXPECTED: &'static str = "a string";
    fn string(value: Cow<'_, str>) -> Option<Self> {
        Some(value.into_owned())
    }
}

impl Element for Uuid {
    const EXPECTED: &'static str = "a row reference";
    fn uuid(value: Uuid) -> Option<Self> {
        Some(value)
    }
}

macro_rules! scalar_column {
    ($($type:ty)*) => {$(
        impl Column for $type {
            fn set<'de, D: Deserializer<'de>>(&mut self, _mode: Mode, value: D) -> Result<(), D::Error> {
                let mut one = None;
                value.deserialize_any(Elements { emit: |element: $type| one = Some(element), element: PhantomData })?;
                *self = one.ok_or_else(|| de::Error::custom(concat!("empty set for a column that must have a value of type ", stringify!($type))))?;
                Ok(())
            }

            fn datum(&self) -> Datum {
                self.clone().into()
            }
        }
    )*};
}

scalar_column!(i64 bool String Uuid);

impl<T: Element> Column for Option<T> {
    fn set<'de, D: Deserializer<'de>>(&mut self, _mode: Mode, value: D) -> Result<(), D::Error> {
        let mut one = None;
        value.deserialize_any(Elements { emit: |element: T| one = Some(element), element: PhantomData })?;
        *self = one;
        Ok(())
    }

    fn datum(&self) -> Datum {
        self.clone().into()
    }
}

impl<T: Element> Column for Set<T> {
    fn set<'de, D: Deserializer<'de>>(&mut self, mode: Mode, value: D) -> Result<(), D::Error> {
        let mut elements = Vec::new();
        value
            .deserialize_any(Elements { emit: |element: T| elements.push(element), element: PhantomData })?;
        *self = match mode {
            Mode::Replace => elements.into_iter().collect(),
            Mode::Difference => self.toggled(elements),
        };
        Ok(())
    }

    fn datum(&self) -> Datum {
        Datum::set(self.iter().cloned())
    }
}

impl<K: Element, V: Element> Column for Map<K, V> {
    fn set<'de, D: Deserializer<'de>>(&mut self, mode: Mode, value: D) -> Result<(), D::Error> {
        let mut pairs = Vec::new();
        value.deserialize_seq(Pairs(&mut pairs))?;
        *self = match mode {
            Mode::Replace => pairs.into_iter().collect(),
            Mode::Difference => self.changed(pairs),
        };
        Ok(())
    }

    fn datum(&self) -> Datum {
        Datum::map(self.iter().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn share(&mut self, kept: &mut Kept) {
        if let Some(map) = (self as &mut dyn Any).downcast_mut() {
            kept.share(map);
        }
    }
}

/// Reads an atom or a set and hands over every element.
struct Elements<T, F> {
    emit: F,
    element: PhantomData<T>,
}

impl<T: Element, F: FnMut(T)> Elements<T, F> {
    fn take<E: de::Error>(mut self, element: Option<T>) -> Result<(), E> {
        (self.emit)(element.ok_or_else(|| E::custom(format_args!("expected {}", T::EXPECTED)))?);
        Ok(())
    }
}

impl<'de, T: Element, F: FnMut(T)> Visitor<'de> for Elements<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or a set of such", T::EXPECTED)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.take(T::boolean(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.take(T::integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.take(i64::try_from(value).ok().and_then(T::integer))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.take(T::string(Cow::Borrowed(value)))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<(), E> {
        self.take(T::string(Cow::Owned(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let wrong = || de::Error::custom(format_args!("expected {} or a set of such", T::EXPECTED));
        match seq.next_element::<Tag>()?.ok_or_else(wrong)? {
            Tag::Uuid => {
                let uuid = seq.next_element::<Uuid>()?.ok_or_else(wrong)?;
                self.take(T::uuid(uuid))
            }
            Tag::Set => seq
                .next_element_seed(ElementList { emit: &mut self.emit, element: PhantomData })?
                .ok_or_else(wrong),
            Tag::Map => Err(wrong()),
        }
    }
}

/// The list inside `["set", [...]]`.
struct ElementList<'a, T, F> {
    emit: &'a mut F,
    element: PhantomData<T>,
}

impl<'de, T: Element, F: FnMut(T)> DeserializeSeed<'de> for ElementList<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Element, F: FnMut(T)> Visitor<'de> for ElementList<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of elements, each {}", T::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(One(element)) = seq.next_element::<One<T>>()? {
            (self.emit)(element);
        }
        Ok(())
    }
}

/// Exactly one element.
struct One<T>(T);

impl<'de, T: Element> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut one = None;
        deserializer
            .deserialize_any(Elements { emit: |element: T| one = Some(element), element: PhantomData })?;
        one.map(One).ok_or_else(|| de::Error::custom(format_args!("expected {}", T::EXPECTED)))
    }
}

/// Reads `["map", [[key, value], ...]]` into a list.
struct Pairs<'a, K, V>(&'a mut Vec<(K, V)>);

impl<'de, K: Element, V: Element> Visitor<'de> for Pairs<'_, K, V> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of {} to {}", K::EXPECTED, V::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let wrong = || de::Error::custom("expected [\"map\", [[key, value], ...]]");
        match seq.next_element::<Tag>()? {
            Some(Tag::Map) => seq.next_element_seed(PairList(self))?.ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// The list inside `["map", [...]]`.
struct PairList<'a, K, V>(Pairs<'a, K, V>);

impl<'de, K: Element, V: Element> DeserializeSeed<'de> for PairList<'_, K, V> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, K: Element, V: Element> Visitor<'de> for PairList<'_, K, V> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of [key, value] pairs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some((One(key), One(value))) = seq.next_element::<(One<K>, One<V>)>()? {
            self.0.0.push((key, value));
        }
        Ok(())
    }
}

/// First element of a tagged value.
enum Tag {
    Uuid,
    Set,
    Map,
}

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TagVisitor;
        impl Visitor<'_> for TagVisitor {
            type Value = Tag;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"set\", \"map\" or \"uuid\"")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Tag, E> {
                match value {
                    "uuid" => Ok(Tag::Uuid),
                    "set" => Ok(Tag::Set),
                    "map" => Ok(Tag::Map),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_str(TagVisitor)
    }
}

//! Values on the wire (RFC 7047 section 5.1, `<value>`).

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use uuid::Uuid;

use super::{Atom, Datum};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_is_read_as_the_nearest_there_is_and_written_as_it_was() {
        for text in ["8.888e+26", "8888800000000000000055901039", "0.1", "-2.5e3"] {
            let read: Datum = serde_json::from_str(text).unwrap();
            assert_eq!(read, Datum::from(text.parse::<f64>().unwrap()), "{text}");
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Datum>(&written).unwrap(), read, "{written}");
        }
    }
}

//! Reads one table's part of `<table-updates>` (RFC 7047 section 4.1.6) or `<table-updates2>` (ovsdb-server(7)) straight
//! into typed rows. The two differ in the keys of a row's entry only, so one reader serves both.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use uuid::Uuid;

use crate::Row;
use crate::column::Mode;

/// Where rows go.
pub(super) trait Sink<R> {
    /// The row as it is, for `modify`.
    fn old(&self, uuid: &Uuid) -> Option<&R>;
    /// A new or changed row.
    fn put(&mut self, row: R);
    /// A row that is gone.
    fn remove(&mut self, uuid: &Uuid);
}

pub(super) fn read<R: Row, S: Sink<R>>(json: &str, sink: &mut S) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    deserializer.deserialize_map(TableVisitor { sink, row: PhantomData })?;
    deserializer.end()
}

struct TableVisitor<'a, R, S> {
    sink: &'a mut S,
    row: PhantomData<R>,
}

impl<'de, R: Row, S: Sink<R>> Visitor<'de> for TableVisitor<'_, R, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("row updates by row identifier")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(uuid) = map.next_key::<Uuid>()? {
            let old = self.sink.old(&uuid);
            match map.next_value_seed(RowUpdate { uuid, old })? {
                Some(row) => self.sink.put(row),
                None => self.sink.remove(&uuid),
            }
        }
        Ok(())
    }
}

/// A row's entry; yields the row as it is afterwards, `None` when it is gone.
struct RowUpdate<'a, R> {
    uuid: Uuid,
    old: Option<&'a R>,
}

impl<'de, R: Row> DeserializeSeed<'de> for RowUpdate<'_, R> {
    type Value = Option<R>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, R: Row> Visitor<'de> for RowUpdate<'_, R> {
    type Value = Option<R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row update")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut result = None;
        while let Some(kind) = map.next_key::<Kind>()? {
            let (row, mode) = match kind {
                Kind::Whole => (R::with_uuid(self.uuid), Mode::Replace),
                Kind::Modify => {
                    let old = self.old.ok_or_else(|| {
                        de::Error::custom(format_args!(
                            "difference to row {} of table {}, which is not here",
                            self.uuid,
                            R::TABLE
                        ))
                    })?;
                    (old.clone(), Mode::Difference)
                }
                Kind::Gone => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            result = Some(map.next_value_seed(Columns { row, mode })?);
        }
        Ok(result)
    }
}

/// The columns of a row.
struct Columns<R> {
    row: R,
    mode: Mode,
}

impl<'de, R: Row> DeserializeSeed<'de> for Columns<R> {
    type Value = R;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<R, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, R: Row> Visitor<'de> for Columns<R> {
    type Value = R;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<R, A::Error> {
        while let Some(column) = map.next_key::<&str>()? {
            map.next_value_seed(Column { row: &mut self.row, column, mode: self.mode })?;
        }
        Ok(self.row)
    }
}

struct Column<'a, R> {
    row: &'a mut R,
    column: &'a str,
    mode: Mode,
}

impl<'de, R: Row> DeserializeSeed<'de> for Column<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.row.set(self.column, self.mode, deserializer).map_err(|error| {
            de::Error::custom(format_args!(
                "row {} of table {}, column {}: {error}",
                self.row.uuid(),
                R::TABLE,
                self.column
            ))
        })
    }
}

/// What a row's entry says: `initial`, `insert`, `new` carry the complete row, `modify` a difference, `delete` and `old` nothing that
/// is needed (an entry with `old` alone is a deletion).
enum Kind {
    Whole,
    Modify,
    Gone,
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;
        impl Visitor<'_> for KindVisitor {
            type Value = Kind;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"initial\", \"insert\", \"modify\", \"delete\", \"new\" or \"old\"")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Kind, E> {
                match value {
                    "initial" | "insert" | "new" => Ok(Kind::Whole),
                    "modify" => Ok(Kind::Modify),
                    "delete" | "old" => Ok(Kind::Gone),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_str(KindVisitor)
    }
}

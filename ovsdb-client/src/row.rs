//! Typed rows: the [`Row`] trait and the macro by which the generated models implement it.

use std::fmt::Debug;

use serde::Deserializer;
use uuid::Uuid;

use crate::Datum;
use crate::column::Mode;
use crate::sorted::Kept;

/// A row of one table with a Rust field for every column.
///
/// Implemented by the structs of [`crate::model`]. A column that is not monitored, or that the server leaves out because
/// it is at its default, has its default value here.
pub trait Row: Default + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// Name of the table in the schema.
    const TABLE: &'static str;
    /// Names of the columns in the schema this was generated from, sorted.
    const COLUMNS: &'static [&'static str];

    /// The row's identifier.
    fn uuid(&self) -> Uuid;

    /// The value of a column by its name in the schema; `None` when there is no such column.
    fn get(&self, column: &str) -> Option<Datum>;

    /// A row with every column at its default.
    fn with_uuid(uuid: Uuid) -> Self;

    /// Takes a column's value, or a difference to it, from the wire. Columns that the struct does not have are skipped.
    ///
    /// # Errors
    /// The value is not of the column's type.
    fn set<'de, D: Deserializer<'de>>(&mut self, column: &str, mode: Mode, value: D) -> Result<(), D::Error>;

    /// Takes the copies of values that other rows have, where they are kept.
    fn share(&mut self, kept: &mut Kept);
}

/// Declares one table: the struct and its [`Row`] implementation.
macro_rules! table {
    (
        $(#[$table_doc:meta])*
        $name:ident = $table:literal { $($(#[$doc:meta])* $field:ident : $type:ty = $column:literal,)* }
    ) => {
        $(#[$table_doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name {
            /// Identifier of the row.
            pub uuid: $crate::Uuid,
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $crate::Row for $name {
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [&'static str] = &[$($column),*];

            fn uuid(&self) -> $crate::Uuid {
                self.uuid
            }

            fn get(&self, column: &str) -> Option<$crate::Datum> {
                match column {
                    "_uuid" => Some(self.uuid.into()),
                    $($column => Some($crate::column::Column::datum(&self.$field)),)*
                    _ => None,
                }
            }

            fn with_uuid(uuid: $crate::Uuid) -> Self {
                Self { uuid, ..Self::default() }
            }

            fn set<'de, D: serde::Deserializer<'de>>(
                &mut self,
                column: &str,
                mode: $crate::column::Mode,
                value: D,
            ) -> Result<(), D::Error> {
                match column {
                    $($column => $crate::column::Column::set(&mut self.$field, mode, value),)*
                    _ => <serde::de::IgnoredAny as serde::Deserialize>::deserialize(value).map(drop),
                }
            }

            fn share(&mut self, kept: &mut $crate::sorted::Kept) {
                $($crate::column::Column::share(&mut self.$field, kept);)*
            }
        }
    };
}

pub(crate) use table;

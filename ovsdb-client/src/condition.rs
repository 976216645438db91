//! Row conditions: `where` of operations and of conditional monitors.

use serde::ser::{Serialize, Serializer};
use uuid::Uuid;

use crate::{Atom, Datum, Row};

/// Comparison function (RFC 7047 section 5.1, `<function>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Equal. For optional columns, an absent value equals the empty set.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less than (integers and reals).
    Less,
    /// At most.
    LessOrEqual,
    /// Greater than.
    Greater,
    /// At least.
    GreaterOrEqual,
    /// The column contains every element given.
    Includes,
    /// The column contains no element given.
    Excludes,
}

impl Function {
    fn wire(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Includes => "includes",
            Self::Excludes => "excludes",
        }
    }

    fn holds(self, have: &Datum, want: &Datum) -> bool {
        let order = || match (have.scalar(), want.scalar()) {
            (Some(a), Some(b)) => Some(a.cmp(b)),
            _ => None,
        };
        match self {
            Self::Equal => have == want,
            Self::NotEqual => have != want,
            Self::Less => order().is_some_and(|o| o.is_lt()),
            Self::LessOrEqual => order().is_some_and(|o| o.is_le()),
            Self::Greater => order().is_some_and(|o| o.is_gt()),
            Self::GreaterOrEqual => order().is_some_and(|o| o.is_ge()),
            Self::Includes => match (have, want) {
                (Datum::Set(have), Datum::Set(want)) => want.iter().all(|a| have.contains(a)),
                (Datum::Map(have), Datum::Map(want)) => want.iter().all(|p| have.contains(p)),
                _ => want.is_empty(),
            },
            Self::Excludes => match (have, want) {
                (Datum::Set(have), Datum::Set(want)) => !want.iter().any(|a| have.contains(a)),
                (Datum::Map(have), Datum::Map(want)) => !want.iter().any(|p| have.contains(p)),
                _ => true,
            },
        }
    }
}

/// One condition on a row.
///
/// Several conditions of an operation must all hold (RFC 7047); of a conditional monitor at least one (ovsdb-server(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Comparison of a column with a value.
    Compare {
        /// Column name; `_uuid` for the row's identifier.
        column: String,
        /// How to compare.
        function: Function,
        /// What to compare with.
        value: Datum,
    },
    /// Every row or no row. Only conditional monitors know this form.
    Always(bool),
}

impl Condition {
    /// Comparison of a column with a value.
    pub fn new(column: impl Into<String>, function: Function, value: impl Into<Datum>) -> Self {
        Self::Compare { column: column.into(), function, value: value.into() }
    }

    /// The row with this identifier.
    pub fn uuid(uuid: Uuid) -> Self {
        Self::new("_uuid", Function::Equal, Atom::Uuid(uuid))
    }

    /// Rows whose column equals the value.
    pub fn equal(column: impl Into<String>, value: impl Into<Datum>) -> Self {
        Self::new(column, Function::Equal, value)
    }

    /// Evaluates the condition here, for servers that cannot (`monitor` of RFC 7047 has no conditions).
    pub(crate) fn matches<R: Row>(&self, row: &R) -> bool {
        match self {
            Self::Always(verdict) => *verdict,
            Self::Compare { column, function, value } if column == "_uuid" => {
                function.holds(&row.uuid().into(), value)
            }
            Self::Compare { column, function, value } => {
                row.get(column).is_some_and(|have| function.holds(&have, value))
            }
        }
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Always(verdict) => verdict.serialize(serializer),
            Self::Compare { column, function, value } => {
                (column, function.wire(), value).serialize(serializer)
            }
        }
    }
}

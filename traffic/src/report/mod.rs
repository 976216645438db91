//! Results: as JSON with a version ([`document`]), as a table ([`table`]).

mod document;
mod table;

pub use document::{Cpu, Document, FORMAT, PathSeries, Ratio, Reorder, Row, Sliced};
pub(crate) use document::{write, write_line};
pub use table::thousands;
pub(crate) use table::{rows, sliced};

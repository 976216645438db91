//! What command lines and files of scenarios name: paths, loads, and what is killed.

mod load;
mod part;
mod path;

pub(crate) use load::LoadName;
pub(crate) use part::Part;
pub(crate) use path::Path;

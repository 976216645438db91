//! Sets and maps of rows as sorted slices. A replica of a large cluster has hundreds of thousands of them with one to five
//! elements each, where a B-tree takes half a kilobyte for the first; and a changed row shares the columns that did not change.

mod kept;
mod map;
mod set;

pub use kept::Kept;
pub use map::{Map, MapIter};
pub use set::Set;

use std::sync::Arc;

/// A shared slice; the empty one takes no memory.
fn shared<T>(elements: Vec<T>) -> Arc<[T]> {
    if elements.is_empty() { Arc::default() } else { elements.into() }
}

//! Tests from the driving end: the session with a server, and one test through warm-up and measurement.

mod session;
mod test;

pub(crate) use session::{Session, Target, default_data_port};
pub(crate) use test::{DRAIN, Plan, run};

/// Where servers listen unless told otherwise. Data goes to the next port.
pub const PORT: u16 = 5501;

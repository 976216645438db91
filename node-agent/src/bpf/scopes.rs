//! Map `SCOPES`: what has changed last in each scope, see [`ebpf::layout::scope`].
//!
//! The agent alone writes it, and keeps a copy, so that listing flows does not read 65,536 values.

use aya::maps::{Array, Map, MapData, MapError};
use ebpf::layout::scope::{CLOSED, SCOPES as SCOPE_BUCKETS, STEP};

use super::{Error, control::Control, shape::SCOPES};
use crate::flow_cache::ScopeChange;

/// After this many changes (a power of two) everything is invalidated and the buckets are written anew: their numbers are compared as
/// signed differences, which an older one would turn round.
const LAP: u32 = 1 << 28;

fn failed(action: &'static str, source: MapError) -> Error {
    Error::map(SCOPES, action, source)
}

/// Handle of the map.
pub(super) struct Scopes {
    map: Array<MapData, u32>,
    copy: Vec<u32>,
}

impl Scopes {
    /// Opens the map. It is read only if an agent before has left scopes closed: of what was learned before this agent nothing is valid
    /// for long, so the copy may begin with the number of the last change.
    ///
    /// # Errors
    /// A map cannot be read.
    pub(super) fn new(data: MapData, control: &Control) -> Result<Self, Error> {
        let map = Array::try_from(Map::Array(data)).map_err(|source| failed("open", source))?;
        let change = control.get()?.change;
        let copy = if change & CLOSED == 0 {
            vec![change; usize::try_from(SCOPE_BUCKETS).unwrap_or_default()]
        } else {
            map.iter().collect::<Result<_, _>>().map_err(|source| failed("read", source))?
        };
        Ok(Self { map, copy })
    }

    /// The buckets' values.
    pub(super) fn values(&self) -> &[u32] {
        &self.copy
    }

    /// Gives these buckets the number of a new change, then makes it the configuration's: a program that sees the number sees the
    /// buckets.
    ///
    /// # Errors
    /// A map cannot be written.
    pub(super) fn change(&mut self, change: &ScopeChange, control: &Control) -> Result<(), Error> {
        let before = control.get()?.change;
        if before & CLOSED == 0 && change.buckets.iter().any(|(_, closed)| *closed) {
            // First, so that no bucket is closed without it, wherever an agent ends.
            control.change(|config| ebpf::layout::maps::Config { change: before | CLOSED, ..config })?;
        }
        let number = (before & !CLOSED).wrapping_add(STEP);
        if number.is_multiple_of(LAP * STEP) {
            control.invalidate()?;
            for bucket in 0..u32::try_from(self.copy.len()).unwrap_or(u32::MAX) {
                let closed = self.value(bucket) & CLOSED;
                self.set(bucket, number | closed)?;
            }
        }
        for (bucket, closed) in &change.buckets {
            self.set(*bucket, if *closed { number | CLOSED } else { number })?;
        }
        let closing = if change.closing { CLOSED } else { 0 };
        control.change(|config| ebpf::layout::maps::Config { change: number | closing, ..config })?;
        Ok(())
    }

    /// Opens every bucket, as a change of those that were closed.
    ///
    /// # Errors
    /// A map cannot be written.
    pub(super) fn open_all(&mut self, control: &Control) -> Result<(), Error> {
        let numbered = (0_u32..).zip(&self.copy);
        let closed = numbered.filter(|(_, value)| **value & CLOSED != 0).map(|(bucket, _)| (bucket, false));
        let buckets: Vec<_> = closed.collect();
        if buckets.is_empty() && control.get()?.change & CLOSED == 0 {
            return Ok(());
        }
        self.change(&ScopeChange { buckets, closing: false }, control)
    }

    fn value(&self, bucket: u32) -> u32 {
        usize::try_from(bucket).ok().and_then(|at| self.copy.get(at)).copied().unwrap_or_default()
    }

    fn set(&mut self, bucket: u32, value: u32) -> Result<(), Error> {
        self.map.set(bucket, value, 0).map_err(|source| failed("write", source))?;
        if let Some(copy) = usize::try_from(bucket).ok().and_then(|at| self.copy.get_mut(at)) {
            *copy = value;
        }
        Ok(())
    }
}

//! Flows by their keys.

use std::sync::Arc;

use hashbrown::Equivalent;

use crate::ovs::openflow::{Key, Match};

/// Key of a flow that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    table: u8,
    priority: u16,
    fields: Arc<[u8]>,
}

impl Name {
    pub(super) fn table(&self) -> u8 {
        self.table
    }

    pub(super) fn matched(&self) -> Match {
        Key { table: self.table, priority: self.priority, fields: &self.fields }.matched()
    }
}

impl From<&Key<'_>> for Name {
    fn from(key: &Key<'_>) -> Self {
        Self { table: key.table, priority: key.priority, fields: key.fields.into() }
    }
}

impl Equivalent<Name> for Key<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        (self.table, self.priority, self.fields) == (name.table, name.priority, &*name.fields)
    }
}

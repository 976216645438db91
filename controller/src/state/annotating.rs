//! Annotations that are being written: one patch per object at a time. A state of the object seen meanwhile is examined again once
//! the patch is written.

use std::collections::BTreeMap;

use api::network_attachment::STATUS;

use super::{Effects, ObjectRef, Patch, State};

/// Result of an object's patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Annotated {
    /// The annotation is written; the object's UID.
    Written(String),
    /// The object is gone.
    Gone(String),
}

/// A patch on its way.
#[derive(Debug)]
pub(super) struct Underway {
    sent: Patch,
    /// The patch that the object needed when a watch event came after `sent`. The event may be older than the write, or
    /// another client changed what had just been written: the patch is sent again, which changes nothing in the first case.
    lacks: Option<Patch>,
}

impl State {
    /// Takes the annotations that an object lacks, as it was last seen (empty: none). True when a patch is sent for it. While one is
    /// on its way there is no second, unless it has other content.
    pub(super) fn annotate(
        &mut self,
        object: ObjectRef,
        annotations: BTreeMap<&'static str, String>,
        effects: &mut Effects,
    ) -> bool {
        let Some(underway) = self.annotating.get_mut(&object.uid) else {
            if annotations.is_empty() {
                return false;
            }
            self.send(Patch { object, annotations }, effects);
            return true;
        };
        let sent = &underway.sent.annotations;
        if annotations.iter().any(|(key, value)| sent.get(key) != Some(value)) {
            self.send(Patch { object, annotations }, effects);
        } else {
            underway.lacks = (!annotations.is_empty()).then_some(Patch { object, annotations });
        }
        false
    }

    fn send(&mut self, patch: Patch, effects: &mut Effects) {
        let underway = Underway { sent: patch.clone(), lacks: None };
        self.annotating.insert(patch.object.uid.clone(), underway);
        effects.patches.push(patch);
    }

    /// Handles the result of a patch. It is sent again when the object did not show it when it was last seen.
    pub fn annotated(&mut self, annotated: &Annotated) -> Effects {
        let mut effects = Effects::default();
        match annotated {
            Annotated::Written(uid) => {
                let underway = self.annotating.remove(uid);
                if let Some(mut patch) = underway.and_then(|underway| underway.lacks) {
                    // Once written, the pod may be connected, and Multus says what it got from every plugin.
                    patch.annotations.remove(STATUS);
                    self.send(patch, &mut effects);
                }
            }
            Annotated::Gone(uid) => drop(self.annotating.remove(uid)),
        }
        effects
    }

    /// The object is gone: a patch on its way is pointless.
    pub(super) fn forget_annotation(&mut self, uid: &str, effects: &mut Effects) {
        if self.annotating.remove(uid).is_some() {
            effects.forgotten.push(uid.to_owned());
        }
    }

    /// A node is gone: as [`Self::forget_annotation`], for a node of which only the name is known.
    pub(super) fn forget_node_annotation(&mut self, name: &str, effects: &mut Effects) {
        let of_node = |underway: &Underway| {
            let object = &underway.sent.object;
            object.namespace.is_none() && object.name == name
        };
        let gone = self.annotating.extract_if(|_, underway| of_node(underway));
        effects.forgotten.extend(gone.map(|(uid, _)| uid));
    }
}

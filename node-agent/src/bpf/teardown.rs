//! The end of everything that is attached and pinned.

use super::{
    Failures, links,
    pins::{Pins, is_layout, list, remove_dir, remove_flat},
    xdp,
};

impl Pins {
    /// Removes everything the agent may have pinned, of any layout, and the directory itself if nothing else is in it.
    pub(super) fn remove_all(&self) -> Failures {
        let mut failures = Failures(Vec::new());
        xdp::remove_others(&self.xdp(), None, &mut failures);
        // The programs that mark packets first, those that take the marks off last.
        links::remove_dir(&self.uplink(), &mut failures);
        for id in failures.note(self.endpoint_ids()).unwrap_or_default() {
            links::remove_dir(&self.endpoint(&id), &mut failures);
        }
        failures.note(remove_dir(&self.endpoints()));
        links::remove_dir(&self.second_uplink(), &mut failures);
        links::remove_dir(&self.host(), &mut failures);
        links::remove_dir(&self.physical(), &mut failures);
        for name in failures.note(list(self.dir())).unwrap_or_default() {
            if is_layout(&name) {
                remove_flat(&self.dir().join(name), &mut failures);
            }
        }
        if failures.note(list(self.dir())).is_some_and(|left| left.is_empty()) {
            failures.note(remove_dir(self.dir()));
        }
        failures
    }
}

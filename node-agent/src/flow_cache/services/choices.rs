//! Which services are kept off the flow cache: what was asked for, for good or for a while. Pure; time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::NamespacedName;
use api::admin::Path;

/// Requested paths of services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choices {
    /// Services whose path is `ovs`.
    kept_off: BTreeSet<NamespacedName>,
    /// Paths for a while, which go before those.
    lent: BTreeMap<NamespacedName, (Path, Instant)>,
}

impl Choices {
    /// With these services on the slow path.
    pub(super) fn new(kept_off: BTreeSet<NamespacedName>) -> Self {
        Self { kept_off, lent: BTreeMap::new() }
    }

    /// Services whose path is `ovs`, whatever holds for a while.
    pub(super) fn kept_off(&self) -> &BTreeSet<NamespacedName> {
        &self.kept_off
    }

    /// Sets the path of a service for good; one for a while ends.
    pub(super) fn set(&mut self, name: &NamespacedName, path: Path) {
        self.lent.remove(name);
        match path {
            Path::Ovs => self.kept_off.insert(name.clone()),
            Path::Ebpf => self.kept_off.remove(name),
        };
    }

    /// Sets the path of a service until `now` plus `time`, unless it is asked for again; with no time the one before comes back.
    pub(super) fn lend(&mut self, name: &NamespacedName, path: Path, now: Instant, time: Duration) {
        if time.is_zero() {
            self.lent.remove(name);
        } else {
            self.lent.insert(name.clone(), (path, now + time));
        }
    }

    /// Ends what was for a while and is over. Returns true if there was some.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.lent.len();
        self.lent.retain(|_, (_, end)| *end > now);
        self.lent.len() != before
    }

    /// When the next one is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.lent.values().map(|(_, end)| *end).min()
    }

    /// Requested path of a service, and whether for a while.
    pub(super) fn of(&self, name: &NamespacedName) -> (Path, bool) {
        match self.lent.get(name) {
            Some((path, _)) => (*path, true),
            None if self.kept_off.contains(name) => (Path::Ovs, false),
            None => (Path::Ebpf, false),
        }
    }

    /// Whether a path was asked for that is not the usual one.
    pub(super) fn has(&self, name: &NamespacedName) -> bool {
        self.kept_off.contains(name) || self.lent.contains_key(name)
    }

    /// All services of which something was asked.
    pub(super) fn all(&self) -> BTreeSet<NamespacedName> {
        self.kept_off.iter().chain(self.lent.keys()).cloned().collect()
    }

    /// The services whose packets OVS gets now.
    pub(super) fn slow(&self) -> BTreeSet<NamespacedName> {
        self.all().into_iter().filter(|name| self.of(name).0 == Path::Ovs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_for_a_while_goes_before_the_other_and_gives_way_to_it() {
        let (web, db) = (NamespacedName::new("shop", "web"), NamespacedName::new("shop", "db"));
        let mut choices = Choices::new([db.clone()].into());
        let now = Instant::now();
        let second = Duration::from_secs(1);
        choices.lend(&web, Path::Ovs, now, second);
        choices.lend(&db, Path::Ebpf, now, 2 * second);
        assert_eq!(choices.slow(), [web.clone()].into());
        assert_eq!((choices.of(&web), choices.of(&db)), ((Path::Ovs, true), (Path::Ebpf, true)));
        assert_eq!(choices.next_end(), Some(now + second));
        assert!(!choices.expire(now) && choices.expire(now + second));
        assert_eq!((choices.of(&web), choices.slow()), ((Path::Ebpf, false), BTreeSet::new()));
        assert!(!choices.has(&web) && choices.has(&db));
        // Asked for again, it lasts longer.
        choices.lend(&db, Path::Ebpf, now + second, 2 * second);
        assert!(!choices.expire(now + 2 * second));
        choices.lend(&db, Path::Ebpf, now, Duration::ZERO);
        assert_eq!((choices.of(&db), choices.next_end()), ((Path::Ovs, false), None));
    }

    #[test]
    fn a_path_for_good_ends_one_for_a_while() {
        let web = NamespacedName::new("shop", "web");
        let mut choices = Choices::default();
        choices.lend(&web, Path::Ovs, Instant::now(), Duration::from_secs(9));
        choices.set(&web, Path::Ebpf);
        assert_eq!((choices.of(&web), choices.all()), ((Path::Ebpf, false), BTreeSet::new()));
        choices.set(&web, Path::Ovs);
        assert_eq!((choices.of(&web), choices.kept_off().len()), ((Path::Ovs, false), 1));
    }
}

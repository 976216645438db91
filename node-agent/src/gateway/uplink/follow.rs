//! Tracks addresses, routes and next hops of the gateway bridge in the kernel. Changes by others are recorded in the journal, not
//! reverted. Only what was lost with the interface itself, because OVS recreated it or it was set down, is restored, and never on
//! an adopted bridge.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use api::addr::Family;
use tokio::time::Instant;
use tracing::info;

use super::journal::Journal;
use super::migration::{Migration, Taken};
use super::observed::{Observed, is_alike, is_recorded};
use super::own;
use super::snapshot::SavedRoute;
use crate::metrics::Metrics;

/// Debounce time for changes, as an interface loses its addresses shortly before it disappears.
const SETTLE: Duration = Duration::from_millis(500);

/// Next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// None: the state is as recorded.
    Same,
    /// Check again at this time.
    Wait(Instant),
    /// Record the state.
    Record,
    /// Restore the recorded state.
    Restore,
}

/// Tracker of one bridge.
#[derive(Debug)]
pub struct Follower {
    /// Next hops as recorded.
    pub hops: Vec<IpAddr>,
    /// State that differs from the recorded one, and since when it has been seen.
    pending: Option<(Observed, Instant)>,
    /// The interface was down or missing, and the recorded state has not been restored since.
    disturbed: bool,
}

impl Follower {
    /// Creates a tracker with these recorded next hops.
    pub fn new(hops: Vec<IpAddr>) -> Self {
        Self { hops, pending: None, disturbed: false }
    }

    /// The interface was seen down or was removed: its addresses and routes may be lost.
    pub fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// The recorded state was restored completely. A partly restored state must not be recorded.
    pub fn restored(&mut self) {
        self.disturbed = false;
    }

    /// Next action for the observed state.
    pub fn judge(&mut self, journal: &Journal, seen: &Observed, now: Instant) -> Verdict {
        let anew = journal.bridge_index != Some(seen.index) || !seen.up || self.disturbed;
        if anew && !journal.adopted {
            self.pending = None;
            self.disturbed = true;
            return Verdict::Restore;
        }
        // A bridge without any address is in the middle of a change.
        if seen.addresses.is_empty() || (is_recorded(journal, seen) && seen.hops == self.hops) {
            self.pending = None;
            return Verdict::Same;
        }
        let since = match &self.pending {
            Some((before, since)) if is_alike(before, seen) => *since,
            _ => {
                self.pending = Some((seen.clone(), now));
                now
            }
        };
        if now < since + SETTLE {
            return Verdict::Wait(since + SETTLE);
        }
        self.pending = None;
        self.hops.clone_from(&seen.hops);
        Verdict::Record
    }
}

impl Migration {
    /// Brings the bridge and its record in line: moves what others put on the uplink, and records or restores addresses and routes. Returns
    /// when to look again, if a change has to settle.
    ///
    /// # Errors
    /// The kernel cannot be read or rejects a change, or the journal cannot be written.
    pub async fn keep_in_line(
        &self,
        taken: &mut Taken,
        follower: &mut Follower,
        metrics: &Metrics,
    ) -> anyhow::Result<Option<Instant>> {
        for _ in 0..self.take_strays(taken).await? {
            metrics.gateway_restored("uplink");
        }
        let Some(seen) = self.observe(&taken.journal).await? else { return Ok(None) };
        match follower.judge(&taken.journal, &seen, Instant::now()) {
            Verdict::Same => {}
            Verdict::Wait(at) => return Ok(Some(at)),
            Verdict::Record => self.record(&mut taken.journal, seen)?,
            Verdict::Restore => {
                let changed = self.restore_bridge(taken).await?;
                follower.restored();
                if changed {
                    metrics.gateway_restored("bridge");
                    let what = self.store.role().bridge();
                    info!(
                        bridge = taken.bridge,
                        "{what} was recreated or down; addresses and routes restored"
                    );
                }
            }
        }
        Ok(None)
    }

    /// Reads the state of the bridge from the kernel; `None` while it does not exist or is being recreated.
    ///
    /// # Errors
    /// The links, addresses or routes cannot be read from the kernel.
    pub async fn observe(&self, journal: &Journal) -> anyhow::Result<Option<Observed>> {
        let Some(link) = self.netlink.find(&journal.bridge).await? else { return Ok(None) };
        let all = self.look_at(&link).await?;
        // The lists are consistent only if the interface was not recreated or set up or down between the two reads.
        match self.netlink.find(&journal.bridge).await? {
            Some(after) if (after.index, after.up) == (link.index, link.up) => {}
            _ => return Ok(None),
        }
        let hops = best_hops(&all.1, link.index);
        let mut routes = all.1;
        let known = |route: &SavedRoute| {
            journal.found.routes.iter().position(|r| r.is_same(route)).unwrap_or(usize::MAX)
        };
        routes.retain(|route| !route.is_by_daemon() || known(route) != usize::MAX);
        routes.sort_by_key(|route| (known(route), route.has_gateway));
        let addresses = own::still_own(&all.0, &journal.found.addresses);
        Ok(Some(Observed { index: link.index, up: link.up, addresses, routes, hops }))
    }

    /// Records the state in the journal, for undoing the migration or restoring a recreated interface.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn record(&self, journal: &mut Journal, seen: Observed) -> anyhow::Result<()> {
        journal.bridge_index = Some(seen.index);
        journal.found.addresses = seen.addresses;
        journal.found.routes = seen.routes;
        self.store.save(journal).context("record the bridge's addresses and routes")
    }

    /// Restores the recorded state of the bridge after its interface was recreated or down. Returns true when something was missing.
    ///
    /// # Errors
    /// The kernel rejects a change, or the journal cannot be written.
    pub async fn restore_bridge(&self, taken: &mut Taken) -> anyhow::Result<bool> {
        let Some(link) = self.netlink.find(&taken.bridge).await? else { return Ok(false) };
        let mut changed = !link.up;
        if !link.up {
            self.netlink.set_up(link.index, &link.name).await?;
        }
        for address in &taken.journal.found.addresses {
            changed |= self.netlink.put_saved_address(link.index, &link.name, address).await?;
        }
        for route in &taken.journal.found.routes {
            changed |= self.netlink.put_usable_route(link.index, &link.name, route).await?;
        }
        if taken.journal.bridge_index != Some(link.index) {
            taken.journal.bridge_index = Some(link.index);
            self.store.save(&taken.journal)?;
        }
        Ok(changed)
    }
}

/// Next hops of the best default route of each family through an interface, IPv4 first.
fn best_hops(routes: &[SavedRoute], index: u32) -> Vec<IpAddr> {
    let of = |family: Family| {
        let all = routes.iter().filter_map(|route| route.default_hops(index));
        let mut all = all.filter(|(_, hops)| hops.iter().any(|hop| Family::of(*hop) == family));
        let first = all.next()?;
        let best = all.fold(first, |best, other| if other.0 < best.0 { other } else { best });
        Some(best.1)
    };
    [Family::V4, Family::V6].into_iter().filter_map(of).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::uplink::journal::Found;
    use crate::gateway::uplink::snapshot::SavedAddress;

    fn journal(addresses: &[&str]) -> Journal {
        let found = Found { addresses: saved(addresses), ..Found::for_test() };
        let mut journal = Journal::new("eth0", "breth0", false, found).unwrap();
        journal.bridge_index = Some(7);
        journal
    }

    fn saved(addresses: &[&str]) -> Vec<SavedAddress> {
        addresses.iter().map(|a| SavedAddress::for_test(a.parse().unwrap())).collect()
    }

    fn seen(index: u32, addresses: &[&str], hop: &str) -> Observed {
        let hops = vec![hop.parse().unwrap()];
        Observed { index, up: true, addresses: saved(addresses), routes: Vec::new(), hops }
    }

    fn follower() -> Follower {
        Follower::new(vec!["10.0.0.1".parse().unwrap()])
    }

    #[test]
    fn what_has_changed_is_recorded_once_it_has_stood_for_a_moment() {
        let (journal, mut follower, start) = (journal(&["10.0.0.5/24"]), follower(), Instant::now());
        assert_eq!(follower.judge(&journal, &seen(7, &["10.0.0.5/24"], "10.0.0.1"), start), Verdict::Same);
        let new = seen(7, &["10.0.0.6/24"], "10.0.0.1");
        assert_eq!(follower.judge(&journal, &new, start), Verdict::Wait(start + SETTLE));
        let other = seen(7, &["10.0.0.7/24"], "10.0.0.1");
        let later = start + SETTLE;
        assert_eq!(follower.judge(&journal, &other, later), Verdict::Wait(later + SETTLE), "another change");
        assert_eq!(follower.judge(&journal, &other, later + SETTLE), Verdict::Record);
    }

    #[test]
    fn another_next_hop_is_a_change_and_becomes_the_recorded_one() {
        let (journal, mut follower, start) = (journal(&["10.0.0.5/24"]), follower(), Instant::now());
        let new = seen(7, &["10.0.0.5/24"], "10.0.0.254");
        follower.judge(&journal, &new, start);
        assert_eq!(follower.judge(&journal, &new, start + SETTLE), Verdict::Record);
        assert_eq!(follower.hops, new.hops);
        assert_eq!(follower.judge(&journal, &new, start + SETTLE), Verdict::Same);
    }

    #[test]
    fn an_interface_made_anew_gets_what_it_had_unless_somebody_else_keeps_it() {
        let (mut journal, mut follower, now) = (journal(&["10.0.0.5/24"]), follower(), Instant::now());
        let bare = Observed { hops: Vec::new(), ..seen(8, &[], "10.0.0.1") };
        assert_eq!(follower.judge(&journal, &bare, now), Verdict::Restore);
        let same = seen(7, &["10.0.0.5/24"], "10.0.0.1");
        follower.disturb();
        assert_eq!(follower.judge(&journal, &same, now), Verdict::Restore, "it was down");
        let half = Observed { hops: Vec::new(), ..same.clone() };
        assert_eq!(
            follower.judge(&journal, &half, now),
            Verdict::Restore,
            "what failed half way is tried again"
        );
        follower.restored();
        assert_eq!(follower.judge(&journal, &same, now), Verdict::Same);
        journal.adopted = true;
        assert_eq!(follower.judge(&journal, &bare, now), Verdict::Same);
        assert_eq!(
            follower.judge(&journal, &seen(8, &["10.0.0.5/24"], "10.0.0.1"), now),
            Verdict::Wait(now + SETTLE)
        );
    }

    #[test]
    fn a_node_without_any_address_is_not_recorded() {
        let (journal, mut follower, now) = (journal(&["10.0.0.5/24"]), follower(), Instant::now());
        let bare = seen(7, &[], "10.0.0.1");
        assert_eq!(follower.judge(&journal, &bare, now), Verdict::Same);
        assert_eq!(follower.judge(&journal, &bare, now + SETTLE * 2), Verdict::Same);
    }
}

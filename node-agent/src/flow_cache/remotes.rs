//! Whose tunnelled packets this node's OVS takes: the other ends of its Geneve tunnels. The programs learn nothing from packets
//! of other outer sources, which OVS drops: a note left by one could be credited to a packet of the right one.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ovsdb_client::vswitch::Interface;

use crate::flow_cache::manager::Shared;
use crate::ovs::Ovs;

/// `remote_ip` of a tunnel that takes packets from everywhere, and leaves it to OpenFlow (ovs-vswitchd.conf.db(5)).
const FLOW: &str = "flow";

/// Whether this is a Geneve tunnel whose other end is not written in its row. ovn-controller writes it in each that it makes.
pub(super) fn takes_from_anybody(row: &Interface) -> bool {
    row.r#type == "geneve" && row.options.get("remote_ip").is_none_or(|remote| remote == FLOW)
}

/// The other end of a Geneve tunnel that OVS has opened. IPv6 ones have no fast path.
fn remote(row: &Interface) -> Option<Ipv4Addr> {
    let open = row.r#type == "geneve" && row.ofport.is_some_and(|port| port > 0);
    row.options.get("remote_ip").filter(|_| open)?.parse().ok()
}

impl Shared {
    /// Tells the cache the tunnels' other ends as they are in the database now. What is learned from one that is gone is made
    /// invalid after this, so that it cannot be learned again.
    pub(super) fn tell_remotes(&self, ovs: &Ovs) {
        let Some(cache) = &self.cache else { return };
        // Held throughout: an older view of the database must not come after a younger one.
        let mut told = self.remotes.lock();
        let wanted: BTreeSet<Ipv4Addr> =
            ovs.replica().read().table::<Interface>().iter().filter_map(|row| remote(row)).collect();
        if told.as_ref() == Some(&wanted) {
            return;
        }
        tracing::info!(remotes = wanted.len(), "nodes that OVS has tunnels to");
        let done = self.check("set the nodes that are learned from", cache.set_remotes(&wanted));
        // Otherwise tried again with the next decision.
        *told = done.map(|()| wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, remote_ip: Option<&str>, ofport: Option<i64>) -> Interface {
        let options =
            remote_ip.map(|remote| ("remote_ip".to_owned(), remote.to_owned())).into_iter().collect();
        Interface { r#type: kind.to_owned(), options, ofport, ..Interface::default() }
    }

    #[test]
    fn a_remote_is_the_ipv4_end_of_a_geneve_tunnel_that_ovs_has_opened() {
        let known = Some("172.18.0.3");
        assert_eq!(remote(&row("geneve", known, Some(4))), Some(Ipv4Addr::new(172, 18, 0, 3)));
        for (row, why) in [
            (row("geneve", known, None), "not opened yet"),
            (row("geneve", known, Some(-1)), "could not be opened"),
            (row("vxlan", known, Some(4)), "another kind of tunnel"),
            (row("geneve", Some("fd00::3"), Some(4)), "an IPv6 underlay"),
            (row("geneve", Some("flow"), Some(4)), "any source"),
            (row("", None, Some(4)), "no tunnel"),
        ] {
            assert_eq!(remote(&row), None, "{why}");
        }
    }

    #[test]
    fn a_geneve_tunnel_without_a_fixed_other_end_takes_from_anybody() {
        assert!(takes_from_anybody(&row("geneve", Some("flow"), None)));
        assert!(takes_from_anybody(&row("geneve", None, None)));
        assert!(!takes_from_anybody(&row("geneve", Some("172.18.0.3"), None)));
        assert!(!takes_from_anybody(&row("geneve", Some("fd00::3"), None)));
        assert!(!takes_from_anybody(&row("vxlan", Some("flow"), None)));
    }
}

//! Remote endpoints of the node's Geneve tunnels. The programs learn nothing from tunnelled packets of other outer sources,
//! which OVS drops: an in-flight record of such a packet could be attributed to a packet of a valid source.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ovsdb_client::vswitch::Interface;

use super::Shared;
use crate::ovs::Ovs;

/// Remote IPv4 endpoint of a Geneve tunnel that OVS has opened; the fast path does not support IPv6 endpoints.
fn remote(row: &Interface) -> Option<Ipv4Addr> {
    let open = row.r#type == "geneve" && row.ofport.is_some_and(|port| port > 0);
    row.options.get("remote_ip").filter(|_| open)?.parse().ok()
}

impl Shared {
    /// Writes the remote tunnel endpoints of the database to the cache. Must run before the invalidation that a removed tunnel
    /// causes; otherwise entries could be learned from it again.
    pub(in crate::flow_cache) fn update_remotes(&self, ovs: &Ovs) {
        let Some(cache) = &self.cache else { return };
        // The lock is held throughout, so that an older snapshot cannot overwrite a newer one.
        let mut last_sent = self.remotes.lock();
        let wanted: BTreeSet<Ipv4Addr> =
            ovs.replica().read().table::<Interface>().iter().filter_map(|row| remote(row)).collect();
        if last_sent.as_ref() == Some(&wanted) {
            return;
        }
        tracing::info!(remotes = wanted.len(), "remote tunnel endpoints updated");
        let done = self.check("set the remote tunnel endpoints", cache.set_remotes(&wanted));
        // After an error the next evaluation retries.
        *last_sent = done.map(|()| wanted);
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
}

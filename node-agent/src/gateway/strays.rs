//! Addresses and default routes that other processes, such as a DHCP client, add to the uplink after the migration. With them the
//! node's packets would bypass the bridge, while the replies would go to OVN.

use tracing::warn;

use crate::gateway::uplink::migration::{Migration, Taken};
use crate::gateway::uplink::own;

impl Migration {
    /// Moves such addresses and routes to the bridge, unless it has them. Other addresses stay, as they may be virtual ones. Returns
    /// their number.
    ///
    /// # Errors
    /// The kernel's addresses or routes cannot be read, or the kernel rejects a change.
    pub async fn take_strays(&self, taken: &Taken) -> anyhow::Result<usize> {
        if taken.journal.adopted {
            return Ok(0);
        }
        let (Some(uplink), Some(bridge)) =
            (self.netlink.find(&taken.uplink).await?, self.netlink.find(&taken.bridge).await?)
        else {
            return Ok(0);
        };
        let (addresses, routes) = self.look_at(&uplink).await?;
        let known = &taken.journal.found.addresses;
        let mut count = 0;
        for address in own::own(&addresses, known) {
            let same = known.iter().any(|there| there.address.addr() == address.address.addr());
            if !same && !address.leased {
                continue;
            }
            if !same {
                self.netlink.put_saved_address(bridge.index, &bridge.name, &address).await?;
            }
            self.netlink.take_saved_address(uplink.index, &uplink.name, &address).await?;
            warn!(uplink = uplink.name, %address, "another process added it to the uplink; moving it to the {}", self.store.role().bridge());
            count += 1;
        }
        let (_, there) = self.look_at(&bridge).await?;
        let there: Vec<_> = there.iter().filter_map(|route| route.default_hops(bridge.index)).collect();
        for route in routes {
            let Some((_, hops)) = route.default_hops(uplink.index) else { continue };
            if !there.iter().any(|(_, known)| *known == hops) {
                self.netlink.put_usable_route(bridge.index, &bridge.name, &route).await?;
            }
            self.netlink.take_saved_route(uplink.index, &uplink.name, &route).await?;
            warn!(uplink = uplink.name, %route, "another process added it to the uplink; moving it to the {}", self.store.role().bridge());
            count += 1;
        }
        Ok(count)
    }
}

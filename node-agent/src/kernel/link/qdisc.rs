//! Queueing disciplines of interfaces.

use std::collections::HashMap;

use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::{LinkError, Netlink};

impl Netlink {
    /// Lists the queueing disciplines configured on interfaces, by interface index. Those that the kernel attaches to every interface,
    /// which have no handle (`net.core.default_qdisc`), and `clsact`, which eBPF programs use, are omitted.
    ///
    /// # Errors
    /// The kernel rejects the request.
    pub async fn queueing_disciplines(&self) -> Result<HashMap<u32, String>, LinkError> {
        let found = self.listed(|| self.raw().qdisc().get().execute()).await;
        let messages: Vec<TcMessage> =
            found.map_err(|e| LinkError::netlink("(all)", "list queueing disciplines", e))?;
        Ok(messages.into_iter().filter_map(configured).collect())
    }
}

fn configured(message: TcMessage) -> Option<(u32, String)> {
    let index = u32::try_from(message.header.index).ok()?;
    let kind = message.attributes.into_iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind),
        _ => None,
    })?;
    (kind != "clsact" && message.header.handle != TcHandle::default()).then_some((index, kind))
}

//! Kind of an interface (`veth`, `bond`, …), asked without the asynchronous netlink client, for code that holds a lock.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};

/// Kind of the interface with this index in the calling thread's namespace (`IFLA_INFO_KIND`). Physical interfaces have none.
///
/// # Errors
/// There is no such interface, or the kernel's answer cannot be read.
pub fn kind(ifindex: u32) -> io::Result<Option<String>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut wanted = LinkMessage::default();
    wanted.header.index = ifindex;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(wanted));
    request.header.flags = NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    match NetlinkMessage::deserialize(&answer).map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => Ok(of(link)),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        other => Err(io::Error::other(format!("unexpected answer of the kernel: {other:?}"))),
    }
}

fn of(link: LinkMessage) -> Option<String> {
    link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.into_iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.to_string()),
            _ => None,
        }),
        _ => None,
    })
}
